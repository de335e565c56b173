"""What a hunt found in the first version of server sessions: each was silent, or said the wrong thing."""

import asyncio
import contextvars
from functools import partial
from typing import Annotated, Any

import mcp
import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.dependencies import Depends
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import Context as SdkContext
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ElicitResult
from pydantic import BaseModel, Field, PrivateAttr, SecretStr, computed_field

import holdfast
from holdfast.state.frameworks.injection import principal_of
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY
from tests.links.kit import until

pytestmark = pytest.mark.anyio


class B(holdfast.SessionState):
    items: list[str] = []
    note: str = ""


@pytest.mark.promise("state.updates")
async def test_nothing_done_inside_an_edit_hides_somebody_elses_write() -> None:
    sessions = holdfast.Sessions(B)
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
            with pytest.raises(holdfast.Conflict):
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
    told = [each for each in done if isinstance(each, holdfast.Conflict)]
    assert len((await mine.read()).items) == 2 - len(told)


def saving(*kinds: "holdfast.Sessions[Any]") -> "FastMCP[Any]":
    server = FastMCP("shop")
    for number, sessions in enumerate(kinds):
        sessions.install(server, noun=f"kind{number}", save=True)
    return server


@pytest.mark.promise("state.middleware")
async def test_a_saving_call_never_writes_over_what_others_wrote_meanwhile() -> None:
    sessions = holdfast.Sessions(B)
    server = saving(sessions)

    async def write(session_id: str) -> None:
        await (await sessions.find(session_id)).update(lambda state: state.items.append("other"))

    @server.tool
    async def look(session_id: str, how: str, b: holdfast.Session[B] = Depends(sessions)) -> str:
        # As another process would: not in this call.
        await asyncio.create_task(write(session_id), context=contextvars.Context())
        if how == "note":
            await b.log.add("note")
        elif how == "undo":
            await b.undo()
        elif how == "lease":
            async with b.lease() as draft:
                draft.note = "lost?"
        else:
            await b.read()
        return "ok"

    async with Client(server) as client:
        for how in ("read", "note", "undo", "lease"):
            begun = await sessions.begin()
            answer = await client.call_tool("look", {"session_id": begun.handle, "how": how}, raise_on_error=False)
            assert (await begun.read()).items == ["other"]
            assert answer.is_error == (how != "read")
            assert [entry.label for entry in await begun.log.last()] == ["update"]


@pytest.mark.promise("state.injection")
async def test_a_nested_call_means_its_own_session() -> None:
    sessions = holdfast.Sessions(B)
    official: MCPServer[Any] = MCPServer("shop", middleware=[sessions.middleware(save=False)])

    @official.tool(name="add")
    async def put(item: str, b: Annotated[holdfast.Session[B], Resolve(sessions)], session_id: str = "") -> str:
        await b.update(lambda state: state.items.append(item))
        return "ok"

    @official.tool()
    async def copy_to(session_id: str, other: str, ctx: SdkContext[Any, Any]) -> str:
        with holdfast.nested_scope():
            await ctx.mcp_server.call_tool("add", {"item": "copied", "session_id": other}, ctx)
        return "ok"

    @official.tool()
    async def whose(b: Annotated[holdfast.Session[B], Resolve(sessions.unnamed)]) -> str:
        return b.handle

    fast = FastMCP("shop")
    sessions.install(fast)

    @fast.tool
    async def add(item: str, session_id: str, ctx: Context) -> str:
        b = await sessions(ctx)  # type: ignore[arg-type]
        await (await sessions()).update(lambda state: state.items.append(item))
        return b.handle

    @fast.tool
    async def copy(session_id: str, other: str, ctx: Context) -> str:
        await ctx.fastmcp.call_tool("add", {"item": "copied", "session_id": other})
        return "ok"

    one, other = await sessions.begin(), await sessions.begin()
    async with mcp.Client(official) as client:
        done = await client.call_tool("copy_to", {"session_id": one.handle, "other": other.handle})
        assert not done.is_error, done.content
    async with mcp.Client(official, mode="legacy") as client:
        assert not (await client.call_tool("whose", {})).is_error  # by its 2025 session
    async with Client(fast) as asking:
        await asking.call_tool("copy", {"session_id": one.handle, "other": other.handle})
    assert (await one.read()).items == []
    assert (await other.read()).items == ["copied", "copied"]


class Ok(BaseModel):
    sure: bool = True


