"""Helpers beside a session: phases, options, logs, insight, genealogy; parallel steps, dead holders, a thousand."""

import asyncio
import json
import re
from typing import Annotated, Any

import mcp
import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast.core.events import CompanionRefused, CompanionStepped, Event
from holdfast.core.models import Principal
from holdfast.state.companions.figures import totals
from holdfast.state.companions.genealogy import graphviz, mermaid
from holdfast.state.companions.insight import Convergence
from holdfast.state.log import KIND

pytestmark = pytest.mark.anyio

ALICE = Principal("alice")


class Studio(holdfast.SessionState):
    topic: str = ""


class Draft(holdfast.SessionState):
    text: str = ""
    points: list[str] = []


class Style(holdfast.CompanionOptions):
    temperature: float = 0.7


class Writer(holdfast.Companion[Draft, Style]):
    phases = {
        "empty": ["drafted"],
        "drafted": ["criticised"],
        "criticised": ["revised"],
        "revised": ["criticised", "done"],
        "done": [],
    }


class Reader(holdfast.Companion[Draft, Style]):
    phases = {"idle": ["reading"], "reading": ["idle"]}


async def round_of(writer: Writer, number: int, points: list[str]) -> None:
    async with writer.step("critique", to="criticised") as turn:
        turn.record(list(points))
    async with writer.step("revision", to="revised") as turn:
        turn.state.text = f"text {number}"
        turn.record(turn.state.text)


async def drafted(writers: "holdfast.Companions[Writer]", session: "holdfast.Session[Studio]") -> Writer:
    writer = await writers.of(session)
    async with writer.step("draft", to="drafted") as turn:
        turn.note("query", "kelp")
        turn.state.text = "text"
        turn.record("text")
        turn.message("user", "write about kelp")
        turn.message("assistant", "text")
    return writer


@pytest.mark.promise("companions.work")
async def test_draft_critique_revise_is_remembered_with_its_numbers(url: str) -> None:
    told: list[Event] = []
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions, on_event=told.append)
        session = await sessions.begin(ALICE)
        writer = await drafted(writers, session)
        for number, points in enumerate((["a", "b", "c"], ["a"], [])):
            await round_of(writer, number, points)
        found = await (await writers.of(await sessions.find(session.handle, ALICE))).insight()
        assert (found.phase, found.iteration, found.total_iterations) == ("revised", 3, 3)
        assert found.convergence.critiques == (3, 1, 0)
        assert found.convergence.falling
        assert found.convergence.reached
        assert found.convergence.similarity is not None
        labels = [entry.label async for entry in writer.log]
        assert labels == ["draft", "query", "message", "message", *(["critique", "revision"] * 3)]
        assert [entry.data for entry in await writer.log.last(2, label="revision")] == ["text 1", "text 2"]
        assert [message["role"] for message in await writer.history()] == ["user", "assistant"]
        assert "user: write about kelp\nassistant: text\n[critique]" in await writer.transcript()
        lines = [json.loads(line) async for line in writer.json_lines()]
        assert [line["label"] for line in lines] == labels
        stepped = [event for event in told if isinstance(event, CompanionStepped)]
        assert [event.phase for event in stepped] == ["drafted", *(["criticised", "revised"] * 3)]
        assert [event.iteration for event in stepped][-1] == 3
        assert sum(event.converged for event in stepped) == 1
        async with writer.step("draft") as turn:  # a new query begins to count anew
            turn.note("query", "moss")
        assert (await writer.insight()).iteration == 0
        assert (await writer.insight()).total_iterations == 3


