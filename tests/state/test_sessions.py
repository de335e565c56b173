"""Typed state of sessions: no lost update, versions, history, forks, leases, and what outsiders are told."""

import asyncio
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

import holdfast
from holdfast.core.models import Principal
from holdfast.state.log import KIND
from holdfast.state.model import SessionState, migrate
from holdfast.state.sessions import Sessions
from holdfast.stores import open_store
from holdfast.stores.sealing import new_key

pytestmark = pytest.mark.anyio

ALICE = Principal("alice")


class Basket(SessionState):
    items: list[str] = Field(default_factory=list)
    count: int = 0
    note: str = ""


@pytest.mark.promise("state.updates")
async def test_twenty_parallel_increments_are_twenty(url: str) -> None:
    async with open_store(url) as one, open_store(url) as other:  # as two processes have them
        begun = await Sessions(Basket, one).begin(ALICE)

        def up(state: Basket) -> None:
            state.count += 1

        async def increment(number: int) -> None:
            sessions = Sessions(Basket, one if number % 2 else other)
            await (await sessions.find(begun.handle, ALICE)).update(up)

        await asyncio.gather(*(increment(number) for number in range(20)))
        assert (await begun.read()).count == 20
        assert begun.rev == 21


@pytest.mark.promise("state.updates")
async def test_different_fields_at_once_are_all_kept(url: str) -> None:
    async with open_store(url) as store:
        sessions = Sessions(Basket, store)
        begun = await sessions.begin(ALICE)

        async def add(item: str) -> None:
            def change(state: Basket) -> None:
                state.items.append(item)
                state.items.sort()

            await (await sessions.find(begun.handle, ALICE)).update(change)

        async def write() -> None:
            await (await sessions.find(begun.handle, ALICE)).update(lambda s: s.model_copy(update={"note": "moss"}))

        await asyncio.gather(*(add(str(number)) for number in range(5)), write())
        state = await begun.read()
        assert state.items == ["0", "1", "2", "3", "4"]
        assert state.note == "moss"


@pytest.mark.promise("state.updates")
async def test_an_edit_is_whole_or_nothing_and_a_conflict_is_told(url: str) -> None:
    async with open_store(url) as store:
        sessions = Sessions(Basket, store)
        session = await sessions.begin(ALICE)
        with pytest.raises(RuntimeError):
            async with session.edit() as draft:
                draft.items.append("lost")
                raise RuntimeError("half-way")
        assert (await session.read()).items == []
        other = await sessions.find(session.handle, ALICE)
        with pytest.raises(holdfast.Conflict):
            async with session.edit() as draft:
                async with other.edit() as faster:
                    faster.note = "first"
                draft.note = "second"
        assert (await session.read()).note == "first"
        rev = session.rev
        async with session.edit() as draft:
            draft.note = "first"  # nothing changed: nothing is written
        assert session.rev == rev
        with pytest.raises(holdfast.UsageError, match="does not validate"):
            async with session.edit() as draft:
                draft.items.append(7)  # type: ignore[arg-type]
        assert (await session.read()).items == []


@pytest.mark.promise("state.history")
async def test_going_back_forking_and_undoing(url: str) -> None:
    async with open_store(url) as store:
        sessions = Sessions(Basket, store, history=10)
        session = await sessions.begin(ALICE)
        for number in range(1, 6):
            async with session.edit(f"step {number}") as draft:
                draft.count = number
                draft.items = [*draft.items, str(number)]
        assert [(await session.at(rev)).count for rev in range(1, 7)] == [0, 1, 2, 3, 4, 5]
        assert (await session.at(3)).items == ["1", "2"]
        labels = [entry.label for entry in await session.log.last(10)]
        assert labels == [f"step {number}" for number in range(1, 6)]
        forked = await session.fork(3)
        assert (await forked.read()).items == ["1", "2"]
        assert [entry async for entry in forked.log] == []  # history is not copied
        assert forked.parent == (session.handle, 3)
        assert (await session.undo()).count == 4
        assert (await session.undo()).count == 5  # an undo is a revision like any other
        for wrong in (0, 99, -1):
            with pytest.raises(holdfast.NotFound):
                await session.at(wrong)


@pytest.mark.promise("state.end")
async def test_an_end_wins_over_every_later_write(url: str) -> None:
    async with open_store(url) as store:
        sessions = Sessions(Basket, store)
        session = await sessions.begin(ALICE)
        late = await sessions.find(session.handle, ALICE)
        assert await session.end()
        assert not await session.end()
        for write in (late.update(lambda s: s.model_copy(update={"count": 1})), late.read(), late.undo()):
            with pytest.raises(holdfast.Ended):
                await write
        with pytest.raises(holdfast.Ended):
            await sessions.find(session.handle, ALICE)


