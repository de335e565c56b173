"""All companions of a kind: one for each session, options, guards of tools, and their end."""

import asyncio
import itertools
from typing import Annotated, Any

import mcp
import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve
from pydantic import Field, SecretStr

import holdfast
from holdfast.core.models import Principal
from holdfast.state.companions.insight import Convergence
from holdfast.state.storage.entries import KIND
from holdfast.stores.archive import archive_of
from tests.state.companions.writing import ALICE, Draft, Reader, Studio, Style, Writer, drafted, round_of
from tests.state.turns import lasts

pytestmark = pytest.mark.anyio


@pytest.mark.promise("companions.options")
async def test_options_are_given_once_and_kept() -> None:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions, options=Style(temperature=0.1))
    session = await sessions.begin(ALICE)
    assert (await writers.for_session(session)).options == Style(temperature=0.1)
    assert (await writers.for_session(session, {"temperature": 0.1})).options.temperature == 0.1
    with pytest.raises(holdfast.errors.Conflict, match="began with other options"):
        await writers.for_session(session, Style(temperature=0.9))
    with pytest.raises(holdfast.UsageError, match="options do not validate"):
        await writers.for_session(session, {"heat": 1})
    readers = holdfast.Companions(Reader, sessions)
    reader = await readers.for_session(session, Style(temperature=0.9))
    assert (reader.options.temperature, reader.phase) == (0.9, "idle")
    assert (await writers.for_session(session)).handle != reader.handle

    class Strict(holdfast.state.CompanionOptions):
        model: str

    class Picky(holdfast.Companion[Draft, Strict]):
        phases = {"a": []}

    with pytest.raises(holdfast.UsageError, match="model"):
        await holdfast.Companions(Picky, sessions).for_session(session)


@pytest.mark.promise("companions.options")
async def test_options_are_compared_and_read_as_what_they_are() -> None:
    numbers = itertools.count()

    class State(holdfast.SessionState):
        id: int = Field(default_factory=lambda: next(numbers))

    class First(holdfast.state.CompanionOptions):
        heat: float = 0.5
        limit: int = Field(400, alias="maxTokens")
        tags: frozenset[str] = frozenset()
        gone: int = 0

    class Second(holdfast.state.CompanionOptions):
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
        helper = await first.for_session(session, First(heat=0.2, maxTokens=9, tags=frozenset("abcdef")))
        assert helper.options.limit == 9
        again = await new.find(session.handle, ALICE)
        kept = await second.for_session(again, Second(heat=0.2, maxTokens=9, tags=frozenset("fedcba")))
        assert (kept.options.limit, kept.options.new) == (9, "x")
        with pytest.raises(holdfast.errors.Conflict):
            await second.for_session(again, {})
        ids = {(await first.for_session(await old.begin(ALICE))).state.id for _ in range(5)}
        assert len(ids) == 5
        with pytest.raises(holdfast.UsageError, match="does not belong to"):
            await second.for_session(session)

        class Secret(holdfast.state.CompanionOptions):
            key: SecretStr

        with pytest.raises(holdfast.errors.UnstorableValue, match="key"):
            holdfast.Companions(made(Secret), holdfast.Sessions(Studio, store), options=Secret(key=SecretStr("x")))


@pytest.mark.promise("companions.isolation")
async def test_helpers_and_other_kinds_do_not_count_as_a_callers_sessions() -> None:
    async with holdfast.open_store("memory:") as store:
        sessions, drafts = holdfast.Sessions(Studio, store, quota=2), holdfast.Sessions(Draft, store)
        writers = holdfast.Companions(Writer, sessions)
        await drafts.begin(ALICE)
        for _ in range(2):
            await writers.for_session(await sessions.begin(ALICE))
        with pytest.raises(holdfast.errors.LimitReached, match="2 of 2"):
            await sessions.begin(ALICE)
        assert len(await sessions.all(ALICE)) == 2


