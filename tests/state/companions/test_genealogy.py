"""How a companion came to be what it is: undos and forks as a tree."""

import re

import pytest

import holdfast
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.state.companions.genealogy import graphviz, mermaid
from holdfast.state.storage.entries import OUTLINES
from tests.state.companions.writing import ALICE, Draft, Reader, Studio, Writer, drafted, round_of

pytestmark = pytest.mark.anyio


@pytest.mark.promise("companions.genealogy")
async def test_undos_and_forks_form_a_tree_with_generations(url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions)
        session = await sessions.begin(Principal(f"alice-{id(store)}"))
        writer = await drafted(writers, session)
        await round_of(writer, 1, ["a"])
        assert (await writer.insight()).iteration == 1
        await writer.undo()
        assert (writer.phase, (await writer.insight()).iteration) == ("criticised", 0)
        async with writer.step("revision", to="revised") as turn:
            turn.record("another way")
        assert [entry.label for entry in (await writer.log.last(3))] == ["revision", "undo", "revision"]
        forked = await session.fork()
        other = await writers.for_session(forked)
        assert (other.phase, other.state.text) == (writer.phase, writer.state.text)
        async with other.step("critique", to="criticised") as turn:
            turn.record([])
        root = await writer.tree()
        told = {
            (node.rev, node.label, node.generation, node.phase) for node in root.walk() if node.handle == writer.handle
        }
        assert told == {
            (1, "begin", 0, "empty"),
            (2, "draft", 0, "drafted"),
            (3, "critique", 0, "criticised"),
            (4, "revision", 0, "revised"),
            (5, "undo", 1, "criticised"),
            (6, "revision", 1, "revised"),
        }
        children = {
            node.rev: [child.rev for child in node.children if child.handle == node.handle] for node in root.walk()
        }
        assert children[3] == [4, 5]  # the way that was undone, and the other
        assert {node.generation for node in root.walk() if node.handle == other.handle} == {2}
        assert (await other.tree()).to_json() == root.to_json()  # a fork shows where it came from
        drawn = mermaid(root)
        assert drawn.startswith("flowchart TD")
        assert drawn.count("-->") == len(list(root.walk())) - 1
        assert graphviz(root).count("->") == drawn.count("-->")
        assert re.search(r'label="6 revision → revised"', graphviz(root))


@pytest.mark.promise("companions.genealogy")
async def test_a_fork_takes_its_helpers_along_as_they_stood() -> None:
    class Need(holdfast.state.CompanionOptions):
        model: str

    class Picky(holdfast.Companion[Draft, Need]):
        phases = {"a": ["b"], "b": []}

    clock = holdfast.stores.ManualClock()
    store = await holdfast.open_store("memory:", clock=clock).__aenter__()
    sessions = holdfast.Sessions(Studio, store)
    writers, picky = holdfast.Companions(Writer, sessions), holdfast.Companions(Picky, sessions)
    session = await sessions.begin(ALICE)
    await session.update(lambda state: setattr(state, "topic", "before there was a helper"))
    clock.advance(1)
    writer = await drafted(writers, session)
    await picky.for_session(session, Need(model="m"))
    clock.advance(1)
    await session.update(lambda state: setattr(state, "topic", "drafted"))
    clock.advance(1)
    await round_of(writer, 1, ["a"])
    early, middle, late = await session.fork(2), await session.fork(3), await (await session.fork()).fork()
    await round_of(writer, 2, ["b"])  # the parent goes on
    await session.end()
    assert (await writers.for_session(early)).phase == "drafted"  # until the session changed again, the draft was there
    assert (await writers.for_session(middle)).phase == "revised"
    last = await writers.for_session(late)
    assert (last.phase, last.state.text) == ("revised", "text 1")
    assert (await picky.for_session(late)).options.model == "m"
    first = await sessions.begin(ALICE)
    await first.update(lambda state: setattr(state, "topic", "x"))
    clock.advance(1)
    await drafted(writers, first)
    assert (await writers.for_session(await first.fork(1))).phase == "empty"  # it was not there yet


@pytest.mark.promise("companions.genealogy")
async def test_a_tree_of_a_thousand_steps_is_exported() -> None:
    sessions = holdfast.Sessions(Studio)
    writer = await holdfast.Companions(Writer, sessions).for_session(await sessions.begin(ALICE))
    for number in range(1_100):
        await writer.note("n", number)
    root = await writer.tree()
    assert mermaid(root).count("-->") == graphviz(root).count("->") == 1_100
    assert len(root.to_json()) == 1_101  # type: ignore[arg-type]


