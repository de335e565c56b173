"""Errors as a tool's caller reads them: no address, no owner."""

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