@pytest.mark.promise("companions.phases")
def test_phases_that_make_no_sense_are_refused_with_the_class() -> None:
    for phases, said in (
        ({}, "no phases"),
        ({"a": ["b"]}, "'b', which is not declared"),
        ({"a": [], "b": ["a"]}, "nothing leads from 'a' to 'b'"),
        ({"a": "b", "b": []}, "must lead to a list"),
    ):
        with pytest.raises(holdfast.UsageError, match=said):
            _make(phases)
    with pytest.raises(holdfast.UsageError, match="does not declare its state and options"):

        class Bare(holdfast.Companion):  # type: ignore[type-arg]
            phases = {"a": []}

    with pytest.raises(holdfast.UsageError, match="must be a class derived from SessionState"):

        class Wrong(holdfast.Companion[dict, Style]):  # type: ignore[type-arg, type-var]
            phases = {"a": []}

    with pytest.raises(holdfast.UsageError, match="is not a companion class"):
        holdfast.Companions(Studio, holdfast.Sessions(Studio))  # type: ignore[type-var]


def _make(phases: dict[str, Any]) -> None:
    given = phases

    class Odd(holdfast.Companion[Draft, Style]):
        phases = given


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
        async with (await holdfast.Companions(Old, sessions).for_session(session)).step("go", to="b"):
            pass
        news = holdfast.Companions(New, later)
        helper = await news.for_session(await later.find(session.handle, ALICE))
        with pytest.raises(holdfast.errors.WrongPhase, match="'b', which its class does not know"):
            async with helper.step("go", to="c"):
                pass
        with pytest.raises(holdfast.UsageError, match="another companion of the kind"):
            holdfast.Companions(Old, later)
    with pytest.raises(holdfast.UsageError, match="is async"):

        class Asks(Writer):
            async def converged(self, signs: Convergence) -> bool:  # type: ignore[override]
                return True


@pytest.mark.promise("companions.parallel")
async def test_the_first_call_of_a_session_may_use_both_the_session_and_its_helper() -> None:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions)
    server = FastMCP("studio")
    sessions.install(server)

    @server.tool
    async def go(
        studio_id: str,
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
        await client.call_tool("go", {"studio_id": begun.handle})
    assert (await begun.read()).topic == "kelp"
    async with begun.edit() as state:
        await holdfast.Companions(Writer, sessions).for_session(begun)
        state.topic = "moss"


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
                helper = await each.for_session(session)
                async with helper.step("draft", to="drafted") as turn:
                    turn.state.text = f"{number}/{place}"

        await asyncio.gather(*(work(number) for number in range(100)))
        for number in range(0, 100, 9):
            for place, each in enumerate(companions):
                assert (await each.for_session(begun[number])).state.text == f"{number}/{place}"
        before = await store.count(kind=KIND, principal=own[3])
        assert before == 10 * 11
        helper = await companions[0].for_session(begun[3])
        await begun[3].end()
        assert await store.count(kind=KIND, principal=own[3]) == before - 11
        with pytest.raises(holdfast.errors.Ended):
            async with helper.step("critique", to="criticised"):
                pass
        with pytest.raises(holdfast.errors.Ended):
            await companions[1].for_session(begun[3])


@pytest.mark.promise("companions.isolation")
async def test_a_helper_ends_with_its_session_also_by_expiry_and_its_use_keeps_the_session() -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        sessions = holdfast.Sessions(Studio, store, idle=60.0, max_age=None)
        writers = holdfast.Companions(Writer, sessions)
        session = await sessions.begin(ALICE)
        writer = await drafted(writers, session)
        for number in range(3):
            clock.advance(40)  # each step is use
            await round_of(writer, number, ["a"])
        clock.advance(61)
        with pytest.raises(holdfast.errors.SessionExpired):
            async with writer.step("critique", to="criticised"):
                pass
        with pytest.raises(holdfast.errors.SessionExpired):
            await writer.undo()

        from holdfast.state.storage import ending

        await ending.end_orphans(store)
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
        await ending.end_orphans(store)
        assert await store.count(kind=KIND) == 2
        assert await store.get(KIND, f"{other.handle}.{Writer.kind}") is None

    sessions = holdfast.Sessions(Studio, idle=1.0)
    session = await sessions.begin(ALICE)
    async with (await holdfast.Companions(Writer, sessions).for_session(session)).lease("draft", to="drafted", ttl=0.9):
        await lasts(sessions)
    await session.read()


def tools_of(framework: str) -> tuple[Any, "holdfast.Companions[Writer]", "holdfast.Sessions[Studio]"]:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions)
    needs: dict[str, Any] = {
        "draft": writers.requires("empty"),
        "critique": writers.requires("drafted", "revised"),
        "finish": writers.requires(when=lambda writer: writer.state.points[0], say="There is no critique yet."),
    }

    def guard(function: Any) -> Any:
        return needs[function.__name__](function)

    if framework == "fastmcp":
        fast = FastMCP("studio")
        sessions.install(fast)

        @fast.tool
        @guard
        async def draft(studio_id: str, writer: Writer = Depends(writers)) -> str:
            async with writer.step("draft", to="drafted"):
                return writer.phase

        @fast.tool
        @guard
        async def critique(studio_id: str, writer: Writer = Depends(writers)) -> str:
            async with writer.step("critique", to="criticised") as turn:
                turn.state.points = ["short"]
                return writer.phase

        @fast.tool
        @guard
        async def finish(studio_id: str, writer: Writer = Depends(writers)) -> str:
            return writer.state.points[0]

        @fast.tool
        async def known(studio_id: str, insight: holdfast.state.Insight = Depends(writers.insight)) -> str:
            return f"{insight.phase} {insight.iteration}"

        return fast, writers, sessions
    official: MCPServer[Any] = MCPServer("studio")
    sessions.install(official)
    current = Annotated[Writer, Resolve(writers)]

    @official.tool(name="draft")
    @guard
    async def draft(writer: current, studio_id: str) -> str:
        async with writer.step("draft", to="drafted"):
            return writer.phase

    @official.tool(name="critique")
    @guard
    async def critique(writer: current, studio_id: str) -> str:
        async with writer.step("critique", to="criticised") as turn:
            turn.state.points = ["short"]
            return writer.phase

    @official.tool(name="finish")
    @guard
    async def finish(writer: current, studio_id: str) -> str:
        return writer.state.points[0]

    @official.tool()
    async def known(insight: Annotated[holdfast.state.Insight, Resolve(writers.insight)], studio_id: str) -> str:
        return f"{insight.phase} {insight.iteration}"

    return official, writers, sessions


