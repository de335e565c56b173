"""What a call under saving middleware writes is one write: more than that is refused before any of it is written."""

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import mcp
import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY

pytestmark = pytest.mark.anyio


class Basket(holdfast.SessionState):
    items: list[str] = []


class Purse(holdfast.SessionState):
    items: list[str] = []


Call = Callable[..., Awaitable[tuple[bool, str]]]
both_frameworks = pytest.mark.parametrize("framework", ["fastmcp", "mcpserver"])


@asynccontextmanager
async def calling(server: Any) -> AsyncGenerator[Call]:
    """A function that calls a tool: (is it an error, its text)."""
    is_fast = isinstance(server, FastMCP)
    client: Any = Client(server) if is_fast else mcp.Client(server)
    extra: dict[str, Any] = {"raise_on_error": False} if is_fast else {}

    async def call(tool: str, key: str | None = None, **arguments: Any) -> tuple[bool, str]:
        meta = {IDEMPOTENCY_KEY: key} if key else None
        answer = await client.call_tool(tool, arguments, meta=meta, **extra)
        return answer.is_error, "\n".join(getattr(part, "text", "") for part in answer.content)

    async with client:
        yield call


async def from_outside(work: Awaitable[Any]) -> Any:
    """As another process does it: outside the call under way."""

    async def run() -> Any:
        return await work

    return await asyncio.get_running_loop().create_task(run(), context=contextvars.Context())


def of_two_kinds(
    framework: str, order: str, baskets: "holdfast.Sessions[Basket]", purses: "holdfast.Sessions[Purse]"
) -> Any:
    """A shop whose tool changes what it is asked to change, of two kinds of saved sessions."""
    server: Any = FastMCP("shop") if framework == "fastmcp" else MCPServer("shop")
    for kind in order.split():
        (baskets if kind == "basket" else purses).install(server, save=True, noun=kind)

    async def pay(basket: Any, purse: Any, change: str) -> str:
        if "basket" in change:
            basket.draft.items.append("x")
        if "purse" in change:
            purse.draft.items.append("x")
        if "touched" in change:
            await from_outside((await baskets.find(basket.handle)).update(lambda state: state.items.append("other")))
        return "paid"

    if framework == "fastmcp":

        @server.tool(name="pay")
        async def on_fastmcp(
            basket_id: str,
            purse_id: str,
            change: str,
            basket: holdfast.Session[Basket] = Depends(baskets),
            purse: holdfast.Session[Purse] = Depends(purses),
        ) -> str:
            return await pay(basket, purse, change)

        return server

    @server.tool(name="pay")
    async def on_mcpserver(
        basket_id: str,
        purse_id: str,
        change: str,
        basket: Annotated[holdfast.Session[Basket], Resolve(baskets)],
        purse: Annotated[holdfast.Session[Purse], Resolve(purses)],
    ) -> str:
        return await pay(basket, purse, change)

    return server


@both_frameworks
@pytest.mark.parametrize("order", ["basket purse", "purse basket"])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.promise("state.middleware")
async def test_a_call_that_changes_two_kinds_of_saved_sessions_writes_neither(
    framework: str, order: str, key: str | None
) -> None:
    async with holdfast.open_store("memory:") as store:
        baskets = holdfast.Sessions(Basket, store, identity=[holdfast.state.FromArgument("basket_id")])
        purses = holdfast.Sessions(Purse, store, identity=[holdfast.state.FromArgument("purse_id")])
        basket, purse = await baskets.begin(), await purses.begin()
        ids = {"basket_id": basket.handle, "purse_id": purse.handle}
        async with calling(of_two_kinds(framework, order, baskets, purses)) as call:
            for change in ("basket purse", "basket purse touched"):
                failed, said = await call("pay", key, **ids, change=change)
                assert failed
                assert "can't be saved as one" in said
                assert (await purse.read()).items == []
                assert (await basket.read()).items == (["other"] if "touched" in change else [])
            if key is not None:  # its answer would be kept in both
                failed, said = await call("pay", key, **ids, change="basket")
                assert failed
                assert "can't be saved as one" in said
                assert (await basket.read()).items == ["other"]
                return
            assert await call("pay", **ids, change="basket") == (False, "paid")  # what is only read is no harm
            assert await call("pay", **ids, change="purse") == (False, "paid")
            assert ((await basket.read()).items, (await purse.read()).items) == (["other", "x"], ["x"])