@pytest.mark.promise("state.once")
async def test_a_question_to_the_client_is_no_answer_to_keep() -> None:
    sessions = holdfast.Sessions(B)
    server: MCPServer[Any] = MCPServer("shop")
    sessions.install(server, save=True)
    current = Annotated[holdfast.Session[B], Resolve(sessions)]

    async def ask(b: current) -> Elicit[Ok]:  # type: ignore[valid-type]
        b.draft.items.append("asked")  # type: ignore[attr-defined]
        return Elicit("sure?", Ok)

    @server.tool()
    async def order(b: current, ok: Annotated[Ok, Resolve(ask)], session_id: str = "") -> str:  # type: ignore[valid-type]
        b.draft.items.append("ordered")  # type: ignore[attr-defined]
        return "ordered"

    async def agree(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"sure": True})

    begun = await sessions.begin()
    async with mcp.Client(server, elicitation_callback=agree) as client:
        for _ in range(2):
            answer = await client.call_tool("order", {"session_id": begun.handle}, meta={IDEMPOTENCY_KEY: "k"})
            assert str(answer.content[0].text) == "ordered"  # type: ignore[union-attr]
    assert (await begun.read()).items == ["asked", "ordered"]


@pytest.mark.promise("state.middleware")
async def test_a_call_that_outlives_the_one_that_began_it_is_saved_by_itself() -> None:
    sessions = holdfast.Sessions(B)
    server = saving(sessions)
    later: list[asyncio.Task[Any]] = []
    gate = asyncio.Event()

    @server.tool
    async def good(session_id: str, b: holdfast.Session[B] = Depends(sessions)) -> str:
        b.draft.items.append("good")
        return "saved"

    @server.tool
    async def begins(session_id: str, b: holdfast.Session[B] = Depends(sessions)) -> str:
        async def work() -> None:
            await gate.wait()
            await server.call_tool("good", {"session_id": session_id})

        later.append(asyncio.ensure_future(work()))
        return "begun"

    @server.tool
    async def bad(session_id: str, b: holdfast.Session[B] = Depends(sessions)) -> str:
        b.draft.items.append("half")
        raise RuntimeError

    @server.tool
    async def outer(session_id: str, ctx: Context, b: holdfast.Session[B] = Depends(sessions)) -> str:
        b.draft.items.append("before")
        try:
            await ctx.fastmcp.call_tool("bad", {"session_id": session_id})
        except Exception:
            b.draft.items.append("after")
        return "ok"

    begun = await sessions.begin()
    async with Client(server) as client:
        await client.call_tool("begins", {"session_id": begun.handle})
        gate.set()
        await asyncio.gather(*later)
        assert (await begun.read()).items == ["good"]
        await client.call_tool("outer", {"session_id": begun.handle})
        assert (await begun.read()).items == ["good", "before", "after"]


@pytest.mark.promise("state.middleware")
async def test_two_kinds_of_sessions_are_saved_on_one_server_and_two_sessions_in_one_call_are_not() -> None:
    class C(holdfast.SessionState):
        n: int = 0

    bees, cees = holdfast.Sessions(B), holdfast.Sessions(C)
    server = saving(bees, cees)

    @server.tool
    async def both(session_id: str, second: str = "", b: holdfast.Session[B] = Depends(bees)) -> str:
        b.draft.items.append("x")
        if second:
            (await bees(None, session_id=second)).draft.items.append("y")
        return "ok"

    @server.tool
    async def up(session_id: str, c: holdfast.Session[C] = Depends(cees)) -> int:
        c.draft.n += 1
        return c.draft.n

    b, other, c = await bees.begin(), await bees.begin(), await cees.begin()
    async with Client(server) as client:
        for key in (None, {IDEMPOTENCY_KEY: "1"}):
            await client.call_tool("both", {"session_id": b.handle}, meta=key)
            await client.call_tool("up", {"session_id": c.handle}, meta=key)
        assert ((await b.read()).items, (await c.read()).n) == (["x", "x"], 2)
        two = {"session_id": b.handle, "second": other.handle}
        answer = await client.call_tool("both", two, raise_on_error=False)
        assert answer.is_error
        assert "2 sessions" in str(answer.content)
        assert ((await b.read()).items, (await other.read()).items) == (["x", "x"], [])
        wrong = await client.call_tool("up", {"session_id": c.handle}, meta={IDEMPOTENCY_KEY: 7}, raise_on_error=False)
        assert wrong.is_error
        assert "is not text" in str(wrong.content)


class Item(BaseModel):
    name: str = Field("", alias="articleName")


class Special(Item):
    price: int = 0