@pytest.mark.promise("companions.guards")
@pytest.mark.parametrize("framework", ["fastmcp", "mcpserver"])
async def test_a_tool_in_the_wrong_phase_is_refused_with_the_next_step(framework: str) -> None:
    server, writers, sessions = tools_of(framework)
    client: Any = Client(server) if framework == "fastmcp" else mcp.Client(server)
    extra = {"raise_on_error": False} if framework == "fastmcp" else {}
    session = (await sessions.begin()).handle

    async def call(tool: str) -> tuple[bool, str]:
        answer = await client.call_tool(tool, {"studio_id": session}, **extra)
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
        unknown = await client.call_tool("draft", {"studio_id": "s_never"}, **extra)
        assert unknown.is_error
        assert "there is no such session" in str(unknown.content)
    assert writers.reporter.counting.figures.refusals == {"empty": 2, "drafted": 1}


@pytest.mark.promise("companions.guards")
async def test_a_tool_with_two_related_helpers_is_guarded_by_the_right_one() -> None:
    class Editor(Writer):
        pass

    sessions = holdfast.Sessions(Studio)
    writers, editors = holdfast.Companions(Writer, sessions), holdfast.Companions(Editor, sessions)
    session = await sessions.begin(ALICE)
    editor, writer = await editors.for_session(session), await writers.for_session(session)
    async with editor.step("draft", to="drafted"):
        pass

    @writers.requires("drafted", when=lambda writer: writer.state.txt)
    async def tool(editor: Editor, writer: Writer) -> str:
        return "ran"

    with pytest.raises(holdfast.errors.WrongPhase, match="in phase 'empty'"):
        await tool(editor, writer)
    async with writer.step("draft", to="drafted"):
        pass
    with pytest.raises(AttributeError, match="txt"):  # a slip of the author's is no missing draft
        await tool(editor, writer)
