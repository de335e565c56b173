"""What a hunt found in the first version of companions: each was silent, or said the wrong thing."""

import asyncio
import itertools
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from pydantic import Field, SecretStr

import holdfast
from holdfast.core.models import Principal
from holdfast.state.companions.figures import totals
from holdfast.state.companions.genealogy import graphviz, mermaid
from holdfast.state.companions.insight import Convergence
from holdfast.state.log import KIND
from holdfast.stores.archive import archive_of
from tests.state.companions.test_companions import Draft, Studio, Style, Writer, drafted, round_of
from tests.state.test_found import lasts

pytestmark = pytest.mark.anyio

ALICE = Principal("alice")


@pytest.mark.promise("companions.parallel")
async def test_the_first_call_of_a_session_may_use_both_the_session_and_its_helper() -> None:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions)
    server = FastMCP("studio")
    sessions.install(server)

    @server.tool
    async def go(
        session_id: str,
        studio: holdfast.Session[Studio] = Depends(sessions),
        writer: Writer = Depends(writers),
    ) -> str:
        async with writer.step("draft", to="drafted"):
            pass
        async with studio.edit() as state:
            state.topic = "kelp"
        return "ok"

    begun = await sessions.begin()
    async with Client(server) as client:
        await client.call_tool("go", {"session_id": begun.handle})
    assert (await begun.read()).topic == "kelp"
    async with begun.edit() as state:
        await holdfast.Companions(Writer, sessions).of(begun)
        state.topic = "moss"


@pytest.mark.promise("companions.genealogy")
async def test_a_fork_takes_its_helpers_along_as_they_stood() -> None:
    class Need(holdfast.CompanionOptions):
        model: str

    class Picky(holdfast.Companion[Draft, Need]):
        phases = {"a": ["b"], "b": []}

    clock = holdfast.ManualClock()
    store = await holdfast.open_store("memory:", clock=clock).__aenter__()
    sessions = holdfast.Sessions(Studio, store)
    writers, picky = holdfast.Companions(Writer, sessions), holdfast.Companions(Picky, sessions)
    session = await sessions.begin(ALICE)
    await session.update(lambda state: setattr(state, "topic", "before there was a helper"))
    clock.advance(1)
    writer = await drafted(writers, session)
    await picky.of(session, Need(model="m"))
    clock.advance(1)
    await session.update(lambda state: setattr(state, "topic", "drafted"))
    clock.advance(1)
    await round_of(writer, 1, ["a"])
    early, middle, late = await session.fork(2), await session.fork(3), await (await session.fork()).fork()
    await round_of(writer, 2, ["b"])  # the parent goes on
    await session.end()
    assert (await writers.of(early)).phase == "drafted"  # until the session changed again, the draft was there
    assert (await writers.of(middle)).phase == "revised"
    last = await writers.of(late)
    assert (last.phase, last.state.text) == ("revised", "text 1")
    assert (await picky.of(late)).options.model == "m"
    first = await sessions.begin(ALICE)
    await first.update(lambda state: setattr(state, "topic", "x"))
    clock.advance(1)
    await drafted(writers, first)
    assert (await writers.of(await first.fork(1))).phase == "empty"  # it was not there yet


@pytest.mark.promise("companions.isolation")
async def test_a_helper_ends_with_its_session_also_by_expiry_and_its_use_keeps_the_session() -> None:
    clock = holdfast.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        sessions = holdfast.Sessions(Studio, store, idle=60.0, max_age=None)
        writers = holdfast.Companions(Writer, sessions)
        session = await sessions.begin(ALICE)
        writer = await drafted(writers, session)
        for number in range(3):
            clock.advance(40)  # each step is use
            await round_of(writer, number, ["a"])
        clock.advance(61)
        with pytest.raises(holdfast.SessionExpired):
            async with writer.step("critique", to="criticised"):
                pass
        with pytest.raises(holdfast.SessionExpired):
            await writer.undo()
        from holdfast.state import records

        await records.end_orphans(store)
        assert await store.count(kind=KIND) == 0

        # A session whose row is damaged may live: its helper stays, and those of the others still go.
        damaged, other = [await sessions.begin(ALICE) for _ in range(2)]
        for each in (damaged, other):
            await drafted(writers, each)
        archive = archive_of(store)
        row = await archive.row(KIND, damaged.handle)
        assert row is not None
        await archive.put(row._replace(body=b"\0", idle=None, max_age=None))
        clock.advance(61)
        await records.end_orphans(store)
        assert await store.count(kind=KIND) == 2
        assert await store.get(KIND, f"{other.handle}.{Writer.kind}") is None

    sessions = holdfast.Sessions(Studio, idle=1.0)
    session = await sessions.begin(ALICE)
    async with (await holdfast.Companions(Writer, sessions).of(session)).turn("draft", to="drafted", ttl=0.9):
        await lasts(sessions)
    await session.read()