@pytest.mark.promise("state.middleware")
async def test_what_is_changed_after_another_kind_was_saved_is_refused() -> None:
    """A nested server saves its own kind when the nested call ends: what the outer call changes then can't be one
    with it."""
    baskets, purses = holdfast.Sessions(Basket), holdfast.Sessions(Purse)
    basket, purse = await baskets.begin(), await purses.begin()
    inner, outer = FastMCP("bank"), FastMCP("shop")
    purses.install(inner, save=True, tools=False)
    baskets.install(outer, save=True, tools=False)

    @inner.tool
    async def spend(session_id: str, purse: holdfast.Session[Purse] = Depends(purses)) -> None:
        purse.draft.items.append("x")

    @outer.tool
    async def pay(session_id: str, first: bool, basket: holdfast.Session[Basket] = Depends(baskets)) -> None:
        if first:
            basket.draft.items.append("x")
        await outer.call_tool("bank_spend", {"session_id": purse.handle})
        basket.draft.items.append("x")

    outer.mount(inner, namespace="bank")
    async with calling(outer) as call:
        failed, said = await call("pay", session_id=basket.handle, first=True)
        assert failed
        assert "can't be saved as one" in said
        assert ((await basket.read()).items, (await purse.read()).items) == ([], [])
        failed, said = await call("pay", session_id=basket.handle, first=False)
        assert failed
        assert "was already saved during this call" in said
        assert ((await basket.read()).items, (await purse.read()).items) == ([], ["x"])


@both_frameworks
@pytest.mark.promise("state.once")
async def test_a_key_is_refused_by_a_call_whose_answer_is_not_kept(framework: str) -> None:
    sessions = holdfast.Sessions(Basket)
    server: Any = FastMCP("shop") if framework == "fastmcp" else MCPServer("shop")
    sessions.install(server, save=True, noun="basket")
    other = holdfast.Sessions(Purse)
    other.install(server, save=True, noun="purse")
    runs: list[str] = []

    async def charge(session_id: str) -> str:
        runs.append("charge")
        return "charged"

    async def put(session_id: str) -> str:
        session = await sessions.find(session_id)
        async with session.edit() as draft:
            draft.items.append("x")
        return "put"

    server.tool()(charge)
    server.tool()(put)
    begun = await sessions.begin()
    async with calling(server) as call:
        failed, said = await call("charge", "k", session_id=begun.handle)
        assert failed
        assert "used no session, so its answer was not stored under the idempotency key; it was executed" in said
        assert runs == ["charge"]  # nobody can know before, and the caller is told
        failed, said = await call("put", "k", session_id=begun.handle)
        assert failed
        assert "would not be covered by the call's idempotency key" in said
        assert (await begun.read()).items == []
        assert await call("charge", session_id=begun.handle) == (False, "charged")
        assert await call("put", session_id=begun.handle) == (False, "put")
        # the lifecycle tools ignore keys
        assert not (await call("resume_basket", "k", session_id=begun.handle))[0]
        assert not (await call("fork_basket", "k", session_id=begun.handle))[0]
        assert not (await call("end_basket", "k", session_id=begun.handle))[0]
        assert not (await call("create_basket", "k"))[0]


async def end_found(sessions: "holdfast.Sessions[Any]", handle: str) -> None:
    await (await sessions.find(handle)).end()


async def end_by_handle(sessions: "holdfast.Sessions[Any]", handle: str) -> None:
    await sessions.end(handle)


