"""Commands about a gateway: `serve`, `token`, `sessions`, `backends`."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.gateway.auth import hash_of
from holdfast.testing import FaultServer
from tests.deadlines import patience
from tests.gateway.clients import RawClient
from tests.gateway.gateways import Process, holdfast_cli, written


@pytest.mark.anyio
@pytest.mark.promise("gateway.program")
async def test_operators_see_sessions_and_backends_and_end_one(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        async with RawClient(await process.start(store)) as client:
            await client.initialize()
            await client.call("counter__count")

            listed = await asyncio.to_thread(holdfast_cli, "sessions", "ls", "--store", store, "--json")
            (record,) = json.loads(listed.stdout)
            assert record["data"]["backends"] == ["counter"]
            assert client.session is not None
            assert client.session not in listed.stdout
            shown = await asyncio.to_thread(holdfast_cli, "sessions", "show", record["id"], "--store", store)
            assert "counter" in shown.stdout
            backends = await asyncio.to_thread(holdfast_cli, "backends", "--store", store, "--json")
            (mine,) = json.loads(backends.stdout)
            assert mine["address"] == process.url
            assert "counter" in mine["backends"]
            config = str(process.file)
            ended = await asyncio.to_thread(
                holdfast_cli, "sessions", "end", record["id"], "--config", config, "--store", store
            )
            assert ended.returncode == 0, ended.stderr
            assert ended.stdout == f"ended session {record['id']}\n"
            assert http.sessions.deletes == 1
            async with asyncio.timeout(patience(10)):
                while (await client.ask("ping")).status != 404:
                    await asyncio.sleep(0.02)
        await process.stop()


@pytest.mark.promise("gateway.config")
def test_a_port_that_is_none_is_told(tmp_path: Path) -> None:
    done = holdfast_cli("serve", str(written(tmp_path, "mcpServers: {}")), "--port", "99999")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


@pytest.mark.promise("gateway.program")
def test_a_new_token_and_what_is_not_there(tmp_path: Path) -> None:
    made = json.loads(holdfast_cli("token", "new", "alice", "--json").stdout)
    assert made["hash"] == hash_of(made["token"])
    assert made["principal"] == "alice"
    missing = holdfast_cli("sessions", "ls", "--store", f"sqlite:///{tmp_path}/none.db")
    assert missing.returncode == 2  # no store is not an empty one
    assert "none.db" in missing.stderr