@pytest.mark.promise("companions.parallel")
async def test_during_a_long_turn_nobody_else_writes_and_an_undo_loses_nothing() -> None:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions)
    session = await sessions.begin(ALICE)
    writer = await drafted(writers, session)
    other = await writers.of(session)
    third, early = await writers.of(session), other.step("critique", to="criticised")
    await early.__aenter__()  # begun before the turn
    async with writer.turn("critique", to="criticised") as turn:
        turn.record(["mine"])
        await writer.note("thought", "goes with the turn")
        for write in (third.undo(), third.note("x"), early.__aexit__(None, None, None)):
            with pytest.raises(holdfast.Busy, match="in phase 'drafted'"):
                await write
    assert [entry.label for entry in await writer.log.last(2)] == ["critique", "thought"]

    store = await sessions.opened()
    plain = await sessions.begin(ALICE, Studio(topic="a"))
    await plain.update(lambda state: setattr(state, "topic", "b"))
    log = store.log
    again = await sessions.find(plain.handle, ALICE)

    async def meanwhile(*args: Any, **kwargs: Any) -> Any:
        store.log = log  # type: ignore[method-assign]
        await again.update(lambda state: setattr(state, "topic", "c"))
        await plain.read()
        return await log(*args, **kwargs)

    store.log = meanwhile  # type: ignore[method-assign]
    with pytest.raises(holdfast.Conflict):
        await plain.undo()
    assert (await plain.read()).topic == "c"


@pytest.mark.promise("companions.options")
async def test_options_are_compared_and_read_as_what_they_are() -> None:
    numbers = itertools.count()

    class State(holdfast.SessionState):
        id: int = Field(default_factory=lambda: next(numbers))

    class First(holdfast.CompanionOptions):
        heat: float = 0.5
        limit: int = Field(400, alias="maxTokens")
        tags: frozenset[str] = frozenset()
        gone: int = 0

    class Second(holdfast.CompanionOptions):
        heat: float = 0.5
        limit: int = Field(400, alias="maxTokens")
        tags: frozenset[str] = frozenset()
        new: str = "x"

    def made(options: Any) -> Any:
        class Helper(holdfast.Companion[State, options]):
            kind = "helper"
            phases = {"a": []}

        return Helper

    async with holdfast.open_store("memory:") as store:
        old, new = (holdfast.Sessions(Studio, store) for _ in range(2))
        first, second = holdfast.Companions(made(First), old), holdfast.Companions(made(Second), new)
        session = await old.begin(ALICE)
        helper = await first.of(session, First(heat=0.2, maxTokens=9, tags=frozenset("abcdef")))
        assert helper.options.limit == 9
        again = await new.find(session.handle, ALICE)
        kept = await second.of(again, Second(heat=0.2, maxTokens=9, tags=frozenset("fedcba")))
        assert (kept.options.limit, kept.options.new) == (9, "x")
        with pytest.raises(holdfast.Conflict):
            await second.of(again, {})
        ids = {(await first.of(await old.begin(ALICE))).state.id for _ in range(5)}
        assert len(ids) == 5
        with pytest.raises(holdfast.UsageError, match="none of"):
            await second.of(session)

        class Secret(holdfast.CompanionOptions):
            key: SecretStr

        with pytest.raises(holdfast.UnstorableValue, match="key"):
            holdfast.Companions(made(Secret), holdfast.Sessions(Studio, store), options=Secret(key=SecretStr("x")))


@pytest.mark.promise("companions.genealogy")
async def test_a_tree_of_a_thousand_steps_is_exported() -> None:
    sessions = holdfast.Sessions(Studio)
    writer = await holdfast.Companions(Writer, sessions).of(await sessions.begin(ALICE))
    for number in range(1_100):
        await writer.note("n", number)
    root = await writer.tree()
    assert mermaid(root).count("-->") == graphviz(root).count("->") == 1_100
    assert len(root.to_json()) == 1_101  # type: ignore[arg-type]


@pytest.mark.promise("companions.work")
async def test_similarity_is_of_words_and_each_query_is_judged_by_itself() -> None:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions)

    async def similarity(one: str, other: str) -> float:
        writer = await writers.of(await sessions.begin(ALICE))
        for text in (one, other):
            async with writer.step("draft") as turn:
                turn.record(text)
                for number in range(130):  # chatter is no reason to forget
                    turn.message("user", str(number))
        found = (await writer.insight()).convergence.similarity
        assert found is not None
        return found

    assert await similarity("The kelp grows in cold water.", "Every author wants better drafts now.") < 0.3
    long = " ".join(f"word{number}" for number in range(700))
    assert await similarity(long, "changed " + long.partition(" ")[2]) > 0.99
    writer = await writers.of(await sessions.begin(ALICE))
    reached: list[bool] = []
    for _ in range(2):
        async with writer.step("query") as turn:
            turn.record("again")
        for number, points in enumerate((["a", "b"], ["a"], [])):
            async with writer.step("critique") as turn:
                turn.record(list(points))
            async with writer.step("revision") as turn:
                turn.record(f"text {number} " * 9)
        reached.append((await writer.insight()).convergence.reached)
    assert reached == [True, True]


