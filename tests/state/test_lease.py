"""Long turns: others are kept out, dead and cancelled holders leave nothing behind, a renewal is use."""

import asyncio
import sys
from typing import Any

import pytest

import holdfast
from holdfast.state.sessions import Sessions
from holdfast.state.storage.entries import KIND
from holdfast.stores import open_store
from tests.deadlines import patience
from tests.state.basket import ALICE, Basket
from tests.state.turns import lasts

pytestmark = pytest.mark.anyio


@pytest.mark.promise("state.leases")
async def test_a_lease_keeps_others_out_and_a_lost_one_writes_nothing() -> None:
    clock = holdfast.stores.ManualClock()
    async with open_store("memory:", clock=clock) as store:
        sessions = Sessions(Basket, store)
        session = await sessions.begin(ALICE)
        other = await sessions.find(session.handle, ALICE)
        async with session.lease(ttl=60) as draft:
            with pytest.raises(holdfast.errors.Busy):
                async with other.lease():
                    pass
            draft.note = "long turn"
        assert (await other.read()).note == "long turn"
        with pytest.raises(holdfast.errors.Conflict):
            async with session.lease(ttl=60) as draft:
                draft.note = "too late"
                clock.advance(61)  # its holder slept; another may go on
                async with other.lease() as theirs:
                    theirs.note = "theirs"
        assert (await other.read()).note == "theirs"


HOLDS = """
import asyncio, sys
import holdfast
from tests.state.companions.writing import Studio, Writer

async def main(url, handle):
    sessions = holdfast.Sessions(Studio, url)
    session = await sessions.find(handle)
    writer = await holdfast.Companions(Writer, sessions).for_session(session)
    async with session.lease(ttl=2) as state, writer.lease("draft", to="drafted", ttl=2) as turn:
        state.topic = turn.state.text = "half-done"
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.promise("state.leases")
async def test_a_killed_holder_leaves_its_lease_and_its_turn_and_nothing_half_done(url: str) -> None:
    from tests.state.companions.writing import Studio, Writer

    async with open_store(url) as store:
        sessions = Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions)
        session = await sessions.begin()
        writer = await writers.for_session(session)
        command = (sys.executable, "-c", HOLDS, url, session.handle)
        holder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert holder.stdout is not None
        assert await asyncio.wait_for(holder.stdout.readline(), patience(30)) == b"held\n"
        with pytest.raises(holdfast.errors.Busy):
            async with session.lease():
                pass
        with pytest.raises(holdfast.errors.Busy):
            async with writer.step("draft", to="drafted"):
                pass
        holder.kill()
        await holder.wait()

        async def lease() -> None:
            async with session.lease() as state:
                assert state.topic == ""
                state.topic = "mine"

        async def turn() -> None:
            async with writer.lease("draft", to="drafted") as draft:
                assert draft.state.text == ""

        async with asyncio.timeout(patience(30)):
            for work in (lease, turn):
                while True:
                    try:
                        await work()
                        break
                    except holdfast.errors.Busy:
                        await asyncio.sleep(0.05)  # as a caller does who was told to come back
        assert ((await session.read()).topic, writer.phase) == ("mine", "drafted")


@pytest.mark.promise("state.leases")
@pytest.mark.parametrize("at", ["claim", "release"])
async def test_a_lease_whose_caller_is_cancelled_is_free_at_once(at: str) -> None:
    async with holdfast.open_store("memory:") as store:
        sessions = holdfast.Sessions(Basket, store)
        session = await sessions.begin()
        real, entered, answered = getattr(store, at), asyncio.Event(), asyncio.Event()

        async def slow(*args: Any, **kwargs: Any) -> Any:
            done = await real(*args, **kwargs) if at == "claim" else None
            entered.set()
            await answered.wait()  # the store has done it, and its answer is under way
            return done if at == "claim" else await real(*args, **kwargs)

        setattr(store, at, slow)

        async def work() -> None:
            async with session.lease():
                pass

        task = asyncio.ensure_future(work())
        await asyncio.wait_for(entered.wait(), patience(10))
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        setattr(store, at, real)
        answered.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, patience(10))
        assert await store.holder(KIND, session.handle) is None


@pytest.mark.promise("state.leases")
async def test_a_turn_longer_than_the_idle_time_keeps_its_session() -> None:
    sessions = holdfast.Sessions(Basket, idle=1.0)
    session = await sessions.begin()
    async with session.lease(ttl=0.9) as draft:
        draft.note = "long"
        await lasts(sessions)
    assert (await session.read()).note == "long"
