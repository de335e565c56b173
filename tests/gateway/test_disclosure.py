"""Secrets stay with the operator: what callers of every front are told of a backend or a store that fails."""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway

SECRET = "hunter2"
PROGRAM = f"""
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {{"protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}, "prompts": {{}}}},
                   "serverInfo": {{"name": "db", "version": "1"}}}}
    elif message["method"] == "tools/list":
        result = {{"tools": [{{"name": "query", "inputSchema": {{"type": "object"}}}}]}}
    elif message["method"] == "prompts/list":
        result = {{"prompts": [{{"name": "ask"}}]}}
    else:
        sys.stderr.write("connection to postgresql://app:{SECRET}@10.1.2.3/prod failed\\n")
        sys.stderr.flush()
        os._exit(3)
    print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
"""


def crashing(folder: Path) -> dict[str, Any]:
    program = folder / "db_server.py"
    program.write_text(PROGRAM)
    return {
        "command": sys.executable,
        "args": [str(program), f"--dsn=postgresql://app:{SECRET}@10.1.2.3/prod"],
        "era": "2025",
    }


def leaks(said: object, folder: Path) -> list[str]:
    text = json.dumps(said)
    return [word for word in (SECRET, "10.1.2.3", str(folder), sys.executable, "stderr", "127.0.0.1") if word in text]


@pytest.mark.promise("gateway.disclosure")
async def test_a_crashing_program_shows_callers_neither_its_command_nor_its_stderr(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.gateway")
    async with gateway(tmp_path, {"db": crashing(tmp_path)}) as program, RawClient(program.url) as client:
        await client.initialize()
        crashed = await client.call("db__query")
        assert crashed.result["isError"]
        assert crashed.result["_meta"]["dev.holdfast/error"]["family"] == "OutcomeUnknown"
        prompt = await client.ask("prompts/get", {"name": "db__ask"})
        assert prompt.error["data"]["server"] == "db"
        by_2026 = await client.call_2026("db__query")
        for said in (crashed.last, prompt.last, by_2026.last):
            assert leaks(said, tmp_path) == []
            assert "db" in json.dumps(said)
    logged = [record.getMessage() for record in caplog.records]
    assert any(SECRET in line and "ChildDied" in line for line in logged)  # the operator learns why


@pytest.mark.promise("gateway.disclosure")
async def test_a_program_that_does_not_start_is_logged_once_and_not_with_every_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.gateway")
    store = f"sqlite:///{tmp_path}/s.db"
    async with gateway(tmp_path, {"db": crashing(tmp_path)}, store=store) as program:
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools)
    (tmp_path / "db_server.py").write_text(f"import sys\nsys.exit('no database {SECRET}')\n")
    caplog.clear()
    servers = {"db": {**crashing(tmp_path), "start": "lazy"}}
    (tmp_path / "db_server.py").write_text(f"import sys\nsys.exit('no database {SECRET}')\n")
    async with gateway(tmp_path, servers, store=store) as program, RawClient(program.url) as client:
        await client.initialize()
        for _ in range(3):
            down = await client.call("db__query")
            assert down.result["_meta"]["dev.holdfast/error"]["kind"] == "NoBackend"
            assert leaks(down.last, tmp_path) == []
    about = [record.getMessage() for record in caplog.records if SECRET in record.getMessage()]
    assert len(about) == 1, about


@pytest.mark.promise("gateway.disclosure")
async def test_addresses_of_backends_and_stores_stay_inside(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    store = f"sqlite:///{folder}/s.db"
    async with FaultServer() as http:
        async with (
            gateway(tmp_path, {"web": {"url": http.url}}, store=store) as program,
            RawClient(program.url) as client,
        ):
            gate = program.gateway
            assert gate is not None
            await client.initialize()
            assert (await client.call("web__count")).text == "1"
            await http.refuse()
            assert leaks((await client.call("web__count")).last, tmp_path) == []
            (folder / "s.db").rename(folder / "gone.db")  # the store is replaced under us: it answers no more
            ended = await client.delete()
            client.session = None
            for said in (ended, await client.initialize()):
                assert said.status == 503, said.raw
                assert said.error["data"]["kind"] == "StoreDown"
                assert leaks(said.last, tmp_path) == []
            (folder / "gone.db").rename(folder / "s.db")


@pytest.mark.promise("gateway.disclosure")
async def test_the_stdio_front_says_no_more_than_the_others(tmp_path: Path) -> None:
    file = tmp_path / "gateway.json"
    file.write_text(json.dumps({"mcpServers": {"db": crashing(tmp_path)}}))
    serving = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "holdfast"),
        "serve",
        str(file),
        "--stdio",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert serving.stdin is not None
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    }
    call = {"name": "db__query", "arguments": {}}
    assert serving.stdout is not None
    said: list[Any] = []
    for id, (method, given) in enumerate(
        [
            ("initialize", params),
            ("tools/call", call),
            ("prompts/get", {"name": "db__ask"}),
            ("tools/call", {**call, "_meta": meta}),
        ]
    ):
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": given}
        serving.stdin.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(patience(60)):
            while json.loads(line := await serving.stdout.readline()).get("id") != id:
                said.append(json.loads(line))
        said.append(json.loads(line))
    serving.stdin.close()
    async with asyncio.timeout(patience(60)):
        _, logged = await serving.communicate()
    assert [message for message in said if leaks(message, tmp_path)] == []
    assert sum('"isError": true' in json.dumps(message) for message in said) == 2, said
    assert SECRET.encode() in logged


@pytest.mark.promise("gateway.disclosure")
@pytest.mark.parametrize("named_by", ["handles", "header"])
async def test_with_everything_dead_no_front_and_no_probe_says_where_anything_is(tmp_path: Path, named_by: str) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    store = f"sqlite:///{folder}/s.db"
    sessions: dict[str, Any] = {"handles": True} if named_by == "handles" else {"header": "X-Conversation"}
    async with FaultServer() as http:
        servers = {"web": {"url": f"{http.url}?api_key={SECRET}"}, "db": crashing(tmp_path)}
        async with gateway(tmp_path, servers, store=store, sessions=sessions) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: {"web__count", "db__query"} <= set(gate.table.tools), 20)
            async with RawClient(program.url) as client:
                await client.initialize()
                await http.refuse()
                (folder / "s.db").rename(folder / "gone.db")
                said = [
                    await client.call("web__count"),
                    await client.call("db__query"),
                    await client.ask("prompts/get", {"name": "db__ask"}),
                    await client.ask("resources/read", {"uri": "file:///x"}),
                    await client.ask("logging/setLevel", {"level": "info"}),
                    await client.ask_2026("tools/list"),
                    await client.call_2026("web__count"),
                    await client.call_2026("db__query"),
                    await client.call_2026("holdfast__open_session"),
                    await client.ask_2026("tools/call", {"name": "web__count", "arguments": {}}, x_conversation="c"),
                    await client.delete(),
                ]
                client.session = "a" * 43  # of another process, for all we know: only the store can say
                said += [await client.call("web__count"), await client.delete()]
                for path in ("/readyz", "/healthz", "/elsewhere"):
                    client.url = program.url.replace("/mcp", path)
                    said.append(await client.send(b"", "GET"))
                (folder / "gone.db").rename(folder / "s.db")
    assert [answer.raw for answer in said if leaks(answer.raw.decode(), tmp_path)] == []
    assert [answer.raw for answer in said if leaks(dict(answer.headers), tmp_path)] == []
    assert [answer.status for answer in said if answer.status == 500] == []
    assert sum(b'"isError":true' in answer.raw for answer in said) >= 4
