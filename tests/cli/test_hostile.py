"""What hostile servers, callers and records say is shown escaped, on the lines that belong to it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast import Principal
from holdfast.cli import app
from holdfast.client.runs.durable import KIND as RUNS
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.gateway.sessions.record import KIND as SESSIONS
from holdfast.links.memory.store import KIND as LINKS
from holdfast.state.companions.figures import FIGURES
from holdfast.stores import Record

run = CliRunner()
FORGED = "FORGED"
HOSTILE = f"x\x1b[31m\x9b2J\u202e\u2028\r\n{FORGED} line\n\u2066\x07\U000e0041y"
COMMANDS = {"\x1b", "\x9b", "\u202e", "\u2028", "\r", "\u2066", "\x07", "\U000e0041"}

SERVER = """
import json, sys
hostile = json.loads(sys.argv[1])
results = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": hostile, "version": hostile},
    },
    "tools/list": {"tools": [
        {"name": name, "description": hostile, "inputSchema": {"type": "object"}} for name in ("good", "bad", hostile)
    ]},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    method, params = message["method"], message.get("params", {})
    if method == "tools/call" and params["name"] == "good":
        answer["result"] = {"content": [{"type": "text", "text": hostile}]}
    elif method in results:
        answer["result"] = results[method]
    else:
        answer["error"] = {"code": -32000, "message": hostile}
    print(json.dumps(answer), flush=True)