@pytest.mark.promise("companions.options")
async def test_options_are_given_once_and_kept() -> None:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions, options=Style(temperature=0.1))
    session = await sessions.begin(ALICE)
    assert (await writers.of(session)).options == Style(temperature=0.1)
    assert (await writers.of(session, {"temperature": 0.1})).options.temperature == 0.1
    with pytest.raises(holdfast.Conflict, match="began with other options"):
        await writers.of(session, Style(temperature=0.9))
    with pytest.raises(holdfast.UsageError, match="options do not validate"):
        await writers.of(session, {"heat": 1})
    readers = holdfast.Companions(Reader, sessions)
    reader = await readers.of(session, Style(temperature=0.9))
    assert (reader.options.temperature, reader.phase) == (0.9, "idle")
    assert (await writers.of(session)).handle != reader.handle

    class Strict(holdfast.CompanionOptions):
        model: str

    class Picky(holdfast.Companion[Draft, Strict]):
        phases = {"a": []}

    with pytest.raises(holdfast.UsageError, match="model"):
        await holdfast.Companions(Picky, sessions).of(session)


@pytest.mark.promise("companions.isolation")
async def test_helpers_and_other_kinds_do_not_count_as_a_callers_sessions() -> None:
    async with holdfast.open_store("memory:") as store:
        sessions, drafts = holdfast.Sessions(Studio, store, quota=2), holdfast.Sessions(Draft, store)
        writers = holdfast.Companions(Writer, sessions)
        await drafts.begin(ALICE)
        for _ in range(2):
            await writers.of(await sessions.begin(ALICE))
        with pytest.raises(holdfast.LimitReached, match="2 of 2"):
            await sessions.begin(ALICE)
        assert len(await sessions.of(ALICE)) == 2


@pytest.mark.promise("companions.phases")
def test_phases_that_make_no_sense_are_refused_with_the_class() -> None:
    for phases, said in (
        ({}, "no phases"),
        ({"a": ["b"]}, "'b', which is not declared"),
        ({"a": [], "b": ["a"]}, "nothing leads from 'a' to 'b'"),
        ({"a": "b", "b": []}, "leads to a text"),
    ):
        with pytest.raises(holdfast.UsageError, match=said):
            _make(phases)
    with pytest.raises(holdfast.UsageError, match="does not say what it keeps"):

        class Bare(holdfast.Companion):  # type: ignore[type-arg]
            phases = {"a": []}

    with pytest.raises(holdfast.UsageError, match="is no SessionState"):

        class Wrong(holdfast.Companion[dict, Style]):  # type: ignore[type-arg, type-var]
            phases = {"a": []}

    with pytest.raises(holdfast.UsageError, match="no kind of helper"):
        holdfast.Companions(Studio, holdfast.Sessions(Studio))  # type: ignore[type-var]


def _make(phases: dict[str, Any]) -> None:
    given = phases

    class Odd(holdfast.Companion[Draft, Style]):
        phases = given


@pytest.mark.promise("companions.phases")
async def test_a_forbidden_step_is_refused_and_leaves_it_unchanged() -> None:
    told: list[Event] = []
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions, on_event=told.append)
    writer = await writers.of(await sessions.begin(ALICE))
    with pytest.raises(holdfast.WrongPhase, match="in phase 'empty'") as refused:
        async with writer.step("revision", to="revised"):
            raise AssertionError("it must not begin")
    assert refused.value.phase == "empty"
    assert "next comes 'drafted'" in str(refused.value)
    with pytest.raises(holdfast.UsageError, match="no phase 'finished'"):
        async with writer.step("x", to="finished"):
            pass
    with pytest.raises(holdfast.UnstorableValue):
        async with writer.step("draft", to="drafted") as turn:
            turn.record(object())  # type: ignore[arg-type]
    with pytest.raises(holdfast.UsageError, match="does not validate"):
        async with writer.step("draft", to="drafted") as turn:
            turn.state.points.append(7)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        async with writer.step("draft", to="drafted") as turn:
            turn.state.text = "half"
            raise RuntimeError("half-way")
    with pytest.raises(holdfast.UsageError, match="counts iterations"):
        await writer.note("revision", "x")
    await writer.read()
    assert (writer.phase, writer.rev, writer.state.text) == ("empty", 1, "")
    assert [event.phase for event in told if isinstance(event, CompanionRefused)] == ["empty"]
    await writer.note("thought", {"why": "kelp"})
    assert [entry.label for entry in await writer.log.last()] == ["thought"]


