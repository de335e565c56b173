"""The record of a session: what a restart, another process and a rest leave of it."""

import signal
import sys
from pathlib import Path

import pytest

from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import NOTEBOOK, Process, gateway
from tests.links.server_process import RealServer


@pytest.mark.promise("gateway.durable")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restarted_gateway_goes_on_with_the_session(tmp_path: Path, how: int) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        async with RawClient(await process.start(store)) as client:
            await client.initialize()
            assert [(await client.call("counter__count")).text for _ in range(2)] == ["1", "2"]
            await process.stop(how)
            client.url = await process.start(store)
            assert [(await client.call("counter__count")).text for _ in range(2)] == ["3", "4"]
            assert (await client.delete()).status == 204
            assert await process.stop() == 0
    sessions = [request for request in http.requests if request.method == "initialize"]
    assert len(sessions) <= 3  # the client's once; each process's own, for its lists
    assert http.sessions.deletes >= 1


@pytest.mark.promise("gateway.durable")
async def test_two_processes_serve_one_session_alternately(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        async with gateway(tmp_path, servers, store=store) as one, gateway(tmp_path, servers, store=store) as other:
            async with RawClient(one.url) as client:
                await client.initialize()
                for number in range(1, 9):
                    client.url = one.url if number % 2 else other.url
                    assert (await client.call("counter__count")).text == str(number)
                # The server forgets: one of the two heals, the other takes up what it made.
                http.sessions.sessions.clear()
                told = await client.call("counter__count")
                assert "call again to continue" in told.text
                client.url = one.url
                texts = [(await client.call("counter__count")).text for _ in range(2)]
                client.url = other.url
                texts += [(await client.call("counter__count")).text for _ in range(2)]
                numbers = [int(text) for text in texts if text.isdigit()]
                assert numbers == list(range(1, len(numbers) + 1))
                assert len(numbers) >= 3  # the other process may have to be told, too
                # Ended in one, it is over in the other.
                assert (await client.delete()).status == 204
                assert one.gateway is not None
                await until(lambda: one.gateway is not None and not one.gateway.sessions.live)
                client.url = one.url
                assert (await client.call("counter__count")).status == 404


@pytest.mark.promise("gateway.durable")
async def test_a_program_lives_in_one_process_and_its_loss_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    notebook = {"command": sys.executable, "args": ["-m", "holdfast.gateway.demo.notebook"], "era": "2025"}
    async with RawClient("") as client:
        async with gateway(tmp_path, {"notebook": notebook}, store=store) as one:
            client.url = one.url
            await until(lambda: one.gateway is not None and one.gateway.table.tools, 20)
            await client.initialize()
            assert (await client.call("notebook__write", text="a")).text == "noted, 1 so far"
            async with gateway(tmp_path, {"notebook": notebook}, store=store) as other:
                client.url = other.url
                refused = await client.call("notebook__write", text="b")
                assert refused.result["_meta"]["dev.holdfast/error"]["family"] == "Unavailable"
                assert one.url not in str(refused.last)
                assert any(f"runs in another gateway process, {one.url}" in text for text in caplog.messages)
        async with gateway(tmp_path, {"notebook": notebook}, store=store) as third:
            client.url = third.url
            told = await client.call("notebook__write", text="c")
            assert told.result["isError"]
            assert "call again" in told.text
            assert (await client.call("notebook__write", text="c")).text == "noted, 1 so far"


@pytest.mark.promise("gateway.durable")
async def test_subscriptions_and_log_level_are_kept_in_a_store_on_disk(tmp_path: Path) -> None:
    async with RealServer("sdk") as real:
        servers = {"real": {"url": real.url, "era": "2025"}}
        async with (
            gateway(tmp_path, servers, store=f"sqlite:///{tmp_path}/s.db") as program,
            RawClient(program.url) as client,
        ):
            await client.initialize()
            assert program.gateway is not None
            assert (await client.ask("logging/setLevel", {"level": "warning"})).result == {}
            session = next(iter(program.gateway.sessions.live.values()))
            await session.record.set_subscription("note://one", "real")
            await session.record.read()
            assert session.record.log_level == "warning"
            assert session.record.subscriptions == {"note://one": "real"}
            await session.record.set_subscription("note://one", None)
            await session.record.read()
            assert session.record.subscriptions == {}


@pytest.mark.promise("gateway.durable")
async def test_a_killed_gateway_on_the_same_port_has_its_programs_back(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    process = Process(tmp_path, {"notebook": NOTEBOOK})
    async with RawClient(await process.start(store)) as client:
        await client.initialize()
        assert (await client.call("notebook__write", text="a")).text == "noted, 1 so far"
        await process.stop(signal.SIGKILL)
        client.url = await process.start(store)
        assert "call again" in (await client.call("notebook__write", text="b")).text
        assert (await client.call("notebook__write", text="b")).text == "noted, 1 so far"
    await process.stop()
