"""The program as a whole: what it imports, its help, its errors for people and programs, completion."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import app
from holdfast.cli.program import Group, Lazy
from holdfast.errors import UsageError
from holdfast.gateway.sessions.record import KIND as SESSIONS
from holdfast.stores import Record
from holdfast.stores.sealing import new_key
from tests.deadlines import patience
from tests.gateway.gateways import written

run = CliRunner()
HOLDFAST = str(Path(sys.executable).parent / "holdfast")
LONGEST_HELP, WIDEST_HELP = 40, 80


def leaves(group: Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Lazy]]:
    for name, member in group.members.items():
        if isinstance(member, Lazy):
            yield (*path, name), member
        else:
            yield from leaves(member, (*path, name))


COMMANDS = dict(leaves(app))
GROUPS = [(), *{path[:-1] for path in COMMANDS if len(path) > 1}]


def resolved(path: tuple[str, ...]) -> click.Command:
    command: click.Command | None = app
    for name in path:
        assert isinstance(command, Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    return command


def loaded(code: str, *names: str) -> list[str]:
    """Those of the modules that a fresh interpreter has after the code."""
    code = f"{code}\nimport sys\nprint(*(name for name in {names!r} if name in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


@pytest.mark.promise("cli.start")
def test_no_command_imports_rich_or_typer() -> None:
    places = {member.place.split(":")[0] for member in COMMANDS.values()}
    imports = "\n".join(f"import holdfast.cli.{place}" for place in sorted(places))
    assert loaded(imports, "rich", "typer", "pygments", "markdown_it", "shellingham", "click") == ["click"]


@pytest.mark.promise("cli.start")
@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_imports_no_command(group: tuple[str, ...]) -> None:
    code = f"from holdfast.cli import app\ntry: app([*{group!r}, '--help'])\nexcept SystemExit: pass"
    modules = {f"holdfast.cli.{member.place.split(':')[0]}" for member in COMMANDS.values()}
    assert loaded(code, *modules, "asyncio", "pydantic", "mcp", "holdfast.stores", "holdfast.client.server") == []


@pytest.mark.promise("cli.help")
@pytest.mark.parametrize("path", [*GROUPS, *COMMANDS])
def test_help_fits_a_screen_and_describes_everything(path: tuple[str, ...]) -> None:
    result = run.invoke(app, [*path, "-h"], terminal_width=WIDEST_HELP)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) <= LONGEST_HELP
    assert max(map(len, lines)) <= WIDEST_HELP
    if path not in COMMANDS:
        return
    command = resolved(path)
    assert command.name == path[-1]
    assert command.help is not None
    assert "--json" in result.output
    for parameter in command.params:
        described = getattr(parameter, "described", None) or getattr(parameter, "help", None)
        assert described, f"{path} {parameter.name}"
        assert described.split()[0] in result.output
        assert described.endswith((".", ".db")), f"{path} {parameter.name}"


@pytest.mark.promise("cli.help")
def test_a_group_alone_shows_its_help() -> None:
    for path in GROUPS:
        result = run.invoke(app, list(path))
        assert (result.exit_code, result.stderr) == (2, "")
        assert result.stdout == run.invoke(app, [*path, "--help"]).stdout


def failing(folder: Path) -> dict[tuple[str, ...], list[str]]:
    """For each command arguments that it can't do anything with: a store or file that does not exist, a bad value."""
    store, file = f"sqlite:///{folder}/none.db", str(folder / "none.json")
    at = ["--store", store]
    (folder / "keys").write_text("short")
    taken = written(folder, "store: nonsense://\nmcpServers: {}")
    return {
        ("tools",): [file],
        ("call",): [file, "server", "tool"],
        ("doctor",): [file],
        ("serve",): [str(taken)],
        ("check",): [str(taken), "--keys-file", file],
        ("backends",): at,
        ("top",): at,
        ("tail",): at,
        ("demo",): ["--port", "0"],
        ("completion",): ["tcsh"],
        ("sessions", "ls"): at,
        ("sessions", "show"): ["s", *at],
        ("sessions", "end"): ["s", "--config", file],
        ("token", "new"): ["anonymous"],
        ("audit", "verify"): at,
        ("runs", "ls"): at,
        ("runs", "show"): ["r", *at],
        ("runs", "end"): ["r", *at],
        ("state", "ls"): at,
        ("state", "show"): ["s", *at],
        ("state", "log"): ["s", *at],
        ("state", "fork"): ["s", *at],
        ("state", "erase"): ["alice", *at],
        ("state", "end"): ["s", *at],
        ("state", "tree"): ["s", *at],
        ("state", "stats"): at,
        ("store", "check"): [store],
        ("store", "ls"): [store, "--keys-file", str(folder / "keys")],
        ("store", "show"): [store, "k", "i"],
        ("store", "end"): [store, "k", "i"],
        ("store", "reap"): [store],
        ("store", "reseal"): [store],
        ("store", "copy"): [store, "memory:"],
        ("store", "key"): ["too", "many"],
    }


