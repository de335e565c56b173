"""Errors as a tool's caller reads them: no address, no owner."""

import inspect
import logging
import sqlite3
from pathlib import Path
from typing import Annotated, Any

import mcp
import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast import errors
from holdfast.state.storage.records import new_handle
from holdfast.state.tool_errors import shown

pytestmark = pytest.mark.anyio


class Basket(holdfast.SessionState):
    items: list[str] = []
    price: float = 0.0


@pytest.mark.promise("state.injection")
async def test_a_tool_error_tells_the_caller_no_address_and_no_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "private" / "place.db"
    path.parent.mkdir()
    sessions = holdfast.Sessions(Basket, f"sqlite:///{path}?timeout=0.1")
    fast = FastMCP("shop")
    sessions.install(fast)
    official: MCPServer[Any] = MCPServer("shop")
    sessions.install(official)

    @fast.tool(name="put")
    async def put_here(basket_id: str, plain: holdfast.Session[Basket] = Depends(sessions)) -> str:
        await plain.update(lambda state: setattr(state, "price", state.price + 1))
        return "ok"

    @official.tool()
    async def put(basket_id: str, plain: Annotated[holdfast.Session[Basket], Resolve(sessions)]) -> str:
        await plain.update(lambda state: setattr(state, "price", state.price + 1))
        return "ok"

    @fast.tool
    async def turn(basket_id: str, plain: holdfast.Session[Basket] = Depends(sessions)) -> str:
        async with plain.lease():
            return "ok"

    async with Client(fast) as client, mcp.Client(official) as other:
        begun = await sessions.begin()
        arguments = {"basket_id": begun.handle}
        async with begun.lease():
            busy = (await client.call_tool("turn", arguments, raise_on_error=False)).content[0].text
        assert "another long turn on this session is in progress" in busy
        assert "lease-" not in busy
        with sqlite3.connect(path, isolation_level=None) as locking:
            locking.execute("BEGIN IMMEDIATE")
            told = [
                (await client.call_tool("put", arguments, raise_on_error=False)).content[0].text,
                getattr((await other.call_tool("put", arguments)).content[0], "text", ""),
            ]
            locking.execute("ROLLBACK")
        locking.close()
        for each in told:
            assert "the server's store does not answer" in each
            assert "private" not in each
            assert "place.db" not in each
        assert "place.db is locked" in caplog.text  # the operator is told where
        with pytest.raises(holdfast.errors.NotFound, match="there is no such session"):
            await sessions.find("s_unknown")
        await sessions.close()


class Foreign:
    """A store of somebody else's making, whose driver's errors come through."""

    def __init__(self, store: holdfast.Store) -> None:
        self._store = store
        self.broken = ""

    def __getattr__(self, name: str) -> Any:
        if name != self.broken:
            return getattr(self._store, name)

        async def fail(*_: object, **__: object) -> None:
            raise OSError("no route to private.place:5432")

        return fail


@pytest.mark.promise("state.injection")
async def test_errors_of_a_foreign_store_reach_no_caller_of_a_lifecycle_tool(caplog: pytest.LogCaptureFixture) -> None:
    async with holdfast.open_store("memory:") as store:
        foreign: Any = Foreign(store)
        sessions = holdfast.Sessions(Basket, foreign)
        fast, official = FastMCP("shop"), MCPServer("shop")
        sessions.install(fast)
        sessions.install(official)
        named = {"basket_id": (await sessions.begin()).handle}
        calls: list[tuple[str, str, dict[str, Any]]] = [
            ("get", "resume_basket", named),
            ("log", "resume_basket", named),
            ("commit", "fork_basket", named),
            ("commit", "create_basket", {}),
            ("end", "end_basket", named),
        ]
        async with Client(fast) as client, mcp.Client(official) as other:
            for broken, tool, arguments in calls:
                foreign.broken = broken
                on_fast = await client.call_tool(tool, arguments, raise_on_error=False)
                for answer in (on_fast, await other.call_tool(tool, arguments)):
                    assert answer.is_error
                    said = getattr(answer.content[0], "text", "")
                    assert "the server failed" in said
                    assert "private.place" not in said
            foreign.broken = ""
        assert "no route to private.place" in caplog.text


class Shown(Exception):
    """A framework's class of errors that callers see."""


CLASSES = sorted(
    (kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, holdfast.HoldfastError)),
    key=lambda kind: kind.__name__,
)
HANDLE, OWNER, ADDRESS = new_handle(), "lease-4711@web-3.internal", "postgresql://app:secret@db.internal:5432/shop"
JARGON = ("state/", "state-key", "fence", "compare-and-swap", "CAS", "rev 3", "URL KIND ID", "open_store", "tombstone")


def _made(made: type[holdfast.HoldfastError], what: str, **fields: Any) -> holdfast.HoldfastError:
    if issubclass(made, errors.UnstorableValue):
        fields["path"] = "data.items[3]"
    return made(what, **fields)


