"""The gateway itself: what it started is stopped again."""

import asyncio
from pathlib import Path

import pytest

from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.gateway.gateway import Gateway
from holdfast.stores import open_store
from tests.deadlines import patience, until
from tests.gateway.gateways import config_of


@pytest.mark.promise("gateway.program")
async def test_a_start_that_is_cancelled_leaves_no_task_and_no_record_behind(tmp_path: Path) -> None:
    connections: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent, open_store("memory:") as store, asyncio.timeout(patience(30)):
        # Where no setting says which server wins a name, the start waits for this one.
        servers = {"silent": {"url": f"http://127.0.0.1:{port}/mcp", "era": "2025"}}
        settings = {"naming": {"mode": "none"}, "sessions": {"start": 600}, "listen": {"port": 0, "linger": 600}}
        before = asyncio.all_tasks()
        running = Gateway(config_of(tmp_path, servers, **settings), store).running()
        starting = asyncio.create_task(running.__aenter__())
        await until(lambda: connections)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        for writer in connections:
            writer.close()
            await writer.wait_closed()
        await until(lambda: not asyncio.all_tasks() - before)
        assert not (await store.scan(kind=PROCESSES)).records