@pytest.mark.promise("companions.phases")
async def test_phases_of_another_release_and_classes_of_one_name_are_told() -> None:
    class Old(holdfast.Companion[Draft, Style]):
        kind = "helper"
        phases = {"a": ["b"], "b": []}

    class New(holdfast.Companion[Draft, Style]):
        kind = "helper"
        phases = {"a": ["c"], "c": []}

    class Poet(Writer):
        phases = {"blank": ["full"], "full": []}

    assert (Poet.kind, Poet.table.start) == ("poet", "blank")
    async with holdfast.open_store("memory:") as store:
        sessions, later = holdfast.Sessions(Studio, store), holdfast.Sessions(Studio, store)
        session = await sessions.begin(ALICE)
        async with (await holdfast.Companions(Old, sessions).of(session)).step("go", to="b"):
            pass
        news = holdfast.Companions(New, later)
        helper = await news.of(await later.find(session.handle, ALICE))
        with pytest.raises(holdfast.WrongPhase, match="'b', which its class does not know"):
            async with helper.step("go", to="c"):
                pass
        with pytest.raises(holdfast.UsageError, match="another kind of helper"):
            holdfast.Companions(Old, later)
    with pytest.raises(holdfast.UsageError, match="is async"):

        class Asks(Writer):
            async def converged(self, signs: Convergence) -> bool:  # type: ignore[override]
                return True


@pytest.mark.promise("companions.genealogy")
async def test_an_undo_takes_back_one_step_and_only_a_real_one_counts() -> None:
    told: list[Any] = []
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions, on_event=told.append)
    writer = await drafted(writers, await sessions.begin(ALICE))
    async with writer.step("critique") as turn:
        turn.record(["a", "b"])  # a step that only records
    await writer.note("undo", "is what an author may call a note")
    assert (await writer.insight()).convergence.critiques == (2,)
    await writer.undo()
    assert (writer.phase, writer.state.text) == ("drafted", "text")
    assert (await writer.insight()).convergence.critiques == ()
    assert told[-1].step == "undo"


@pytest.mark.promise("companions.figures")
async def test_a_listener_that_raises_and_a_store_that_fails_once_change_nothing() -> None:
    def raises(event: Any) -> None:
        raise RuntimeError("listener")

    async with holdfast.open_store("memory:") as store:
        sessions = holdfast.Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions, on_event=raises)
        writers.counting._put_down = float("inf")  # not before the server stops
        await drafted(writers, await sessions.begin(ALICE))
        commit = store.commit

        async def down(*args: Any, **kwargs: Any) -> Any:
            store.commit = commit  # type: ignore[method-assign]
            raise holdfast.StoreDown("down")

        store.commit = down  # type: ignore[method-assign]
        await writers.counting.put_down(store)
        async with sessions.lifespan():
            pass
        assert (await totals(store))["writer"].steps == 1


@pytest.mark.promise("state.middleware")
async def test_two_edits_at_once_within_a_saving_call_are_told() -> None:
    sessions = holdfast.Sessions(Studio)
    server = FastMCP("studio")
    sessions.install(server, save=True)

    @server.tool
    async def both(session_id: str, studio: holdfast.Session[Studio] = Depends(sessions)) -> str:
        async def edit(topic: str) -> None:
            async with studio.edit() as state:
                await asyncio.sleep(0)
                state.topic += topic

        done = await asyncio.gather(edit("a"), edit("b"), return_exceptions=True)
        return ",".join(type(each).__name__ for each in done)

    begun = await sessions.begin()
    async with Client(server) as client:
        assert (await client.call_tool("both", {"session_id": begun.handle})).data == "NoneType,Conflict"
    assert (await begun.read()).topic == "a"


@pytest.mark.promise("companions.guards")
async def test_a_tool_with_two_related_helpers_is_guarded_by_the_right_one() -> None:
    class Editor(Writer):
        pass

    sessions = holdfast.Sessions(Studio)
    writers, editors = holdfast.Companions(Writer, sessions), holdfast.Companions(Editor, sessions)
    session = await sessions.begin(ALICE)
    editor, writer = await editors.of(session), await writers.of(session)
    async with editor.step("draft", to="drafted"):
        pass

    @writers.requires("drafted", when=lambda writer: writer.state.txt)
    async def tool(editor: Editor, writer: Writer) -> str:
        return "ran"

    with pytest.raises(holdfast.WrongPhase, match="in phase 'empty'"):
        await tool(editor, writer)
    async with writer.step("draft", to="drafted"):
        pass
    with pytest.raises(AttributeError, match="txt"):  # a slip of the author's is no missing draft
        await tool(editor, writer)
