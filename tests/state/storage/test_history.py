"""Undo, redo and restore of a session, and the history that its forks take along."""

import json
from typing import Any

import pytest

import holdfast
from holdfast.core.models import Principal
from holdfast.state.storage import history
from holdfast.state.storage.entries import KIND

pytestmark = pytest.mark.anyio
ALICE = Principal("alice")


class Paper(holdfast.SessionState):
    text: str = ""
    words: dict[str, int] = {}


async def written(sessions: "holdfast.Sessions[Paper]", *texts: str) -> "holdfast.Session[Paper]":
    session = await sessions.begin(ALICE)
    for text in texts:
        async with session.edit(f"write {text}") as draft:
            draft.text = text
            draft.words[text] = len(text)
    return session


@pytest.mark.promise("state.undo")
async def test_undo_goes_on_redo_comes_back_and_a_change_ends_the_redo(url: str) -> None:
    async with holdfast.open_store(url) as store:
        session = await written(holdfast.Sessions(Paper, store), *"abcd")
        assert (await session.undo()).text == "c"
        assert (await session.undo(2)).text == "a"
        assert (await session.redo()).text == "b"
        await session.log.add("thought", "a note is no change, and ends no redo")
        assert (await session.redo(2)).text == "d"
        with pytest.raises(holdfast.errors.NotFound, match="nothing to redo"):
            await session.redo()
        assert (await session.undo(4)).text == ""
        with pytest.raises(holdfast.errors.NotFound, match="nothing to undo"):
            await session.undo()
        assert (await session.redo(2)).text == "b"
        with pytest.raises(holdfast.errors.NotFound, match=r"only 2 changes can be undone, not 3"):
            await session.undo(3)
        with pytest.raises(holdfast.errors.NotFound, match=r"only 2 can be redone, not 3"):
            await session.redo(3)
        assert (await session.read()).text == "b"  # a refusal changed nothing
        await session.update(lambda state: setattr(state, "text", "x"), "write x")
        with pytest.raises(holdfast.errors.NotFound, match="nothing to redo"):
            await session.redo()
        assert (await session.undo()).text == "b"
        assert (await session.undo()).text == "a"
        for wrong in (0, -1, True, "2"):
            with pytest.raises(holdfast.UsageError, match="at least 1"):
                await session.undo(wrong)  # type: ignore[arg-type]


@pytest.mark.promise("state.undo")
async def test_a_restore_goes_anywhere_and_is_undone_like_a_change(url: str) -> None:
    async with holdfast.open_store(url) as one, holdfast.open_store(url) as two:
        session = await written(holdfast.Sessions(Paper, one), *"abcd")
        assert (await session.restore(2)).text == "a"
        elsewhere = await holdfast.Sessions(Paper, two).find(session.handle, ALICE)  # another replica goes on
        assert (await elsewhere.restore(4)).text == "c"
        assert (await elsewhere.undo()).text == "a"
        assert (await elsewhere.undo()).text == "d"
        assert (await elsewhere.redo(2)).text == "c"
        [entry] = await elsewhere.log.last(1)
        assert (entry.label, entry.undone_to) == ("redo", 7)
        for wrong in (0, 99):
            with pytest.raises(holdfast.errors.NotFound):
                await elsewhere.restore(wrong)
        with pytest.raises(holdfast.UsageError, match="whole number"):
            await elsewhere.restore("2")  # type: ignore[arg-type]


@pytest.mark.promise("state.undo")
async def test_any_walk_over_undo_and_redo_is_that_of_an_editor() -> None:
    """Against a model: a list of states, and a place in it."""
    session = await written(holdfast.Sessions(Paper, history=1_000))
    states, place = [""], 0
    for number in range(150):
        match (number * 7 + number // 5) % 5:
            case 0 | 1:
                await session.update(lambda state, number=number: setattr(state, "text", str(number)))  # type: ignore[misc]
                states, place = [*states[: place + 1], str(number)], place + 1
            case 2 if place:
                steps = min(place, 1 + number % 3)
                await session.undo(steps)
                place -= steps
            case 3 if place + 1 < len(states):
                await session.redo()
                place += 1
            case _:
                await session.log.add("note", number)
        assert session.state.text == states[place], number


@pytest.mark.promise("state.forks")
async def test_a_fork_has_the_history_of_its_parent_and_goes_back_behind_itself(url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Paper, store)
        parent = await written(sessions, *"abcd")
        await parent.undo()  # to c
        child = await parent.fork()
        assert [(each.rev, each.label) for each in await child.log.last()] == [
            (-3, "write a"),
            (-2, "write b"),
            (-1, "write c"),
            (0, "write d"),
            (1, "undo"),
        ]
        theirs, ours = await parent.log.last(), await child.log.last()
        assert [each.at for each in ours] == [each.at for each in theirs]
        assert [each.origin.rev for each in ours if each.origin is not None] == [each.rev for each in theirs]
        assert {each.origin.handle for each in ours if each.origin is not None} == {parent.handle}
        assert (await child.redo()).text == "d"
        async with child.edit("write e") as draft:
            draft.text = "e"
        await parent.end()
        assert (await child.undo(3)).text == "b"  # e, d again, and c, which its parent had written
        assert (await child.at(-1)).text == "c"
        grandchild = await child.fork(-1)
        assert (grandchild.state.text, (await grandchild.undo()).text) == ("c", "b")
        first = (await grandchild.log.last())[0]
        assert first.origin == history.Origin(parent.handle, 2)
        with pytest.raises(holdfast.errors.NotFound, match="ask for one from -"):
            await grandchild.at(-50)


@pytest.mark.promise("state.forks")
async def test_a_fork_of_a_long_or_large_log_takes_what_fits_and_no_gap() -> None:
    async with holdfast.open_store("memory:", max_bytes=20_000) as store:
        sessions = holdfast.Sessions(Paper, store, history=2_000)
        parent = await sessions.begin(ALICE)
        for number in range(700):
            await parent.update(lambda state, number=number: setattr(state, "text", f"{number:0300d}"), f"w{number}")  # type: ignore[misc]
        child = await parent.fork()
        entries = [entry async for entry in child.log]
        assert 5 < len(entries) <= history.INHERITED
        assert [entry.label for entry in entries] == [f"w{number}" for number in range(700 - len(entries), 700)]
        raw = await store.log(KIND, child.handle, limit=500)
        assert len(json.dumps([entry.data for entry in raw])) < 20_000
        whole = [entry.rev for entry in raw if "was" in members(entry.data)]
        assert whole
        assert int((await child.at(1 - len(whole))).text) == 699 - len(whole)
        with pytest.raises(holdfast.errors.NotFound):
            await child.at(-len(whole))


def members(data: Any) -> dict[str, Any]:
    assert isinstance(data, dict)
    return data