class Kept(holdfast.SessionState):
    label: str = Field("", alias="articleLabel")
    things: list[Item] = []
    secret: SecretStr = SecretStr("")
    anything: Any = None
    hidden: str = Field("", exclude=True)
    _private: str = PrivateAttr("")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> str:
        return self.label * 2


@pytest.mark.promise("state.bad-input")
async def test_what_is_written_comes_back_equal_or_is_refused_by_name() -> None:
    sessions = holdfast.Sessions(Kept)
    session = await sessions.begin(state=Kept(articleLabel="moss"))
    assert session.state.twice == "mossmoss"
    await session.update(lambda state: state.things.append(Item(articleName="fig")))
    found = (await sessions.find(session.handle)).state
    assert (found.label, found.things) == ("moss", [Item(articleName="fig")])

    def private(state: Kept) -> None:
        state._private = "x"

    for change, said in (
        (lambda state: state.things.append(Special(articleName="x", price=9)), "things"),
        (lambda state: setattr(state, "secret", SecretStr("hunter2")), "secret"),
        (lambda state: setattr(state, "anything", Item()), "anything"),
        (lambda state: setattr(state, "hidden", "x"), "hidden"),
        (private, "not in its fields"),
    ):
        with pytest.raises(holdfast.UnstorableValue, match=said):
            await session.update(change)
    for state, error in (
        (Kept(secret=SecretStr("x")), holdfast.UnstorableValue),
        (Kept(anything=(1, 2)), holdfast.UnstorableValue),
        (Kept(anything=b"\xff"), holdfast.UnstorableValue),
        (type("More", (Kept,), {})(), holdfast.UsageError),
    ):
        with pytest.raises(error):
            await sessions.begin(state=state)
    with pytest.raises(holdfast.UsageError, match="'version' is taken"):

        class Taken(holdfast.SessionState):
            version: str = ""  # type: ignore[assignment, misc]


@pytest.mark.promise("state.bad-input")
async def test_a_function_that_returns_something_else_is_told() -> None:
    session = await holdfast.Sessions(B).begin(state=B(items=["a", ""]))

    async def later(state: B) -> None:
        state.note = "x"

    wrong: list[Any] = [lambda state: state.items.pop(), lambda state: 0, later]
    for change in wrong:
        with pytest.raises(holdfast.UsageError, match="the function returned"):
            await session.update(change)

    class Empty(holdfast.SessionState):
        items: list[str] = []

        def __len__(self) -> int:
            return len(self.items)

    full = await holdfast.Sessions(Empty).begin(state=Empty(items=["x"]))
    assert (await full.update(lambda _: Empty())).items == []


@pytest.mark.promise("state.owners")
def test_no_two_callers_are_taken_for_one() -> None:
    def caller(client: str, issuer: str | None, subject: str | None) -> str:
        claims = {"iss": issuer} if issuer else {}
        token = AccessToken(token="t", client_id=client, scopes=[], subject=subject, claims=claims)
        request = type("Request", (), {"scope": {"user": AuthenticatedUser(token)}})()
        return principal_of(request)

    known = {
        caller("app", "https://i", "alice"),
        caller("app", None, "https://i alice"),
        caller("app https://i alice", None, None),
        caller("app", "https://i", None),
        caller("app", None, "https://i"),
    }
    assert len(known) == 5


@pytest.mark.promise("state.real")
def test_a_store_in_memory_is_there_in_the_next_event_loop() -> None:
    sessions = holdfast.Sessions(B)
    begun = asyncio.run(sessions.begin())
    assert asyncio.run(sessions.find(begun.handle)).handle == begun.handle


@pytest.mark.promise("state.real")
async def test_a_closed_store_is_not_called_an_unknown_session() -> None:
    async with holdfast.open_store("memory:") as store:
        sessions = holdfast.Sessions(B, store)
        begun = await sessions.begin()
    with pytest.raises(holdfast.LeaseClosed):
        await sessions.find(begun.handle)


@pytest.mark.promise("state.once")
async def test_kept_answers_leave_room_and_a_huge_one_is_refused() -> None:
    sessions = holdfast.Sessions(B)
    session = await sessions.begin()
    for number in range(20):
        assert len(await session.once(f"k{number}", lambda _: "x" * 30_000)) == 30_000
    await session.update(lambda state: setattr(state, "note", "y" * 500_000))
    with pytest.raises(holdfast.LimitReached, match="too large to be kept"):
        await session.once("big", lambda state: (state.items.append("?"), "x" * 300_000)[1])
    assert (await session.read()).items == []


