"""`holdfast tools|call|doctor`: use the servers of a file from the terminal."""

import asyncio
import difflib
import json as json_module
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import click

from holdfast.cli.output import ProgressLine, print_json, table
from holdfast.cli.program import Decorated, argument, command, error_json, json_option
from holdfast.cli.terminal import DIM, GREEN, RED, YELLOW, Styled, columns, err, indented, inline, out, padded
from holdfast.client.calls.leased import leased
from holdfast.client.files import Servers, read_servers
from holdfast.client.runs.scope import run as run_scope
from holdfast.client.server import Server
from holdfast.errors import AnswerTimeout, ConfigError, HoldfastError, NotFound, UsageError
from holdfast.gateway.config.file import is_ours, servers_of
from holdfast.links.reporter import SESSIONLESS, SESSIONLESS_REMEDY

file_argument = argument("file", "FILE", "A server file (mcp.json or the gateway's YAML) or a server's URL.")


def timeout_option(default: float) -> Callable[[Decorated], Decorated]:
    """`--timeout`, with the command's default."""
    return click.option(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=default,
        show_default=True,
        help="Timeout for each server.",
    )


def _read(file: str) -> Servers:
    """The servers of a file, or the one at a URL, which is named `server`."""
    if file.startswith(("http://", "https://")):
        servers = Servers()
        try:
            servers["server"] = Server("server", url=file)
        except ConfigError as error:
            raise ConfigError(
                error.what, remedy="write the server with its headers into a file, and give that file"
            ) from None
        return servers
    return servers_of(file) if is_ours(file) else read_servers(file)


def _one(servers: Servers, name: str, file: str) -> Server:
    if name not in servers and name not in servers.wrong:
        near = difflib.get_close_matches(name, list(servers), 1)
        known = ", ".join(servers) or "none"
        raise ConfigError(
            f"{file} has no server {name!r}; it has {known}",
            remedy=f"did you mean {near[0]}?" if near else "give one of these",
        )
    return servers[name]


@command()
@file_argument
@argument("server", "[SERVER]", "Only this server.", required=False)
@timeout_option(30.0)
@json_option
def tools(file: str, server: str | None, timeout: float, json: bool) -> None:
    """List the tools of every server in a file. If a server fails, it is reported and the others are listed."""

    async def main() -> dict[str, Any]:
        servers = _read(file)
        chosen = [_one(servers, server, file)] if server else [each for each in servers.values() if not each.disabled]

        async def listed(each: Server) -> Any:
            try:
                async with asyncio.timeout(timeout):
                    return await each.list_tools()
            except TimeoutError:
                return UsageError(f"no answer within {timeout:g} s", server=each.name)
            except HoldfastError as error:
                return error

        async with run_scope():
            found = await asyncio.gather(*(listed(each) for each in chosen))
        wrong = {} if server else servers.wrong
        return {**{each.name: result for each, result in zip(chosen, found, strict=True)}, **wrong}

    found = asyncio.run(main())
    if json:
        print_json(
            {
                name: {"error": error_json(result)}
                if isinstance(result, HoldfastError)
                else {"tools": [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in result]}
                for name, result in found.items()
            }
        )
    else:
        rows: list[tuple[str, str, str]] = []
        for name, result in found.items():
            for tool in result if not isinstance(result, HoldfastError) else ():
                text = (tool.description or tool.title or "").strip().splitlines()
                rows.append((name, tool.name, text[0] if text else ""))
        if rows:
            table(("server", "tool", "what it does"), rows, whole=("tool",))
        for name, result in found.items():
            if isinstance(result, HoldfastError):
                err.print(f"{inline(name)}: {indented(str(result))}")
    if any(isinstance(result, HoldfastError) for result in found.values()):
        raise click.exceptions.Exit(1)


@asynccontextmanager
async def _within(seconds: float, server: str) -> AsyncGenerator[None, None]:
    """Timeout in seconds for everything, including connecting and listing."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AnswerTimeout(
            f"{server!r} did not answer within {seconds:g} s",
            server=server,
            remedy="it may have been executed; raise --timeout",
        ) from None


def _arguments(given: Sequence[str], schema: dict[str, Any]) -> dict[str, Any]:
    """Parse key=value arguments by the tool's schema; values may be given as JSON."""
    properties = cast("dict[str, dict[str, Any]]", schema.get("properties") or {})
    found: dict[str, Any] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"{each!r} is not key=value", remedy="write e.g. text=hello count=3")
        if properties and key not in properties:
            near = difflib.get_close_matches(key, list(properties), 1)
            raise UsageError(
                f"the tool has no argument {key!r}; it has {', '.join(properties)}",
                remedy=f"did you mean {near[0]}?" if near else "see `holdfast tools --json`",
            )
        kind = (properties.get(key) or {}).get("type")
        if kind == "string":
            found[key] = value
            continue
        try:
            found[key] = json_module.loads(value)
        except ValueError:
            found[key] = value
    return found


