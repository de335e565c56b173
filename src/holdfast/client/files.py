"""Server files in existing formats: `mcpServers` of Claude Desktop and Cursor, `servers` of VS Code.

`${VARIABLE}` is expanded; errors name file, server and key, and suggest the likely correction. An undefined variable
and the SSE transport of 2024 are errors; keys of other programs are ignored.
"""

import difflib
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from holdfast.client.server import Server
from holdfast.errors import ConfigError, UsageError

KEYS = frozenset(
    {"command", "args", "env", "cwd", "url", "headers", "type", "transport", "disabled", "timeout", "era", "reuse",
     "stateful", "proxy", "labels", "silence"}
)  # fmt: skip
"""The keys that Holdfast uses."""
_OTHERS = frozenset(
    {"alwaysAllow", "autoApprove", "description", "name", "gallery", "version", "icon", "tools", "enabled", "oauth",
     "envFile", "dev", "sandboxEnabled", "sandbox", "metadata", "note", "trust", "includeTools", "excludeTools",
     "disabledTools"}
)  # fmt: skip
"""Keys of other programs."""
_HTTP = frozenset({"http", "streamable-http", "streamableHttp", "streamable_http"})
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_OTHER_VARIABLE = re.compile(r"\$\{([^}]*)\}")

log = logging.getLogger("holdfast.client")


class Servers(dict[str, Server]):
    """The valid servers of a file, by name.
    `wrong` has the error of each invalid one, which is raised when it is looked up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, ConfigError] = {}

    def __missing__(self, name: str) -> Server:
        raise self.wrong.get(name) or KeyError(name)


def load_servers(path: str | Path, *, env: Mapping[str, str] | None = None) -> Servers:
    """Load the servers of a file, by name.
    `env` replaces the process's environment for `${…}`. An invalid entry is logged and left out; raises `ConfigError`
    if the file is invalid, or every entry.
    """
    servers = read_servers(path, env=env)
    for error in servers.wrong.values():
        log.warning("a server is left out: %s", error)
    return servers


def read_servers(path: str | Path, *, env: Mapping[str, str] | None = None) -> Servers:
    """The same without logging: the caller reports `wrong`."""
    place = Path(path)
    try:
        text = place.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{place}: {error.strerror or error}".lower(), remedy="give a file that can be read"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{place} is not UTF-8 text") from None
    document, plain = parse_json(text, place)
    _check_keys(plain, place)
    listed = document.get("mcpServers", document.get("servers"))
    if not isinstance(listed, dict):
        near = difflib.get_close_matches("mcpServers", [str(key) for key in document], 1, 0.5)
        raise ConfigError(
            f"{place} has no 'mcpServers'" + (f", but {near[0]!r}" if near else ""),
            remedy='write {"mcpServers": {"name": {"command": …}}}, or VS Code\'s "servers"',
        )
    values = os.environ if env is None else env
    servers = Servers()
    for name, entry in cast("dict[str, Any]", listed).items():
        where = f"{place}: server {name!r}"
        try:
            if not isinstance(entry, dict):
                raise ConfigError(f"{where} is not an object", server=name, remedy="write an object of its settings")
            servers[name] = server_from(name, cast("dict[str, Any]", entry), where, values)
        except ConfigError as error:
            servers.wrong[name] = error.with_traceback(None)
    if servers.wrong and not servers:
        first, more = next(iter(servers.wrong.values())), len(servers.wrong) - 1
        if more:
            first.what += f" (and {more} more {'entry is' if more == 1 else 'entries are'} wrong)"
        raise first
    return servers


def _check_keys(plain: str, place: Path) -> None:
    """Reject duplicate keys, of which the last would silently win."""

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for key, value in pairs:
            if key in known:
                raise ConfigError(f"{place}: the key {key!r:.80} occurs twice in one object", remedy="keep one")
            known[key] = value
        return known

    json.loads(plain, object_pairs_hook=check)


def parse_json(text: str, place: Path) -> tuple[dict[str, Any], str]:
    """The document, and its text with comments replaced by spaces."""
    plain = _without_comments(text)
    try:
        document = json.loads(plain)
    except RecursionError:
        raise ConfigError(f"{place} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{place}, line {error.lineno}, column {error.colno}: {error.msg.lower()}", remedy="correct the JSON there"
        ) from None
    if not isinstance(document, dict):
        raise ConfigError(f"{place} is not a JSON object")
    return cast("dict[str, Any]", document), plain


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)


def _without_comments(text: str) -> str:
    """Replace comments and trailing commas, which VS Code allows, by spaces: positions in errors stay correct."""

    def blank(found: re.Match[str]) -> str:
        token = found.group()
        return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)

    return _TOKENS.sub(blank, _TOKENS.sub(lambda m: m.group() if m.group() == "," else blank(m), text))


def server_from(name: str, entry: dict[str, Any], where: str, env: Mapping[str, str]) -> Server:
    """Read one server's entry; `where` begins the text of errors."""
    for key in entry:
        if key in KEYS or key in _OTHERS:
            continue
        near = difflib.get_close_matches(key, sorted(KEYS), 1, 0.7)
        if near:
            raise ConfigError(f"{where}: {key!r} is not a known key", server=name, remedy=f"did you mean {near[0]!r}?")
        log.warning("%s: the unknown key %r is ignored", where, key)
    if entry.get("disabled") is True or entry.get("enabled") is False:
        env = _Anything(env)  # a disabled server needs no variables
    read = {key: _expanded(entry[key], f"{where}: {key}", env, name) for key in KEYS & entry.keys()}
    kind = read.pop("type", read.pop("transport", None))
    read.pop("transport", None)
    if kind == "sse":
        raise ConfigError(
            f"{where}: the SSE transport of 2024 is not supported",
            server=name,
            remedy="use the server's streamable HTTP endpoint, often /mcp instead of /sse",
        )
    if kind is not None and kind not in (*_HTTP, "stdio"):
        raise ConfigError(f"{where}: the type {kind!r:.40} is not known", server=name, remedy="give 'stdio' or 'http'")
    if (kind in _HTTP and "url" not in read) or (kind == "stdio" and "command" not in read):
        wanted = "url" if kind in _HTTP else "command"
        raise ConfigError(f"{where}: type {kind!r} needs {wanted!r}", server=name)
    if "enabled" in entry and "disabled" not in entry:
        if not isinstance(entry["enabled"], bool):
            raise ConfigError(f"{where}: enabled is not true or false", server=name)
        read["disabled"] = not entry["enabled"]
    if isinstance(read.get("env"), dict):  # other programs accept numbers there and use their text
        read["env"] = {key: str(v) if isinstance(v, int | float) else v for key, v in read["env"].items()}
    _check_types(read, where, name)
    try:
        return Server(name, **read)
    except UsageError as error:
        raise ConfigError(f"{where}: {error.what}", server=name, remedy=error.remedy or "see docs/agents.md") from None


