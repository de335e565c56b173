"""`holdfast tools|call|doctor|runs` for people and with --json for programs."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing import FaultServer, stdio_target

HOLDFAST = str(Path(sys.executable).parent / "holdfast")


def holdfast(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HOLDFAST, *args], capture_output=True, text=True, timeout=60, cwd=cwd)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = stdio_target()
    servers = {
        "good": {"command": target.command, "args": list(target.args)},
        "bad": {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no licence')"]},
        "off": {"url": "http://127.0.0.1:1/mcp", "disabled": True},
        "typo": {"comand": "npx"},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    good = {"mcpServers": {"good": servers["good"]}}
    (tmp_path / "good.json").write_text(json.dumps(good))
    return tmp_path


@pytest.mark.promise("cli.tools")
def test_tools_lists_what_can_be_listed_and_names_what_failed(folder: Path) -> None:
    done = holdfast("tools", "mcp.json", cwd=folder)
    assert done.returncode == 1
    assert "echo" in done.stdout
    assert "no licence" in done.stderr
    assert done.stderr.count("did you mean 'command'?") == 1
    assert "Traceback" not in done.stderr
    done = holdfast("tools", "good.json", "--json", cwd=folder)
    assert done.returncode == 0
    assert "echo" in {tool["name"] for tool in json.loads(done.stdout)["good"]["tools"]}


@pytest.mark.promise("cli.call")
def test_call_calls_and_guesses_what_was_meant(folder: Path) -> None:
    done = holdfast("call", "good.json", "good", "echo", "text=hello world", cwd=folder)
    assert (done.returncode, done.stdout.strip()) == (0, "hello world")
    done = holdfast("call", "good.json", "good", "progress", "steps=3", "--json", cwd=folder)
    assert json.loads(done.stdout)["isError"] is False
    done = holdfast("call", "good.json", "god", "echo", cwd=folder)
    assert done.returncode == 2
    assert "did you mean good?" in done.stderr
    done = holdfast("call", "good.json", "good", "ecoh", cwd=folder)
    assert "did you mean echo?" in done.stderr
    done = holdfast("call", "good.json", "good", "echo", "novalue", cwd=folder)
    assert "key=value" in done.stderr
    done = holdfast("call", "none.json", "good", "echo", cwd=folder)
    assert done.returncode == 2
    assert "no such file" in done.stderr


@pytest.mark.promise("cli.doctor")
def test_doctor_says_what_each_server_is_and_what_is_wrong(folder: Path) -> None:
    done = holdfast("doctor", "mcp.json", cwd=folder)
    assert done.returncode == 1
    assert "2025-11-25" in done.stdout
    assert "no licence" in done.stdout
    assert "disabled" in done.stdout
    done = holdfast("doctor", "good.json", "--json", cwd=folder)
    [found] = json.loads(done.stdout)
    assert (found["ok"], found["era"], found["finding"]) == (True, "2025", None)
    assert found["why_era"] == "it can hold a session"
    assert "tools" in found["capabilities"]


@pytest.mark.promise("cli.doctor")
def test_doctor_says_that_a_server_of_2026_alone_keeps_no_state(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    known = m['method'] == 'server/discover'\n"
        "    found = {'result': {'supportedVersions': ['2026-07-28'], 'capabilities': {}}}\n"
        "    error = {'error': {'code': -32601, 'message': 'Method not found'}}\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], **(found if known else error)}), flush=True)\n"
    )
    server = {"command": sys.executable, "args": ["program.py"]}
    servers = {"only": server, "declared": {**server, "stateful": False}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    done = holdfast("doctor", "mcp.json", "--json", cwd=tmp_path)
    only, declared = json.loads(done.stdout)
    assert (only["era"], only["why_era"]) == ("2026", "the server refused the other era")
    assert "stateful=False" in only["finding"]
    assert declared["finding"] is None
    assert "stateful=False" in holdfast("doctor", "mcp.json", cwd=tmp_path).stdout.replace("\n", "")


@pytest.mark.promise("cli.runs")
def test_runs_are_listed_shown_and_ended(tmp_path: Path) -> None:
    code = """
import asyncio, holdfast
from holdfast.testing import FaultServer
async def main():
    async with FaultServer() as http, holdfast.open_store("sqlite:///runs.db") as store:
        async with holdfast.run("talk-7", store=store):
            await holdfast.Server("it", url=http.url).call_tool("count")
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=60)
    listed = holdfast("runs", "ls", "--store", "sqlite:///runs.db", cwd=tmp_path)
    assert "talk-7" in listed.stdout
    shown = json.loads(
        holdfast("runs", "show", "talk-7", "--store", "sqlite:///runs.db", "--json", cwd=tmp_path).stdout
    )
    [session] = shown["sessions"]
    assert (session["server"], session["era"], len(session["session"])) == ("it", "2025", 5)
    ended = holdfast("runs", "end", "talk-7", "--store", "sqlite:///runs.db", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "ended run talk-7\n")
    again = holdfast("runs", "end", "talk-7", "--store", "sqlite:///runs.db", "--json", cwd=tmp_path)
    assert (again.returncode, json.loads(again.stdout)) == (1, {"run": "talk-7", "ended": False})
    assert "talk-7" not in holdfast("runs", "ls", "--store", "sqlite:///runs.db", cwd=tmp_path).stdout
    assert holdfast("runs", "show", "nobody", "--store", "sqlite:///runs.db", cwd=tmp_path).returncode == 2


@pytest.mark.promise("cli.doctor")
def test_doctor_takes_the_gateways_yaml_and_a_url(folder: Path) -> None:
    target = stdio_target()
    (folder / "g.yaml").write_text(
        f"listen: {{port: 9}}\nmcpServers:\n  good: {{command: {target.command}, args: {json.dumps(target.args)}}}\n"
    )
    done = holdfast("doctor", "g.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [each["ok"] for each in json.loads(done.stdout)] == [True]

    entry = {"command": target.command, "args": target.args}
    policy = {"reuse": "principal", "deny": ["x"], "start": "lazy"}
    both = {"good": {**entry, **policy}, "bad": {**entry, "start": "soon"}}
    (folder / "g.json").write_text(json.dumps({"mcpServers": both}))
    done = holdfast("doctor", "g.json", "--json", cwd=folder)
    assert done.returncode == 1, done.stderr
    assert {each["server"]: each["ok"] for each in json.loads(done.stdout)} == {"good": True, "bad": False}
    done = holdfast("doctor", "http://user:hunter2@127.0.0.1:1/mcp", cwd=folder)
    assert "into a file" in done.stderr
    assert "hunter2" not in done.stderr

    async def at_a_url() -> subprocess.CompletedProcess[str]:
        async with FaultServer() as http:
            return await asyncio.to_thread(holdfast, "doctor", http.url, "--json", cwd=folder)

    done = asyncio.run(at_a_url())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["name"] == "faulty 1"
