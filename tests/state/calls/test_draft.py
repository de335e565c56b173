"""Drafts: what one call changes is gathered, written once after it, and never over somebody else's write."""

import asyncio
import contextvars
from typing import Any

import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.dependencies import Depends

import holdfast
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY
from holdfast.state.session import Session

pytestmark = pytest.mark.anyio


class Basket(holdfast.SessionState):
    items: list[str] = []
    note: str = ""


def saving(*kinds: "holdfast.Sessions[Any]") -> "FastMCP[Any]":
    server = FastMCP("shop")
    for number, sessions in enumerate(kinds):
        sessions.install(server, noun=f"kind{number}", save=True)
    return server


@pytest.mark.promise("state.middleware")
async def test_a_saving_call_never_writes_over_what_others_wrote_meanwhile() -> None:
    sessions = holdfast.Sessions(Basket)
    server = saving(sessions)

    async def write(session_id: str) -> None:
        await (await sessions.find(session_id)).update(lambda state: state.items.append("other"))

    @server.tool
    async def look(session_id: str, how: str, b: holdfast.Session[Basket] = Depends(sessions)) -> str:
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


@pytest.mark.promise("state.middleware")
async def test_a_call_that_outlives_the_one_that_began_it_is_saved_by_itself() -> None:
    sessions = holdfast.Sessions(Basket)
    server = saving(sessions)
    later: list[asyncio.Task[Any]] = []
    gate = asyncio.Event()

    @server.tool
    async def good(session_id: str, b: holdfast.Session[Basket] = Depends(sessions)) -> str:
        b.draft.items.append("good")
        return "saved"

    @server.tool
    async def begins(session_id: str, b: holdfast.Session[Basket] = Depends(sessions)) -> str:
        async def work() -> None:
            await gate.wait()
            await server.call_tool("good", {"session_id": session_id})

        later.append(asyncio.ensure_future(work()))
        return "begun"

    @server.tool
    async def bad(session_id: str, b: holdfast.Session[Basket] = Depends(sessions)) -> str:
        b.draft.items.append("half")
        raise RuntimeError

    @server.tool
    async def outer(session_id: str, ctx: Context, b: holdfast.Session[Basket] = Depends(sessions)) -> str:
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

    bees, cees = holdfast.Sessions(Basket), holdfast.Sessions(C)
    server = saving(bees, cees)

    @server.tool
    async def both(session_id: str, second: str = "", b: holdfast.Session[Basket] = Depends(bees)) -> str:
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


@pytest.mark.promise("state.middleware")
async def test_a_saving_call_reads_what_it_has_written_itself() -> None:
    sessions = holdfast.Sessions(Basket)
    server = FastMCP("shop")
    sessions.install(server, save=True)

    @server.tool
    async def add(session_id: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> list[int]:
        async with basket.edit() as draft:
            draft.items.append("a")
        seen = [len(basket.state.items), len((await basket.read()).items)]
        await basket.log.add("note")
        for hidden in (basket.fork, basket.log.last):
            with pytest.raises(holdfast.UsageError, match="writes that after the call"):
                await hidden()
        return seen

    begun = await sessions.begin()
    async with Client(server) as client:
        assert (await client.call_tool("add", {"session_id": begun.handle})).data == [1, 1]
    assert (await begun.read()).items == ["a"]


@pytest.mark.promise("state.middleware")
@pytest.mark.parametrize("way", ["edit", "update", "once", "lease", "undo", "add"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
async def test_a_saving_call_writes_no_other_session_at_once(way: str, is_first: bool) -> None:
    """If the save is refused the caller is told that nothing was written: the other session's change would stand."""
    sessions, server = holdfast.Sessions(Basket), FastMCP("shop")
    sessions.install(server, save=True)
    mine, theirs = await sessions.begin(), await sessions.begin()
    await theirs.update(lambda state: state.items.append("x"))

    async def write(other: Session[Basket]) -> None:
        match way:
            case "edit" | "lease":
                async with getattr(other, way)() as draft:
                    draft.items.append("a")
            case "once":
                await other.once("key", lambda state: state.items.append("a"))
            case "update":
                await other.update(lambda state: state.items.append("a"))
            case "undo":
                await other.undo()
            case _:
                await other.log.add("note")

    @server.tool
    async def move(session_id: str) -> None:
        if not is_first:
            (await sessions()).draft.items.append("b")
        await write(await sessions.find(theirs.handle))
        (await sessions()).draft.items.append("b")

    async with Client(server) as client:
        answer = await client.call_tool("move", {"session_id": mine.handle}, raise_on_error=False)
        assert answer.is_error
        assert "is written at once" in str(answer.content)
        assert (await sessions.find(mine.handle)).rev == 1
        if not is_first:  # what came first is told of, and stands
            assert (await sessions.find(theirs.handle)).rev == 2
    outside = await sessions.find(theirs.handle)
    await outside.update(lambda state: state.items.append("y"))
    await write(outside)  # as ever


@pytest.mark.promise("state.middleware")
async def test_two_edits_at_once_within_a_saving_call_are_told() -> None:
    sessions = holdfast.Sessions(Basket)
    server = FastMCP("shop")
    sessions.install(server, save=True)

    @server.tool
    async def both(session_id: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> str:
        async def edit(note: str) -> None:
            async with basket.edit() as state:
                await asyncio.sleep(0)
                state.note += note

        done = await asyncio.gather(edit("a"), edit("b"), return_exceptions=True)
        return ",".join(type(each).__name__ for each in done)

    begun = await sessions.begin()
    async with Client(server) as client:
        assert (await client.call_tool("both", {"session_id": begun.handle})).data == "NoneType,Conflict"
    assert (await begun.read()).note == "a"