class _Anything(dict[str, str]):
    """An environment in which every variable is set."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, "")


def _check_types(read: dict[str, Any], where: str, name: str) -> None:
    expected: dict[str, tuple[type, str]] = {
        "command": (str, "a string"), "url": (str, "a string"), "cwd": (str, "a string"), "args": (list, "a list"),
        "env": (dict, "an object"), "headers": (dict, "an object"), "disabled": (bool, "true or false"),
        "stateful": (bool, "true or false"), "labels": (dict, "an object"),
    }  # fmt: skip
    for key, (kind, words) in expected.items():
        if key in read and not isinstance(read[key], kind):
            raise ConfigError(f"{where}: {key} is not {words}", server=name)
    for key in ("timeout", "silence"):
        if key in read and (isinstance(read[key], bool) or not isinstance(read[key], int | float)):
            raise ConfigError(f"{where}: {key} is not a number of seconds", server=name)


def _expanded(value: Any, where: str, env: Mapping[str, str], name: str) -> Any:
    if isinstance(value, list):
        return [_expanded(each, where, env, name) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        known = cast("dict[str, Any]", value)
        return {key: _expanded(each, f"{where}.{key}", env, name) for key, each in known.items()}
    if not isinstance(value, str):
        return value

    def filled(found: re.Match[str]) -> str:
        variable, default = found.group(1), found.group(2)
        if (given := env.get(variable)) is not None:
            return given
        if default is not None:
            return default
        near = difflib.get_close_matches(variable, list(env), 1, 0.7)
        raise ConfigError(
            f"{where}: the variable {variable} is not set",
            server=name,
            remedy=f"set it, or write ${{{variable}:-default}}" + (f"; did you mean {near[0]}?" if near else ""),
        )

    done = _VARIABLE.sub(filled, value)
    if (left := _OTHER_VARIABLE.search(done)) and left.group(1).startswith(("input:", "workspaceFolder", "userHome")):
        raise ConfigError(
            f"{where}: ${{{left.group(1)}}} is defined only in an editor", server=name, remedy="write the value itself"
        )
    return done