@pytest.mark.promise("cli.json-errors")
@pytest.mark.parametrize("path", COMMANDS)
def test_an_error_of_each_command_is_a_line_or_an_object(path: tuple[str, ...], tmp_path: Path) -> None:
    given = failing(tmp_path)[path]
    told = run.invoke(app, [*path, *given, "--json"])
    if path == ("check",):  # its mistakes are its result
        assert told.exit_code == 1
        assert json.loads(told.stdout)["good"] is False
        return
    assert (told.exit_code, told.stderr) == (2, "")
    error = json.loads(told.stdout)["error"]
    assert set(error) >= {"type", "family", "message", "remedy"}
    assert getattr(holdfast.errors, error["type"])
    assert "\x1b" not in told.stdout
    if path == ("demo",):  # without --json it would serve
        return
    shown = run.invoke(app, [*path, *given])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith("error: ")
    assert len(shown.stderr.splitlines()) <= 3
    assert error["remedy"] is None or f"  try: {error['remedy']}" in shown.stderr


@pytest.mark.promise("cli.json-errors")
@pytest.mark.parametrize("path", [*GROUPS, *COMMANDS])
def test_wrong_usage_is_an_error_as_any_other(path: tuple[str, ...]) -> None:
    told = run.invoke(app, [*path, "--nonsense\x1b", "--json"])
    assert (told.exit_code, told.stderr) == (2, "")
    error = json.loads(told.stdout)["error"]
    assert (error["type"], error["family"]) == (UsageError.__name__, UsageError.__name__)
    assert "--nonsense" in error["message"]
    assert error["remedy"] == " ".join(["holdfast", *path, "--help"])
    shown = run.invoke(app, [*path, "--nonsense\x1b"])
    assert (shown.exit_code, shown.stdout) == (2, "")
    first, second = shown.stderr.splitlines()
    assert first.startswith("error: ")
    assert second == f"  try: {error['remedy']}"
    assert "\x1b" not in shown.stderr + told.stdout


@pytest.mark.promise("cli.json-errors")
def test_json_after_two_dashes_is_an_argument() -> None:
    shown = run.invoke(app, ["tools", "--", "--json", "b", "c"])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith("error: ")


@pytest.mark.promise("cli.json-errors")
def test_records_that_can_not_be_read_are_told_beside_the_result(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"

    async def fill() -> None:
        async with holdfast.open_store(url, keys=[new_key()]) as store:
            await store.commit(Record(SESSIONS, "s1"), expect=0)
        async with holdfast.open_store(url) as store:
            await store.commit(Record(SESSIONS, "s2"), expect=0)

    asyncio.run(fill())
    told = run.invoke(app, ["sessions", "ls", "--store", url, "--json"])
    assert told.exit_code == 1
    assert [record["id"] for record in json.loads(told.stdout)] == ["s2"]
    error = json.loads(told.stderr)["error"]
    assert (error["type"], len(error["records"])) == ("CorruptRecord", 1)
    shown = run.invoke(app, ["store", "show", url, "k", "absent", "--json"])
    assert (shown.exit_code, json.loads(shown.stdout)["error"]["type"], shown.stderr) == (1, "NotFound", "")
    ended = run.invoke(app, ["store", "end", url, "k", "absent", "--json"])
    assert (ended.exit_code, json.loads(ended.stdout), ended.stderr) == (1, {"ended": False}, "")


@pytest.mark.anyio
@pytest.mark.promise("cli.json-errors")
async def test_serve_prints_its_address_as_json(tmp_path: Path) -> None:
    file = written(tmp_path, "mcpServers: {}")
    arguments = ("serve", str(file), "--port", "0", "--store", "memory:", "--json")
    process = await asyncio.create_subprocess_exec(
        HOLDFAST, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(patience(30)):
            ready = json.loads(await process.stdout.readline())
            assert ready["url"].startswith("http://127.0.0.1:")
            assert (ready["servers"], ready["store"]) == ([], "memory:")
            process.terminate()
            rest, errors = await process.communicate()
            assert (process.returncode, rest, errors) == (0, b"", b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    refused = run.invoke(app, ["serve", str(file), "--stdio", "--json"])
    assert (refused.exit_code, json.loads(refused.stdout)["error"]["type"]) == (2, "UsageError")


@pytest.mark.promise("cli.completion")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    plain = run.invoke(app, ["completion", shell])
    assert plain.exit_code == 0
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in plain.stdout
    assert json.loads(run.invoke(app, ["completion", shell, "--json"]).stdout)["script"].strip() == plain.stdout.strip()


@pytest.mark.promise("cli.completion")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["holdfast", "st"], ["state", "store"]),
        (["holdfast", "state", "e"], ["erase", "end"]),
        (["holdfast", "state", "show", "--r"], ["--rev"]),
        (["holdfast", "store", "ls", "u", "--state", "e"], ["expired", "ended"]),
    ],
)
def test_a_shell_is_offered_commands_and_options(words: list[str], offered: list[str]) -> None:
    settings = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run([HOLDFAST], capture_output=True, text=True, timeout=60, env=settings)
    assert [line.split(",")[1] for line in done.stdout.split()] == offered


@pytest.mark.promise("cli.errors")
def test_an_interrupted_command_ends_as_a_shell_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.state.open_store", interrupted)
    result = run.invoke(app, ["state", "ls", "--store", f"sqlite:///{tmp_path}/s.db"])
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (130, "", "")
