"""How a companion came to be what it is: undos and forks as a tree."""

import re

import pytest

import holdfast
from holdfast.core.models import Principal
from holdfast.state.companions.genealogy import graphviz, mermaid
from tests.state.companions.writing import ALICE, Draft, Studio, Writer, drafted, round_of

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