@pytest.mark.promise("state.owners")
async def test_another_callers_session_answers_like_none(url: str) -> None:
    alice, bob = (Principal(f"{name}-{secrets.token_hex(4)}") for name in ("alice", "bob"))  # the store is shared
    async with open_store(url) as store:
        sessions = Sessions(Basket, store, quota=2)
        mine = await sessions.begin(alice)
        told: list[tuple[type, str]] = []
        for handle, caller in ((mine.handle, bob), ("s_never", bob), ("s_never", alice), ("odd\x00", alice), ("", bob)):
            with pytest.raises(holdfast.NotFound) as refused:
                await sessions.find(handle, caller)
            told.append((type(refused.value), refused.value.what))
        assert len(set(told)) == 1
        ended = await sessions.begin(alice)
        with pytest.raises(holdfast.LimitReached):
            await sessions.begin(alice)
        await ended.end()
        with pytest.raises(holdfast.NotFound):  # an end is the owner's to know
            await sessions.find(ended.handle, bob)
        await sessions.begin(bob)
        assert [each.handle for each in await sessions.of(alice)] == [mine.handle]


@pytest.mark.promise("state.leases")
async def test_a_lease_keeps_others_out_and_a_lost_one_writes_nothing() -> None:
    clock = holdfast.ManualClock()
    async with open_store("memory:", clock=clock) as store:
        sessions = Sessions(Basket, store)
        session = await sessions.begin(ALICE)
        other = await sessions.find(session.handle, ALICE)
        async with session.lease(ttl=60) as draft:
            with pytest.raises(holdfast.Busy):
                async with other.lease():
                    pass
            draft.note = "long turn"
        assert (await other.read()).note == "long turn"
        with pytest.raises(holdfast.Conflict):
            async with session.lease(ttl=60) as draft:
                draft.note = "too late"
                clock.advance(61)  # its holder slept; another may go on
                async with other.lease() as theirs:
                    theirs.note = "theirs"
        assert (await other.read()).note == "theirs"


