"""The log of a session: the way back, undo and fork, over versions and ten thousand entries."""

import time
from typing import Any

import pytest
from pydantic import Field

import holdfast
from holdfast.core.models import Principal
from holdfast.state.model import SessionState, migrate
from holdfast.state.sessions import Sessions
from holdfast.state.storage import history
from holdfast.state.storage.entries import KIND
from holdfast.stores import open_store

pytestmark = pytest.mark.anyio

ALICE = Principal("alice")


class Basket(holdfast.SessionState):
    items: list[str] = []
    count: int = 0
    note: str = ""
    price: float = 0.0


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
        assert [(entry.rev, entry.label) async for entry in forked.log] == [(0, "step 1"), (1, "step 2")]
        assert forked.parent == (session.handle, 3)
        assert (await session.undo()).count == 4
        assert (await session.undo()).count == 3
        assert (await session.redo()).count == 4
        for wrong in (0, 99, -1):
            with pytest.raises(holdfast.errors.NotFound):
                await session.at(wrong)


@pytest.mark.promise("state.history")
async def test_an_undo_gets_behind_entries_that_changed_nothing() -> None:
    session = await holdfast.Sessions(Basket).begin()
    await session.update(lambda state: state.items.append("a"))
    await session.update(lambda state: state.items.append("b"))
    await session.log.add("thought")
    assert (await session.undo()).items == ["a"]
    assert (await session.undo()).items == []


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
async def test_ten_thousand_entries_make_no_edit_dearer_and_a_fork_takes_the_newest_along(url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Basket, store)
        long, short = await sessions.begin(), await sessions.begin()
        for _ in range(20):
            record = await store.get(KIND, long.handle)
            assert record is not None
            notes: list[Any] = [{"label": "note", "data": number, "was": {}} for number in range(500)]
            await store.commit(record, expect=record.rev, entries=notes)

        async def edits(session: "holdfast.Session[Basket]") -> float:
            began = time.perf_counter()
            for number in range(20):
                async with session.edit() as draft:
                    draft.price += number + 1
            return time.perf_counter() - began

        best = min([await edits(long) / await edits(short) for _ in range(5)])
        assert best < 2.0  # noise apart, the same
        forked = await long.fork()
        assert len([entry async for entry in forked.log]) == history.INHERITED
        assert len([entry async for entry in long.log]) == 10_000 + 100
        assert (await forked.read()).price == (await long.read()).price
