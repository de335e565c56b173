"""Notifications for a session that does not read: bounded in bytes, and told apart by what may be left out."""

import asyncio
from typing import Any

import anyio
import pytest
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError

from holdfast.errors import LimitReached
from holdfast.links import LinkDispatcher, LinkTransport, backlog
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import link_to

pytestmark = pytest.mark.anyio
LOG, CHANGED = "notifications/message", "notifications/resources/updated"


def note(method: str, number: int, size: int = 1000) -> dict[str, Any]:
    params = {"level": "info", "data": "x" * size, "uri": f"a:{number}"}
    return {"jsonrpc": "2.0", "method": method, "params": params}


def number_of(item: Any) -> int:
    return int(item.message.params["uri"][2:])


@pytest.mark.promise("link.backlog")
async def test_the_oldest_log_messages_are_left_out_and_everything_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "BACKLOG_BYTES", 500_000)
    async with FaultServer() as server:
        transport = LinkTransport(link_to(server.url))
        async with transport as (read, _):
            await transport._link.open()
            await until(lambda: server.streams == 1)
            for number in range(1000):
                server.push(note(LOG, number))
            await until(lambda: transport._backlog.dropped >= 500)
            server.push(note(CHANGED, 1000))
            await until(lambda: transport._backlog.dropped + len(transport._backlog._held) == 1001)
            assert transport._backlog.used <= 500_000
            got: list[int] = []
            async with asyncio.timeout(patience(20)):
                while 1000 not in got:
                    got.append(number_of(await read.receive()))
            assert got == sorted(got)
            assert got[-2] == 999  # the newest are kept
            assert transport._backlog.used == 0


@pytest.mark.promise("link.backlog")
async def test_a_session_for_which_other_notifications_do_not_fit_ends_with_a_typed_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "BACKLOG_BYTES", 100_000)
    async with FaultServer() as server:
        transport = LinkTransport(link_to(server.url))
        with pytest.raises(MCPError, match="limit") as raised:
            async with transport as (read, _):
                await transport._link.open()
                await until(lambda: server.streams == 1)
                for number in range(300):
                    server.push(note(CHANGED, number))
                await until(lambda: transport._failure is not None)
                with pytest.raises(anyio.EndOfStream):
                    async with asyncio.timeout(patience(20)):
                        while True:
                            await read.receive()
        assert isinstance(raised.value.__cause__, LimitReached)


@pytest.mark.promise("link.backlog")
async def test_a_dispatcher_ends_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "BACKLOG_BYTES", 100_000)
    stuck: list[str] = []

    async def never(context: Any, method: str, params: Any) -> None:
        stuck.append(method)
        await anyio.sleep_forever()

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    async with FaultServer() as server, link_to(server.url) as link:
        dispatcher = LinkDispatcher(link)
        running = asyncio.create_task(dispatcher.run(nothing, never))
        await link.open()
        await until(lambda: server.streams == 1)
        for number in range(300):
            server.push(note(LOG, number))
        await until(lambda: len(stuck) > 20)
        assert not running.done()  # what does not fit of them is left out
        server.push(note(CHANGED, 0))
        await asyncio.wait((running,), timeout=patience(20))
        error = running.exception()
        assert isinstance(error, BaseExceptionGroup)
        assert isinstance(error.exceptions[0].__cause__, LimitReached)


@pytest.mark.promise("link.backlog")
async def test_a_session_that_reads_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "BACKLOG_BYTES", 100_000)
    got: list[int] = []

    async def take(message: Any) -> None:
        got.append(int(message.params.uri[2:]) if hasattr(message, "params") else -1)

    async with FaultServer() as server:
        transport = LinkTransport(link_to(server.url))
        async with transport as (read, write), ClientSession(read, write, message_handler=take) as session:
            await session.initialize()
            await until(lambda: server.streams == 1)
            for number in range(300):
                server.push(note(CHANGED, number))
                await until(lambda number=number: len(got) == number + 1)
            assert transport._backlog.dropped == 0