@pytest.mark.promise("state.words")
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("source", ["store", "address", "ours", "no remedy"])
def test_no_class_of_error_shows_a_caller_what_is_not_its_business(
    kind: type[holdfast.HoldfastError], source: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    match source:
        case "store":  # in a store's own words, with the record's name
            what = f"state/{HANDLE} is claimed by {OWNER} with fence 7 at rev 3: tombstone"
            error = _made(kind, what, kind="state", id=HANDLE, remedy="`holdfast store end URL KIND ID` ends it")
        case "address":
            error = _made(kind, f"{ADDRESS} refused {OWNER}", store=ADDRESS, remedy="open_store(…, keys=…)")
        case "ours":  # written for callers, and then somebody put a handle or an address into it
            error = _made(
                kind, f"the session {HANDLE!r} at {ADDRESS} is busy", id=HANDLE, remedy=f"end {HANDLE}.writer"
            )
        case _:
            error = _made(kind, "it can't be done", stderr_tail=f"Traceback {ADDRESS}")
    before = str(error)
    seen = str(shown(error, Shown))
    assert isinstance(error, Shown)
    assert isinstance(error, kind)
    for secret in (HANDLE, HANDLE[:12], OWNER, ADDRESS, "db.internal", "secret", "Traceback", *JARGON):
        assert secret not in seen
    said, _, step = seen.rpartition("; ") if "; " in seen else seen.rpartition(": ")
    assert len(said) > 5
    assert len(step) > 10, "it does not say what to do next"
    assert before in caplog.text  # the operator has all of it


@pytest.mark.promise("state.words")
async def test_what_real_refusals_say_to_a_model_on_both_frameworks() -> None:
    """Each of them made by a tool, as a model would read it."""
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock, max_bytes=2_000) as store:
        sessions = holdfast.Sessions(Basket, store, idle=60.0, quota=50)
        handles = {name: (await sessions.begin()).handle for name in ("free", "held", "ended", "expired", "beaten")}
        clock.advance(50)
        for name in ("free", "held", "ended", "beaten"):
            await store.touch("state", handles[name])
        clock.advance(20)
        await sessions.end(handles["ended"])

        async def act(session: "holdfast.Session[Basket]", what: str) -> str:
            match what:
                case "large":
                    await session.update(lambda state: state.items.append("x" * 5_000))
                case "lease":
                    async with session.lease():
                        pass
                case "back":
                    await session.restore(99)
                case "undo":
                    await session.undo()
                case "beaten":
                    async with session.edit() as draft:
                        other = await sessions.find(session.handle)
                        await other.update(lambda state: state.items.append("faster"))
                        draft.price = 2.0
                case "lost":
                    async with session.lease(ttl=30) as draft:
                        clock.advance(31)
                        await store.claim("state", session.handle, owner=OWNER, ttl=30)
                        draft.price = 3.0
                case _:
                    await session.read()
            return "ok"

        fast, official = FastMCP("shop"), MCPServer("shop")
        sessions.install(fast)
        sessions.install(official)

        @fast.tool(name="act")
        async def act_here(basket_id: str, what: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> str:
            return await act(basket, what)

        async def act_there(
            basket_id: str, what: str, basket: Annotated[holdfast.Session[Basket], Resolve(sessions)]
        ) -> str:
            return await act(basket, what)

        official.add_tool(act_there, name="act")
        await store.claim("state", handles["held"], owner=OWNER, ttl=3_000)
        cases = [
            ("free", "large", "larger than the server keeps"),
            ("free", "back", "ask for one from 1 to 1"),
            ("free", "undo", "there is nothing to undo; go on from what is there now"),
            ("held", "lease", "another long turn on this session is in progress; wait until it ends"),
            ("ended", "read", "this session was ended, and what it held is gone; call create_basket to begin one"),
            ("expired", "read", "this session has expired, and what it held is gone; call create_basket to begin one"),
            ("beaten", "beaten", "another call was faster, and nothing of this one was written; do it again"),
            ("unknown", "read", "there is no such session; call create_basket to begin one"),
        ]
        async with Client(fast) as client, mcp.Client(official) as other:
            for name, what, wanted in cases:
                arguments = {"basket_id": handles.get(name, new_handle()), "what": what}
                here = await client.call_tool("act", arguments, raise_on_error=False)
                for answer in (here, await other.call_tool("act", arguments)):
                    assert answer.is_error, (name, what)
                    text = getattr(answer.content[0], "text", "")
                    assert wanted in text
                    for secret in (*handles.values(), OWNER, *JARGON):
                        assert secret not in text
            lost = await client.call_tool("act", {"basket_id": handles["free"], "what": "lost"}, raise_on_error=False)
            assert "another call was faster, and nothing of this one was kept; read it again" in lost.content[0].text