@pytest.mark.promise("state.versions")
async def test_a_migration_in_place_keeps_history_and_classes_inherit_theirs() -> None:
    class Old(holdfast.SessionState):
        items: list[dict[str, Any]] = []

    class New(holdfast.SessionState, version=2):
        items: list[dict[str, Any]] = []

        @holdfast.migrate(from_version=1)
        @staticmethod
        def _v1(raw: dict[str, Any]) -> dict[str, Any]:
            for item in raw["items"]:
                item["quantity"] = item.pop("count")
            return raw

    class Newer(New):
        pass

    assert (Newer.version, list(Newer.migrations)) == (2, [1])
    async with holdfast.open_store("memory:") as store:
        old = await holdfast.Sessions(Old, store, name="n").begin(state=Old(items=[{"count": 1}]))
        new = await holdfast.Sessions(New, store, name="n").find(old.handle)
        await new.update(lambda state: state.items.append({"quantity": 2}))
        assert (await new.undo()).items == [{"quantity": 1}]


@pytest.mark.promise("state.history")
async def test_an_undo_gets_behind_entries_that_changed_nothing() -> None:
    session = await holdfast.Sessions(B).begin()
    await session.update(lambda state: state.items.append("a"))
    await session.update(lambda state: state.items.append("b"))
    await session.log.add("thought")
    assert (await session.undo()).items == ["a"]
    assert (await session.undo()).items == ["a", "b"]


async def lasts(sessions: "holdfast.Sessions[Any]") -> None:
    """A turn of five renewals, a third of its time to live each."""
    store = await sessions.opened()
    renew, renewed = store.renew, 0

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal renewed
        renewed += 1
        return await renew(*args, **kwargs)

    store.renew = counted  # type: ignore[method-assign]
    await until(lambda: renewed == 5, 30)


@pytest.mark.promise("state.leases")
async def test_a_turn_longer_than_the_idle_time_keeps_its_session() -> None:
    sessions = holdfast.Sessions(B, idle=1.0)
    session = await sessions.begin()
    async with session.lease(ttl=0.9) as draft:
        draft.note = "long"
        await lasts(sessions)
    assert (await session.read()).note == "long"


@pytest.mark.promise("state.injection")
async def test_fields_with_factories_are_made_for_each_session_and_constraints_are_shown() -> None:
    numbers = iter(range(100))

    class Order(holdfast.SessionState):
        number: int = Field(default_factory=lambda: next(numbers))
        count: int = Field(1, ge=1, description="How many")

    sessions = holdfast.Sessions(Order)
    server = FastMCP("shop")
    sessions.install(server, create=["number", "count"])
    async with Client(server) as client:
        schema = next(tool for tool in await client.list_tools() if tool.name == "create_session").input_schema
        assert schema["properties"]["count"]["minimum"] == 1
        assert schema["properties"]["count"]["description"] == "How many"
        made = [(await client.call_tool("create_session", {})).data["session_id"] for _ in range(3)]
        assert len({(await sessions.find(each)).state.number for each in made}) == 3
        wrong = await client.call_tool("create_session", {"count": 0}, raise_on_error=False)
        assert wrong.is_error
        given = (await client.call_tool("create_session", {"number": 77})).data["session_id"]
        assert (await sessions.find(given)).state.number == 77


@pytest.mark.promise("state.injection")
async def test_inject_takes_functions_as_people_write_them() -> None:
    sessions = holdfast.Sessions(B)
    current = Annotated[holdfast.Session[B], Resolve(sessions)]
    server: MCPServer[Any] = MCPServer("shop")

    @server.resource("one://{session_id}/{ctx}")
    @sessions.inject
    async def one(session_id: str, ctx: str, b: current) -> str:  # type: ignore[valid-type]
        return f"{ctx} {b.handle}"  # type: ignore[attr-defined]

    @server.prompt()
    @sessions.inject
    def two(session_id: str, b: current, ctx: SdkContext[Any, Any] | None = None) -> str:  # type: ignore[valid-type]
        assert ctx is not None
        return str(b.handle)  # type: ignore[attr-defined]

    begun = await sessions.begin()
    async with mcp.Client(server) as client:
        read = await client.read_resource(f"one://{begun.handle}/here")
        assert read.contents[0].text == f"here {begun.handle}"  # type: ignore[union-attr]
        prompt = await client.get_prompt("two", {"session_id": begun.handle})
        assert prompt.messages[0].content.text == begun.handle  # type: ignore[union-attr]
    with pytest.raises(holdfast.UsageError, match="no parameter to fill"):
        sessions.inject(lambda: None)