@pytest.mark.promise("companions.phases")
async def test_a_judgement_that_raises_refuses_the_step() -> None:
    class Judge(Writer):
        broken = False

        def converged(self, signs: Convergence) -> bool:
            if type(self).broken:
                raise ZeroDivisionError("of nothing")
            return len(signs.critiques) > 1

    sessions = holdfast.Sessions(Studio)
    judges = holdfast.Companions(Judge, sessions)
    judge = await judges.of(await sessions.begin(ALICE))
    assert not (await judge.insight()).convergence.reached
    Judge.broken = True
    with pytest.raises(holdfast.UsageError, match="ZeroDivisionError"):
        async with judge.step("draft", to="drafted"):
            pass
    Judge.broken = False
    await judge.read()
    assert (judge.phase, judge.rev) == ("empty", 1)


@pytest.mark.promise("companions.parallel")
async def test_parallel_steps_have_one_order_and_the_loser_is_told(url: str) -> None:
    async with holdfast.open_store(url) as one, holdfast.open_store(url) as other:
        places = [holdfast.Sessions(Studio, store) for store in (one, other)]
        kinds = [holdfast.Companions(Writer, place) for place in places]
        session = await places[0].begin(ALICE)
        await drafted(kinds[0], session)
        told: list[str] = []

        async def criticise(number: int) -> int:
            kind = kinds[number % 2]
            writer = await kind.of(await places[number % 2].find(session.handle, ALICE))
            try:
                async with writer.step("critique", to="criticised") as turn:
                    turn.record([str(number)])
                    await asyncio.sleep(0)
                return 1
            except (holdfast.Conflict, holdfast.WrongPhase) as error:
                told.append(str(error))
                return 0

        assert sum(await asyncio.gather(*(criticise(number) for number in range(10)))) == 1
        assert len(told) == 9
        assert all("phase 'criticised'" in said for said in told)
        writer = await kinds[0].of(session)
        assert len(await writer.log.last(20, label="critique")) == 1


@pytest.mark.promise("companions.parallel")
async def test_a_long_turn_whose_holder_dies_is_left_and_nothing_of_it_is_seen() -> None:
    clock = holdfast.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        sessions = holdfast.Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions)
        session = await sessions.begin(ALICE)
        await drafted(writers, session)
        first, second = await writers.of(session), await writers.of(session)
        entered = asyncio.Event()

        async def hangs() -> None:
            async with first.turn("critique", to="criticised", ttl=30) as turn:
                turn.record(["never"])
                entered.set()
                await asyncio.Event().wait()

        holder = asyncio.ensure_future(hangs())
        await entered.wait()
        for other in (second.step("critique", to="criticised"), second.turn("critique", to="criticised")):
            with pytest.raises(holdfast.Busy):
                async with other:
                    pass
        clock.advance(31)  # as if its process were gone: nobody renewed it
        async with second.turn("critique", to="criticised") as turn:
            turn.record(["mine"])
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
        await first.read()
        assert first.phase == "criticised"
        assert [entry.data for entry in await first.log.last(9, label="critique")] == [["mine"]]