@pytest.mark.promise("companions.forks")
async def test_a_fork_knows_what_its_parent_knew_and_both_agree_on_convergence(url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions)
        session = await sessions.begin(ALICE)
        writer = await drafted(writers, session)
        for number, points in enumerate((["a", "b"], ["a"], [])):
            await round_of(writer, number, points)
        child = await writers.for_session(await session.fork())
        assert await child.insight() == await writer.insight()
        assert (await child.insight()).convergence.reached
        assert await child.transcript() == await writer.transcript()
        assert await child.history() == await writer.history()
        await session.end()
        again = await writers.for_session(await sessions.find(child.session_handle, ALICE))
        assert (await again.insight()).convergence.critiques == (2, 1, 0)
        assert (await again.undo(2)).text == "text 1"
        assert (await again.insight()).convergence.critiques == (2, 1)
        assert (again.phase, (await again.redo(2)).text, again.phase) == ("revised", "text 2", "revised")


@pytest.mark.promise("companions.forks")
async def test_a_companion_is_forked_at_any_revision_of_its_own() -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        sessions = holdfast.Sessions(Studio, store)
        writers, readers = holdfast.Companions(Writer, sessions), holdfast.Companions(Reader, sessions)
        session = await sessions.begin(ALICE)
        clock.advance(1)
        writer = await drafted(writers, session)
        reader = await readers.for_session(session)
        clock.advance(1)
        await session.update(lambda state: setattr(state, "topic", "kelp"))
        clock.advance(1)
        async with reader.step("read", to="reading"):
            pass
        for number in range(3):
            clock.advance(1)
            await round_of(writer, number, ["a"])
        clock.advance(1)
        await session.update(lambda state: setattr(state, "topic", "moss"))
        early, middle, now = await writer.fork(2), await writer.fork(4, "middle"), await writer.fork()
        assert [each.phase for each in (early, middle, now)] == ["drafted", "revised", "revised"]
        assert (early.state.text, middle.state.text, now.state.text) == ("text", "text 0", "text 2")
        others = [await sessions.find(each.session_handle, ALICE) for each in (early, middle, now)]
        assert [each.state.topic for each in others] == ["kelp", "kelp", "moss"]
        assert others[1].title == "middle"
        assert [(await readers.for_session(each)).phase for each in others] == ["reading"] * 3
        for wrong in (0, 99):
            with pytest.raises(holdfast.errors.NotFound):
                await writer.fork(wrong)
        async with middle.step("critique", to="criticised") as turn:
            turn.record(["b"])
        assert (await writer.read()).text == "text 2"  # its parent does not notice
        assert (await middle.restore(0)).text == "text"  # before the fork
        assert middle.phase == "criticised"


@pytest.mark.promise("companions.genealogy")
async def test_the_tree_of_an_ended_session_is_read_without_what_it_held(url: str) -> None:
    alice, bob = Principal("alice"), Principal("bob")
    async with holdfast.open_store(url) as store, holdfast.open_store(url) as replica:
        sessions = holdfast.Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions)
        session = await sessions.begin(alice)
        writer = await drafted(writers, session)
        await round_of(writer, 1, ["secret"])
        await writer.undo()
        child = await writer.fork()
        whole = [(node.handle, node.rev, node.label, node.phase) for node in (await writer.tree()).walk()]
        await session.end()
        elsewhere = holdfast.Companions(Writer, holdfast.Sessions(Studio, replica))
        root = await elsewhere.tree(session.handle, alice)
        assert [(node.handle, node.rev, node.label, node.phase) for node in root.walk()] == whole
        assert root.ended is not None
        assert "begin → empty, ended" in mermaid(root)
        below = await child.tree()
        assert [node.rev for node in below.walk()] == [node.rev for node in root.walk()]
        kept = await store.get(OUTLINES, writer.handle)
        assert kept is not None
        assert "secret" not in str(kept.data)
        assert "text" not in str(kept.data)
        for foreign in (bob, ANONYMOUS):
            with pytest.raises(holdfast.errors.NotFound, match="there is no such session"):
                await elsewhere.tree(session.handle, foreign)
        await store.end(OUTLINES, writer.handle)  # as if it were too long ago
        await store.reap(ended_for=0.0)
        left = await child.tree()  # what the fork took along is left of its parent
        assert [node.label for node in left.walk()] == ["begin", "draft", "critique", "revision", "undo", "begin"]
        assert {node.handle for node in left.walk()} == {writer.handle, child.handle}
