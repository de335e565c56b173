"""A session that one process ends while another process has its calls under way."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import Process, gateway
from tests.gateway.parking.asking_backend import asking_backend
from tests.gateway.scripted_backend import Scripted

NEVER = 600  # seconds that an end would leave its calls, if it did not cut them


@asynccontextmanager
async def two_processes(
    folder: Path, entry: dict[str, Any], **sessions: Any
) -> AsyncGenerator[tuple[RawClient, RawClient]]:
    """A client of each of two gateways in processes of their own, on one store."""
    store, servers = f"sqlite:///{folder}/s.db", {"s": entry}
    settings: dict[str, Any] = {"drain": NEVER, **sessions}
    process = Process(folder, servers, sessions=settings)
    url = await process.start(store)
    try:
        async with gateway(folder, servers, store=store, sessions=settings) as other:
            async with RawClient(url) as here, RawClient(other.url) as there:
                await until(lambda: other.gateway is not None and other.gateway.table.tools)
                yield here, there
    finally:
        await process.stop(signal.SIGKILL)


def family(answer: dict[str, Any]) -> str:
    return answer["result"]["_meta"]["dev.holdfast/error"]["family"]


@pytest.mark.promise("gateway.durable")
async def test_a_session_deleted_at_another_process_answers_its_calls_here_at_once(tmp_path: Path) -> None:
    async with Scripted().serving() as backend, two_processes(tmp_path, backend.entry) as (here, there):
        await here.initialize()
        there.session = here.session
        backend.gates["tools/call"] = asyncio.Event()
        async with here.stream() as own:
            calls = [asyncio.create_task(here.call("s__t")) for _ in range(3)]
            await until(lambda: backend.open_calls == 3)
            assert (await there.delete()).status == 204
            async with asyncio.timeout(patience(20)):
                answers = [await call for call in calls]
                with pytest.raises(EOFError):
                    await own.next(20)
        assert [family(answer.last) for answer in answers] == ["OutcomeUnknown"] * 3
        await until(lambda: backend.count("notifications/cancelled") == 3)
        for client in (here, there):
            assert (await client.call("s__t")).status == 404
        assert backend.answered == 0


@pytest.mark.promise("gateway.durable")
async def test_a_handle_ended_at_another_process_answers_its_calls_here_at_once(tmp_path: Path) -> None:
    async with Scripted().serving() as backend, two_processes(tmp_path, backend.entry, handles=True) as (here, there):
        opened = (await here.call_2026("holdfast__open_session")).result
        handle = opened["structuredContent"]["holdfast_session"]
        backend.gates["tools/call"] = asyncio.Event()
        call = asyncio.create_task(here.call_2026("s__t", holdfast_session=handle))
        await until(lambda: backend.open_calls == 1)
        assert "isError" not in (await there.call_2026("holdfast__end_session", holdfast_session=handle)).result
        async with asyncio.timeout(patience(20)):
            assert family((await call).last) == "OutcomeUnknown"
        await until(lambda: backend.count("notifications/cancelled") == 1)
        for client in (here, there):
            assert (await client.call_2026("s__t", holdfast_session=handle)).result["isError"]


@pytest.mark.promise("gateway.durable")
async def test_a_call_at_another_process_is_cut_though_its_client_was_being_asked(tmp_path: Path) -> None:
    """The question goes with the session: nobody waits for an answer that can't come any more."""
    form = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
    asked = {"name": "s__ask", "arguments": {"rounds": [[form]]}}
    async with asking_backend() as backend, two_processes(tmp_path, {"url": backend.url}) as (here, there):
        await here.initialize({"elicitation": {}})
        there.session = here.session
        call = {"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": asked}
        async with here.stream("POST", call) as events:
            assert (await events.next(20))["method"] == "elicitation/create"
            assert (await there.delete()).status == 204
            answers = [await events.next(20)]
            while "result" not in answers[-1]:
                answers.append(await events.next(20))
        assert family(answers[-1]) == "OutcomeUnknown"


@pytest.mark.promise("gateway.isolation")
async def test_another_caller_cuts_no_calls(tmp_path: Path) -> None:
    async with Scripted().serving() as backend, two_processes(tmp_path, backend.entry) as (here, there):
        await here.initialize()
        await there.initialize()
        gate = backend.gates["tools/call"] = asyncio.Event()
        call = asyncio.create_task(here.call("s__t"))
        await until(lambda: backend.open_calls == 1)
        assert (await there.delete()).status == 204  # of its own session
        gate.set()
        assert (await call).result == {"content": []}