@pytest.mark.promise("companions.isolation")
async def test_a_thousand_helpers_of_ten_users_do_not_cross_and_end_with_their_sessions(url: str) -> None:
    kinds = [type(f"Kind{number}", (Writer,), {"kind": f"kind{number}"}) for number in range(10)]
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Studio, store)
        companions = [holdfast.Companions(kind, sessions) for kind in kinds]
        own = [Principal(f"user{number}-{id(store)}") for number in range(10)]
        begun = [await sessions.begin(own[number % 10]) for number in range(100)]

        async def work(number: int) -> None:
            session = begun[number]
            for place, each in enumerate(companions):
                helper = await each.of(session)
                async with helper.step("draft", to="drafted") as turn:
                    turn.state.text = f"{number}/{place}"

        await asyncio.gather(*(work(number) for number in range(100)))
        for number in range(0, 100, 9):
            for place, each in enumerate(companions):
                assert (await each.of(begun[number])).state.text == f"{number}/{place}"
        before = await store.count(kind=KIND, principal=own[3])
        assert before == 10 * 11
        helper = await companions[0].of(begun[3])
        await begun[3].end()
        assert await store.count(kind=KIND, principal=own[3]) == before - 11
        with pytest.raises(holdfast.Ended):
            async with helper.step("critique", to="criticised"):
                pass
        with pytest.raises(holdfast.Ended):
            await companions[1].of(begun[3])


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
        other = await writers.of(forked)
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


def tools_of(framework: str, guarded_by: str) -> tuple[Any, "holdfast.Companions[Writer]", "holdfast.Sessions[Studio]"]:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions)
    needs = {
        "draft": holdfast.Needs(("empty",)),
        "critique": holdfast.Needs(("drafted", "revised")),
        "finish": holdfast.Needs((), lambda writer: writer.state.points[0], "There is no critique yet."),
    }

    def guard(function: Any) -> Any:
        if guarded_by == "middleware":
            return function
        need = needs[function.__name__]
        return writers.requires(*need.phases, when=need.when, say=need.say)(function)

    around = [writers.middleware(needs)] if guarded_by == "middleware" else []
    if framework == "fastmcp":
        fast = FastMCP("studio", middleware=around)
        sessions.install(fast)

        @fast.tool
        @guard
        async def draft(session_id: str, writer: Writer = Depends(writers)) -> str:
            async with writer.step("draft", to="drafted"):
                return writer.phase

        @fast.tool
        @guard
        async def critique(session_id: str, writer: Writer = Depends(writers)) -> str:
            async with writer.step("critique", to="criticised") as turn:
                turn.state.points = ["short"]
                return writer.phase

        @fast.tool
        @guard
        async def finish(session_id: str, writer: Writer = Depends(writers)) -> str:
            return writer.state.points[0]

        @fast.tool
        async def known(session_id: str, insight: holdfast.Insight = Depends(writers.insight)) -> str:
            return f"{insight.phase} {insight.iteration}"

        return fast, writers, sessions
    official: MCPServer[Any] = MCPServer("studio", middleware=around)
    sessions.install(official)
    current = Annotated[Writer, Resolve(writers)]

    @official.tool(name="draft")
    @guard
    async def draft(writer: current, session_id: str) -> str:
        async with writer.step("draft", to="drafted"):
            return writer.phase

    @official.tool(name="critique")
    @guard
    async def critique(writer: current, session_id: str) -> str:
        async with writer.step("critique", to="criticised") as turn:
            turn.state.points = ["short"]
            return writer.phase

    @official.tool(name="finish")
    @guard
    async def finish(writer: current, session_id: str) -> str:
        return writer.state.points[0]

    @official.tool()
    async def known(insight: Annotated[holdfast.Insight, Resolve(writers.insight)], session_id: str) -> str:
        return f"{insight.phase} {insight.iteration}"

    return official, writers, sessions