"""


def shown(*arguments: str, code: int = 0) -> Result:
    """What the command prints; nothing in it commands the terminal."""
    result = run.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    assert not COMMANDS & set(result.output)
    return result


def no_forged_line(result: Result) -> None:
    assert FORGED in result.output
    assert not [line for line in result.output.splitlines() if line.startswith(FORGED)]


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "server.py").write_text(SERVER)
    entry = {"command": sys.executable, "args": [str(tmp_path / "server.py"), json.dumps(HOSTILE)]}
    dead = {"command": sys.executable, "args": ["-c", f"import sys; sys.exit({HOSTILE!r})"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"it": entry, "dead": dead}}))
    return str(tmp_path / "mcp.json")


@pytest.mark.promise("cli.hostile")
def test_tools_of_a_hostile_server(file: str) -> None:
    listed = shown("tools", file, "it")
    no_forged_line(listed)
    assert len(listed.stdout.splitlines()) == 4
    [*_, hostile] = json.loads(shown("tools", file, "it", "--json").stdout)["it"]["tools"]
    assert hostile["name"] == hostile["description"] == HOSTILE
    assert json.loads(shown("tools", file, "dead", "--json", code=1).stdout)["dead"]["error"]["type"] == "ConnectFailed"
    shown("tools", file, code=1)


@pytest.mark.promise("cli.hostile")
def test_results_and_errors_of_a_hostile_server(file: str) -> None:
    assert FORGED in shown("call", file, "it", "good").stdout
    [content] = json.loads(shown("call", file, "it", "good", "--json").stdout)["content"]
    assert content["text"] == HOSTILE
    refused = shown("call", file, "it", "bad", code=2)
    no_forged_line(refused)
    assert refused.stderr.startswith("error: ")
    assert FORGED in json.loads(shown("call", file, "it", "bad", "--json", code=2).stdout)["error"]["message"]
    no_forged_line(shown("call", file, "it", "none", code=2))


@pytest.mark.promise("cli.hostile")
def test_doctor_on_a_hostile_server(file: str) -> None:
    found = shown("doctor", file, code=1)
    no_forged_line(found)
    assert {line.split()[0] for line in found.stdout.splitlines() if line and not line.startswith(" ")} == {
        "ok",
        "FAIL",
    }
    assert json.loads(shown("doctor", file, "--json", code=1).stdout)[0]["name"] == f"{HOSTILE} {HOSTILE}"


def store(tmp_path: Path, *records: Record) -> str:
    url = f"sqlite:///{tmp_path}/s.db"

    async def fill() -> None:
        async with holdfast.open_store(url) as opened:
            for record in records:
                await opened.commit(record, expect=0)

    asyncio.run(fill())
    return url


@pytest.mark.promise("cli.hostile")
def test_sessions_of_a_hostile_client(tmp_path: Path) -> None:
    data: Any = {"client": {"info": {"name": HOSTILE}}, "era": HOSTILE, "log_level": HOSTILE, "backends": {HOSTILE: {}}}
    url = store(tmp_path, Record(SESSIONS, "s1", Principal("alice"), data))
    listed = shown("sessions", "ls", "--store", url)
    no_forged_line(listed)
    assert len(listed.stdout.splitlines()) == 2
    no_forged_line(shown("sessions", "show", "s1", "--store", url))
    [record] = json.loads(shown("sessions", "ls", "--store", url, "--json").stdout)
    assert record["data"]["client"] == HOSTILE
    shown("sessions", "show", HOSTILE, "--store", url, code=2)


@pytest.mark.promise("cli.hostile")
def test_backends_with_hostile_names_and_reasons(tmp_path: Path) -> None:
    backend = {"state": HOSTILE, "since": 0.0, "era": HOSTILE, "tools": HOSTILE, "why": HOSTILE, "left_out": [HOSTILE]}
    data: Any = {"address": HOSTILE, "pid": HOSTILE, "sessions": 1, "children": HOSTILE, "backends": {HOSTILE: backend}}
    url = store(tmp_path, Record(PROCESSES, "p1", data=data))
    found = shown("backends", "--store", url)
    no_forged_line(found)
    assert len(found.stdout.splitlines()) == 4
    assert json.loads(shown("backends", "--store", url, "--json").stdout)[0]["address"] == HOSTILE


@pytest.mark.promise("cli.hostile")
def test_runs_with_hostile_servers(tmp_path: Path) -> None:
    links: Any = {"era": HOSTILE, "session": HOSTILE}
    url = store(
        tmp_path,
        Record(RUNS, "r1", data={"servers": [HOSTILE], "life": "l"}),
        Record(LINKS, "r1/it@l", data=links),
    )
    listed = shown("runs", "ls", "--store", url)
    no_forged_line(listed)
    assert len(listed.stdout.splitlines()) == 2
    no_forged_line(shown("runs", "show", "r1", "--store", url))
    assert json.loads(shown("runs", "show", "r1", "--store", url, "--json").stdout)["sessions"][0]["era"] == HOSTILE


@pytest.mark.promise("cli.hostile")
def test_statistics_of_hostile_companions(tmp_path: Path) -> None:
    data: Any = {"kind": HOSTILE, "steps": 1, "refusals": {HOSTILE: 2}, "seconds": {HOSTILE: 3.0}}
    url = store(tmp_path, Record(FIGURES, "f1", data=data))
    found = shown("state", "stats", "--store", url)
    no_forged_line(found)
    assert len(found.stdout.splitlines()) == 3
    assert list(json.loads(shown("state", "stats", "--store", url, "--json").stdout)) == [HOSTILE]


@pytest.mark.promise("cli.hostile")
def test_what_the_caller_of_the_command_gives_is_escaped_too(tmp_path: Path) -> None:
    url = store(tmp_path)
    made = shown("token", "new", HOSTILE)
    no_forged_line(made)
    for command in (
        ["sessions", "show", HOSTILE, "--store", url],
        ["runs", "show", HOSTILE, "--store", url],
        ["state", "show", HOSTILE, "--store", url],
        ["state", "tree", HOSTILE, "--store", url],
        ["store", "show", url, HOSTILE, HOSTILE],
        ["tools", HOSTILE],
        ["check", HOSTILE],
    ):
        for extra in ([], ["--json"]):
            result = run.invoke(app, [*command, *extra])
            assert result.exit_code in (1, 2)
            assert not COMMANDS & set(result.output)
            assert not [line for line in result.output.splitlines() if line.startswith(FORGED)]