@pytest.mark.promise("state.middleware")
@pytest.mark.parametrize("end", [end_found, end_by_handle])
@pytest.mark.parametrize("is_other_kind", [False, True], ids=["same kind", "another kind"])
async def test_a_saving_call_ends_no_other_session(end: Any, is_other_kind: bool) -> None:
    sessions, server = holdfast.Sessions(Basket), FastMCP("shop")
    theirs: holdfast.Sessions[Any] = holdfast.Sessions(Purse) if is_other_kind else sessions
    sessions.install(server, save=True)
    mine, other = await sessions.begin(), await theirs.begin()

    @server.tool
    async def first(session_id: str) -> None:
        await end(theirs, other.handle)
        (await sessions()).draft.items.append("x")

    @server.tool
    async def last(session_id: str) -> None:
        (await sessions()).draft.items.append("x")
        await end(theirs, other.handle)

    @server.tool
    async def alone(session_id: str) -> None:
        await end(theirs, other.handle)

    async with calling(server) as call:
        failed, said = await call("last", session_id=mine.handle)
        assert failed
        assert "is written at once" in said
        await other.read()  # lives
        assert await call("alone", session_id=mine.handle) == (False, "")
        with pytest.raises(holdfast.errors.Ended):
            await other.read()
        failed, said = await call("first", session_id=mine.handle)
        assert failed
        assert (await mine.read()).items == []


@pytest.mark.promise("state.middleware")
async def test_a_saving_call_may_end_the_session_that_it_has_taken() -> None:
    sessions, server = holdfast.Sessions(Basket), FastMCP("shop")
    sessions.install(server, save=True)

    @server.tool
    async def close(session_id: str, way: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> str:
        basket.draft.items.append("x")
        if way == "own":
            await basket.end()
        else:
            await (end_found if way == "found" else end_by_handle)(sessions, session_id)
        return "closed"

    async with calling(server) as call:
        for way in ("own", "found", "handle"):
            begun = await sessions.begin()
            assert await call("close", session_id=begun.handle, way=way) == (False, "closed")
            with pytest.raises(holdfast.errors.Ended):
                await begun.read()


@pytest.mark.promise("state.middleware")
async def test_a_refused_save_says_what_stands() -> None:
    sessions, others, server = holdfast.Sessions(Basket), holdfast.Sessions(Purse), FastMCP("shop")
    sessions.install(server, save=True)
    mine, purse = await sessions.begin(), await others.begin()

    @server.tool
    async def go(session_id: str, way: str) -> None:
        (await sessions()).draft.items.append("x")
        match way:
            case "begin":
                await sessions.begin()
            case "write":
                await (await others.find(purse.handle)).update(lambda state: state.items.append("x"))
            case _:
                pass
        await from_outside((await sessions.find(session_id)).update(lambda state: state.items.append("other")))

    async with calling(server) as call:
        for way, stands in (("begin", "a session that it began"), ("write", "a change of a session of another kind")):
            failed, said = await call("go", session_id=mine.handle, way=way)
            assert failed
            assert f"nothing of this one was written; what may have been written: {stands}; try again" in said
        assert "may stand" not in (await call("go", session_id=mine.handle, way=""))[1]


@both_frameworks
@pytest.mark.promise("state.once")
async def test_a_key_for_ones_own_session_needs_nobody_authenticated_beside_everyones(framework: str) -> None:
    """The session that is everyone's would keep no key of an unknown caller; who does not take it needs none there."""
    async with holdfast.open_store("memory:") as store:
        baskets = holdfast.Sessions(Basket, store)
        everyones = holdfast.Sessions(Purse, store, identity=[holdfast.state.ForEveryone()])
        server: Any = FastMCP("shop") if framework == "fastmcp" else MCPServer("shop")
        baskets.install(server, save=True, noun="basket")
        everyones.install(server, save=True, tools=False)
        begun = await baskets.begin()

        if framework == "fastmcp":

            @server.tool(name="add")
            async def add_here(session_id: str, basket: holdfast.Session[Basket] = Depends(baskets)) -> int:
                basket.draft.items.append("x")
                return len(basket.draft.items)

            @server.tool(name="fill")
            async def fill_here(purse: holdfast.Session[Purse] = Depends(everyones)) -> None:
                purse.draft.items.append("x")

        else:

            @server.tool(name="add")
            async def add(session_id: str, basket: Annotated[holdfast.Session[Basket], Resolve(baskets)]) -> int:
                basket.draft.items.append("x")
                return len(basket.draft.items)

            @server.tool(name="fill")
            async def fill(purse: Annotated[holdfast.Session[Purse], Resolve(everyones)]) -> None:
                purse.draft.items.append("x")

        async with calling(server) as call:
            for _ in range(2):
                assert await call("add", "k", session_id=begun.handle) == (False, "1")
            failed, said = await call("fill", "k")
            assert failed
            assert "needs an authenticated caller" in said
            assert (await call("fill"))[0] is False
