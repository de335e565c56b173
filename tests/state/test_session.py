"""One session: updates that are all kept, edits that are whole or nothing, and what is refused."""

import asyncio
from functools import partial
from typing import Any

import pytest
from pydantic import field_validator

import holdfast
from holdfast.core.models import Principal
from holdfast.state.sessions import Sessions
from holdfast.stores import open_store
from tests.state.basket import ALICE, Basket

pytestmark = pytest.mark.anyio


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
        with pytest.raises(holdfast.errors.Conflict):
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


def _raises(_: Basket) -> None:
    raise TimeoutError


@pytest.mark.promise("state.updates")
async def test_nothing_done_inside_an_edit_hides_somebody_elses_write() -> None:
    sessions = holdfast.Sessions(Basket)
    for number in range(5):
        mine = await sessions.begin()
        other = await sessions.find(mine.handle)
        inside: list[Any] = [
            partial(mine.log.add, "hello"),
            mine.read,
            partial(mine.at, 1),
            mine.fork,
            partial(mine.update, lambda state: state.items.append("inner")),
        ]
        for held in (mine.edit, mine.lease):
            with pytest.raises(holdfast.errors.Conflict):
                async with held() as draft:
                    draft.note = "mine"
                    await other.update(lambda state: state.items.append("other"))
                    await inside[number]()
        state = await mine.read()
        assert state.items.count("other") == 2
        assert state.note == ""
    mine = await sessions.begin()

    async def append(item: str, turns: int) -> None:
        async with mine.edit() as draft:
            draft.items.append(item)
            for _ in range(turns):
                await asyncio.sleep(0)

    done = await asyncio.gather(append("x", 9), append("y", 1), return_exceptions=True)
    told = [each for each in done if isinstance(each, holdfast.errors.Conflict)]
    assert len((await mine.read()).items) == 2 - len(told)


@pytest.mark.promise("state.bad-input")
async def test_a_function_that_returns_something_else_is_told() -> None:
    session = await holdfast.Sessions(Basket).begin(state=Basket(items=["a", ""]))

    async def later(state: Basket) -> None:
        state.note = "x"

    wrong: list[Any] = [lambda state: state.items.pop(), lambda state: 0, later]
    for change in wrong:
        with pytest.raises(holdfast.UsageError, match="the function must return None or a state"):
            await session.update(change)

    class Empty(holdfast.SessionState):
        items: list[str] = []

        def __len__(self) -> int:
            return len(self.items)

    full = await holdfast.Sessions(Empty).begin(state=Empty(items=["x"]))
    assert (await full.update(lambda _: Empty())).items == []


@pytest.mark.promise("state.bad-input")
async def test_a_validator_that_refuses_leaves_the_state_as_it_was() -> None:
    class Small(holdfast.SessionState):
        items: list[str] = []

        @field_validator("items")
        @classmethod
        def few(cls, items: list[str]) -> list[str]:
            if len(items) > 2:
                raise ValueError("a basket holds two")
            return items

    session = await holdfast.Sessions(Small).begin()
    for _ in range(2):
        await session.update(lambda state: state.items.append("x"))
    with pytest.raises(holdfast.UsageError, match="a basket holds two"):
        await session.update(lambda state: state.items.append("x"))
    assert len((await session.read()).items) == 2


@pytest.mark.promise("state.bad-input")
async def test_limits_are_told_with_figures_and_the_state_stays() -> None:
    alice = Principal("alice")
    sessions = holdfast.Sessions(Basket, max_bytes=2_000, quota=2)
    session = await sessions.begin(alice)
    with pytest.raises(holdfast.errors.LimitReached) as refused:
        async with session.edit() as draft:
            draft.items = ["x" * 3_000]
    assert "2000" in str(refused.value).replace(",", "")
    assert (await session.read()).items == []
    await session.fork()
    for more in (sessions.begin(alice), session.fork()):
        with pytest.raises(holdfast.errors.LimitReached, match="2 of 2"):
            await more


@pytest.mark.promise("state.updates")
async def test_a_slow_write_is_not_given_up_and_never_called_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.state.storage.session_record.UPDATE_SECONDS", 0.0)  # over before it began
    async with open_store("memory:") as store:
        session = await Sessions(Basket, store).begin(ALICE)
        commit = store.commit_all

        async def slow(*args: Any, **kwargs: Any) -> Any:
            done = await commit(*args, **kwargs)
            await asyncio.sleep(0)  # an answer that takes its time
            return done

        store.commit_all = slow  # type: ignore[method-assign]
        await session.update(lambda state: setattr(state, "count", 1))
        assert (await session.read()).count == 1

        async def beaten(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            raise holdfast.errors.Conflict("somebody else wrote first")

        store.commit_all = beaten  # type: ignore[method-assign]
        with pytest.raises(holdfast.errors.Busy, match="nothing was written"):
            await session.update(lambda state: setattr(state, "count", 2))
        with pytest.raises(TimeoutError):  # the author's own
            await session.update(_raises)


@pytest.mark.promise("state.end")
async def test_an_end_wins_over_every_later_write(url: str) -> None:
    async with open_store(url) as store:
        sessions = Sessions(Basket, store)
        session = await sessions.begin(ALICE)
        late = await sessions.find(session.handle, ALICE)
        assert await session.end()
        assert not await session.end()
        for write in (late.update(lambda s: s.model_copy(update={"count": 1})), late.read(), late.undo()):
            with pytest.raises(holdfast.errors.Ended):
                await write
        with pytest.raises(holdfast.errors.Ended):
            await sessions.find(session.handle, ALICE)