@command()
@file_argument
@argument("server", "SERVER", "The server.")
@argument("tool", "TOOL", "The tool.")
@argument("arguments", "[KEY=VALUE]...", "The tool's arguments; values may be JSON.", nargs=-1)
@timeout_option(300.0)
@json_option
def call(file: str, server: str, tool: str, arguments: tuple[str, ...], timeout: float, json: bool) -> None:
    """Call one tool. Exit code 1 if the tool itself reports a failure."""

    async def main() -> Any:
        chosen = _one(_read(file), server, file)
        with ProgressLine(f"{server} {tool}", quiet=json) as progress:

            async def on_progress(done: float, total: float | None, message: str | None) -> None:
                progress.show(done, total, f"{tool} {message}" if message else tool)

            async with _within(timeout, server), run_scope():
                known = {each.name: each for each in await chosen.list_tools()}
                if tool not in known:
                    near = difflib.get_close_matches(tool, list(known), 1)
                    raise NotFound(
                        f"{server!r} has no tool {tool!r}",
                        server=server,
                        remedy=f"did you mean {near[0]}?" if near else f"it has {', '.join(known)[:300]}",
                    )
                wanted = _arguments(arguments, known[tool].input_schema)
                return await chosen.call_tool(tool, wanted, timeout=timeout, on_progress=on_progress)

    result = asyncio.run(main())
    if json:
        print_json(result.model_dump(by_alias=True, mode="json", exclude_none=True))
    else:
        for content in result.content:
            text = getattr(content, "text", None)
            out.print(text if text is not None else f"[{content.type}]")
    if result.is_error:
        raise click.exceptions.Exit(1)


@command()
@file_argument
@timeout_option(30.0)
@json_option
def doctor(file: str, timeout: float, json: bool) -> None:
    """Connect to every server in a file; show era, version, capabilities and time, or the error."""

    async def look(server: Server) -> dict[str, Any]:
        if server.disabled:
            return {"server": server.name, "ok": None, "why": "disabled"}
        start = time.perf_counter()
        try:
            async with asyncio.timeout(timeout), leased(server.with_(reuse="call"), None) as link:
                handshake = await link.open(timeout=timeout)
                milliseconds = (time.perf_counter() - start) * 1000
                info = handshake.server_info or {}
                statistics = link.statistics()
                expected = server.era == "auto" and server.stateful and statistics.era == "2026"
                return {
                    "server": server.name,
                    "ok": True,
                    "era": handshake.era.value,
                    "why_era": statistics.why,
                    "finding": f"{SESSIONLESS}; {SESSIONLESS_REMEDY}" if expected else None,
                    "version": handshake.version,
                    "name": f"{info.get('name', '')} {info.get('version', '')}".strip(),
                    "capabilities": sorted(handshake.capabilities),
                    "milliseconds": round(milliseconds),
                }
        except TimeoutError:
            return {"server": server.name, "ok": False, "why": f"no answer within {timeout:g} s"}
        except HoldfastError as error:
            return {"server": server.name, "ok": False, "why": str(error)}

    async def main() -> list[dict[str, Any]]:
        servers = _read(file)
        wrong = [{"server": name, "ok": False, "why": str(error)} for name, error in servers.wrong.items()]
        return [*await asyncio.gather(*(look(server) for server in servers.values())), *wrong]

    found = asyncio.run(main())
    if json:
        print_json(found)
    else:
        width = max((columns(inline(each["server"])) for each in found), default=0)
        for each in found:
            if each["ok"]:
                words = f"{each['version']} ({each['why_era']})  {each['milliseconds']} ms  {inline(each['name'])}"
                capabilities = inline(", ".join(each["capabilities"]))
                out.print(Styled("ok  ", GREEN), padded(inline(each["server"]), width), f"{words}  {capabilities}")
                if each["finding"] is not None:
                    out.print("    ", " " * width, Styled(each["finding"], YELLOW))
            else:
                mark = Styled("off ", DIM) if each["ok"] is None else Styled("FAIL", RED)
                out.print(mark, padded(inline(each["server"]), width), indented(each["why"]))
    if any(each["ok"] is False for each in found):
        raise click.exceptions.Exit(1)