@pytest.mark.promise("state.versions")
async def test_older_state_is_brought_up_and_newer_is_refused(url: str) -> None:
    class Draft1(SessionState):
        text: str = ""
        notes: list[str] = Field(default_factory=list)

    class Draft3(SessionState, version=3):
        text: str = ""
        critiques: list[str] = Field(default_factory=list)
        words: int = 0

        @migrate(from_version=1)
        def _v1(raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[misc]  # noqa: N805
            return {"text": raw["text"], "critiques": raw["notes"]}

        @migrate(from_version=2)
        def _v2(raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[misc]  # noqa: N805
            return {**raw, "words": len(raw["text"].split())}

    async with open_store(url) as store:
        old = await Sessions(Draft1, store, name="draft").begin(ALICE, Draft1(text="two words", notes=["short"]))
        new = await Sessions(Draft3, store, name="draft").find(old.handle, ALICE)
        assert (new.state.critiques, new.state.words) == (["short"], 2)
        async with new.edit():
            pass  # read by newer code, and written back as newer
        stored = await store.get(KIND, old.handle)
        assert stored is not None
        assert stored.data["v"] == 3  # type: ignore[index, call-overload]
        with pytest.raises(holdfast.CorruptRecord, match="version 3"):
            await Sessions(Draft1, store, name="draft").find(old.handle, ALICE)

    class Raises(SessionState, version=2):
        @migrate(from_version=1)
        def _v1(raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[misc]  # noqa: N805
            raise ValueError("no")

    with pytest.raises(holdfast.CorruptRecord, match="migration of Raises"):
        Raises.read({"v": 1, "state": {}}, "x")
    with pytest.raises(holdfast.UsageError, match="no default"):

        class Wants(SessionState):
            name: str

    with pytest.raises(holdfast.UsageError, match="no migration from version 1"):

        class Gap(SessionState, version=3):
            @migrate(from_version=2)
            def _v2(raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[misc]  # noqa: N805
                return raw


@pytest.mark.promise("state.history")
async def test_an_edit_costs_the_same_however_long_the_log_is() -> None:
    async with open_store("memory:") as store:
        calls: list[str] = []
        sessions = Sessions(Basket, store)
        session = await sessions.begin(ALICE)
        for number in range(300):
            async with session.edit() as draft:
                draft.count = number + 1
        original = store.log

        async def log(*args: Any, **kwargs: Any) -> Any:
            calls.append("log")
            return await original(*args, **kwargs)

        store.log = log  # type: ignore[method-assign]
        async with session.edit() as draft:
            draft.count = 0
        assert calls == []  # an edit reads one record and writes one
        record = await store.get(KIND, session.handle)
        assert len(str(record)) < 2_000  # and the record does not grow


@pytest.mark.promise("state.history")
async def test_going_back_over_a_change_of_versions(url: str) -> None:
    class First(SessionState):
        notes: list[str] = Field(default_factory=list)
        x: Any = 1

    class Second(SessionState, version=2):
        critiques: list[str] = Field(default_factory=list)
        x: Any = 1

        @migrate(from_version=1)
        @staticmethod
        def _v1(raw: dict[str, Any]) -> dict[str, Any]:
            return {"critiques": raw["notes"], "x": raw["x"]}

    async with open_store(url) as store:
        old = await Sessions(First, store, name="draft").begin(ALICE)
        for number in range(3):
            await old.update(lambda state, number=number: state.notes.append(str(number)))  # type: ignore[misc]
        new = await Sessions(Second, store, name="draft").find(old.handle, ALICE)
        assert (await new.at(2)).critiques == ["0"]  # read by newer code, and not yet written by it
        assert (await new.fork(3)).state.critiques == ["0", "1"]
        await new.update(lambda state: state.critiques.append("3"))
        assert [(await new.at(rev)).critiques for rev in (1, 2, 4, 5)] == [[], ["0"], list("012"), list("0123")]
        assert (await new.undo()).critiques == list("012")
        rev = new.rev
        async with new.edit() as draft:
            draft.x = True  # which Python takes for 1
        assert new.rev == rev + 1
        assert (await new.read()).x is True
        assert (await new.at(rev)).x == 1
        assert await new.log.last(0) == []
        assert [entry.label for entry in await new.log.last(2, label="update")] == ["update", "update"]


@pytest.mark.promise("state.updates")
async def test_a_slow_write_is_not_given_up_and_never_called_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.state.session.UPDATE_SECONDS", 0.0)  # over before it began
    async with open_store("memory:") as store:
        session = await Sessions(Basket, store).begin(ALICE)
        commit = store.commit

        async def slow(*args: Any, **kwargs: Any) -> Any:
            done = await commit(*args, **kwargs)
            await asyncio.sleep(0)  # an answer that takes its time
            return done

        store.commit = slow  # type: ignore[method-assign]
        await session.update(lambda state: setattr(state, "count", 1))
        assert (await session.read()).count == 1

        async def beaten(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            raise holdfast.Conflict("somebody else wrote first")

        store.commit = beaten  # type: ignore[method-assign]
        with pytest.raises(holdfast.Busy, match="nothing was written"):
            await session.update(lambda state: setattr(state, "count", 2))
        with pytest.raises(TimeoutError):  # the author's own
            await session.update(_raises)


def _raises(_: Basket) -> None:
    raise TimeoutError


HOLDS = """
import asyncio, sys
import holdfast
from tests.state.companions.test_companions import Studio, Writer

async def main(url, handle):
    sessions = holdfast.Sessions(Studio, url)
    session = await sessions.find(handle)
    writer = await holdfast.Companions(Writer, sessions).of(session)
    async with session.lease(ttl=2) as state, writer.turn("draft", to="drafted", ttl=2) as turn:
        state.topic = turn.state.text = "half-done"
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.promise("state.leases")
async def test_a_killed_holder_leaves_its_lease_and_its_turn_and_nothing_half_done(url: str) -> None:
    from tests.state.companions.test_companions import Studio, Writer

    async with open_store(url) as store:
        sessions = Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions)
        session = await sessions.begin()
        writer = await writers.of(session)
        command = (sys.executable, "-c", HOLDS, url, session.handle)
        holder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert holder.stdout is not None
        assert await asyncio.wait_for(holder.stdout.readline(), 30) == b"held\n"
        with pytest.raises(holdfast.Busy):
            async with session.lease():
                pass
        with pytest.raises(holdfast.Busy):
            async with writer.step("draft", to="drafted"):
                pass
        holder.kill()
        await holder.wait()

        async def lease() -> None:
            async with session.lease() as state:
                assert state.topic == ""
                state.topic = "mine"

        async def turn() -> None:
            async with writer.turn("draft", to="drafted") as draft:
                assert draft.state.text == ""

        async with asyncio.timeout(30):
            for work in (lease, turn):
                while True:
                    try:
                        await work()
                        break
                    except holdfast.Busy:
                        await asyncio.sleep(0.05)  # as a caller does who was told to come back
        assert ((await session.read()).topic, writer.phase) == ("mine", "drafted")


@pytest.mark.promise("state.owners")
async def test_with_keys_nothing_readable_is_in_the_file(tmp_path: Path) -> None:
    keys, url = [new_key()], f"sqlite:///{tmp_path}/s.db"
    sealed = Sessions(Basket, url, keys=keys)
    session = await sealed.begin(ALICE, Basket(note="in the clear?"))
    assert (await sealed.find(session.handle, ALICE)).state.note == "in the clear?"
    await sealed.close()
    assert not any(b"in the clear?" in file.read_bytes() for file in tmp_path.iterdir())
    other = Sessions(Basket, url, keys=[new_key()])
    with pytest.raises(holdfast.ConfigError, match="add that key to the ring"):
        await other.find(session.handle, ALICE)
    await other.close()


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
        await asyncio.wait_for(entered.wait(), 10)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        setattr(store, at, real)
        answered.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
        assert await store.holder(KIND, session.handle) is None