@pytest.mark.promise("companions.guards")
@pytest.mark.parametrize("framework", ["fastmcp", "mcpserver"])
@pytest.mark.parametrize("guarded_by", ["decorator", "middleware"])
async def test_a_tool_in_the_wrong_phase_is_refused_with_the_next_step(framework: str, guarded_by: str) -> None:
    server, writers, sessions = tools_of(framework, guarded_by)
    client: Any = Client(server) if framework == "fastmcp" else mcp.Client(server)
    extra = {"raise_on_error": False} if framework == "fastmcp" else {}
    session = (await sessions.begin()).handle

    async def call(tool: str) -> tuple[bool, str]:
        answer = await client.call_tool(tool, {"session_id": session}, **extra)
        return answer.is_error, str(answer.content[0].text)

    async with client:
        listed = await client.list_tools()
        names = {tool.name for tool in getattr(listed, "tools", listed)}
        assert {"draft", "critique", "finish", "known"} <= names  # never hidden
        failed, said = await call("critique")
        assert failed
        assert "the writer is in phase 'empty': 'critique' needs 'drafted' or 'revised'; call draft next" in said
        failed, said = await call("finish")  # its predicate meets an empty log
        assert failed
        assert "There is no critique yet" in said
        assert await call("draft") == (False, "empty")
        assert (await call("draft"))[0]
        assert await call("critique") == (False, "drafted")
        assert await call("finish") == (False, "short")
        assert await call("known") == (False, "criticised 0")
        unknown = await client.call_tool("draft", {"session_id": "s_never"}, **extra)
        assert unknown.is_error
        assert "there is no such session" in str(unknown.content)
    assert writers.counting.figures.refusals == {"empty": 2, "drafted": 1}


@pytest.mark.promise("companions.figures")
async def test_figures_add_up_over_processes(url: str) -> None:
    async with holdfast.open_store(url) as store:
        kind = f"kind{id(store)}"
        Kind = type("Kind", (Writer,), {"kind": kind})  # noqa: N806
        sessions = holdfast.Sessions(Studio, store)
        for _ in range(2):  # as two processes
            writers = holdfast.Companions(Kind, sessions)
            writer = await drafted(writers, await sessions.begin(ALICE))
            await round_of(writer, 1, ["a"])
            with pytest.raises(holdfast.WrongPhase):
                async with writer.step("draft", to="drafted"):
                    pass
        async with sessions.lifespan():
            pass  # a server that stops puts its figures down
        found = (await totals(store))[kind]
        assert (found.steps, found.iterations, found.refusals) == (6, 2, {"revised": 2})
        assert set(found.seconds) == {"empty", "drafted", "criticised"}


@pytest.mark.promise("companions.parallel")
async def test_a_step_that_could_stand_beside_a_refused_save_is_refused() -> None:
    """What middleware saves after the call may be refused then; a step is written at once."""
    saved = holdfast.Sessions(Studio)
    holdfast.Companions(Writer, saved)
    with pytest.raises(holdfast.UsageError, match="has companions, whose steps are written at once"):
        saved.install(FastMCP("studio"), save=True)
    saved = holdfast.Sessions(Studio)
    saved.install(FastMCP("studio"), save=True)
    with pytest.raises(holdfast.UsageError, match="is saved by middleware after each call"):
        holdfast.Companions(Writer, saved)

    # Two kinds of sessions: whichever of the two comes first in a call, the other is refused.
    class Cart(holdfast.SessionState):
        items: list[str] = []

    carts, studios = holdfast.Sessions(Cart), holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, studios)
    server = FastMCP("studio")
    carts.install(server, save=True, noun="cart")
    begun, studio = await carts.begin(), await studios.begin()

    async def draft() -> None:
        async with (await writers.of(studio)).step("draft", to="drafted"):
            pass

    @server.tool
    async def step_last(session_id: str, cart: holdfast.Session[Cart] = Depends(carts)) -> str:
        cart.draft.items.append("x")
        await draft()
        return "ok"

    @server.tool
    async def step_first(session_id: str) -> str:
        await draft()
        cart = await carts()
        cart.draft.items.append("x")
        return "ok"

    async with Client(server) as client:
        last = await client.call_tool("step_last", {"session_id": begun.handle}, raise_on_error=False)
        assert last.is_error
        assert (await writers.of(studio)).phase == "empty"
        first = await client.call_tool("step_first", {"session_id": begun.handle}, raise_on_error=False)
        assert first.is_error
        assert (await writers.of(studio)).phase == "drafted"  # what was done before the refusal is said to stand
    for answer in (last, first):
        assert "written at once, and this call's session after the call" in answer.content[0].text
    assert (await begun.read()).items == []
