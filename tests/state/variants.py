"""More tools on the example servers: what tests need and a shop does not. The same names on both frameworks."""

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Any

import holdfast

if TYPE_CHECKING:
    from fastmcp import FastMCP
    from mcp.server.mcpserver import MCPServer


async def _slow_edit(basket: "holdfast.Session[Any]", article: str, fail: bool) -> str:
    async with basket.edit("slow") as draft:
        draft.put(article)
        await asyncio.sleep(0.05)  # a turn of some length
        if fail:
            raise RuntimeError("half-way")
    return "done"


def _note(sessions: "holdfast.Sessions[Any]") -> Any:
    async def note(text: str, basket: Any) -> str:
        basket.note = text
        return text

    note.__annotations__["basket"] = sessions.kind
    return sessions.writes(note)


class Numbers(holdfast.SessionState):
    value: int = 0


class Number:
    value = 0


REQUEST = holdfast.state.RequestScope(Number)
SERVER = holdfast.state.ServerScope(Number)
PERSISTENT = holdfast.Sessions(
    Numbers,
    os.environ.get("BASKETS", "memory:"),
    identity=[holdfast.state.ForEveryone()],
    idle=None,
    max_age=None,
)


async def _mark(basket: "holdfast.Session[Any]", everyone: "holdfast.Session[Numbers]") -> dict[str, int]:
    """Add one in every scope, and tell what is there."""
    execution = 1
    REQUEST.get().value += 1

    def up(state: Numbers) -> None:
        state.value += 1

    return {
        "execution": execution,
        "request": REQUEST.get().value,
        "session": (await basket.update(lambda state: state.put("mark"))).items["mark"],
        "server": SERVER.count("value"),
        "persistent": (await everyone.update(up)).value,
    }


def fastmcp(server: "FastMCP[Any]", sessions: "holdfast.Sessions[Any]") -> None:
    from fastmcp.dependencies import Depends

    @server.tool
    async def slow(
        article: str, basket_id: str = "", fail: bool = False, basket: "holdfast.Session[Any]" = Depends(sessions)
    ) -> str:
        return await _slow_edit(basket, article, fail)

    server.tool(_note(sessions))

    @server.tool
    async def where(basket_id: str = "", basket: "holdfast.Session[Any]" = Depends(sessions)) -> str:
        return basket.handle

    PERSISTENT.install(server, tools=False)

    @server.tool
    async def mark(
        basket_id: str = "",
        basket: "holdfast.Session[Any]" = Depends(sessions),
        everyone: "holdfast.Session[Numbers]" = Depends(PERSISTENT),
    ) -> dict[str, int]:
        return await _mark(basket, everyone)


def mcpserver(server: "MCPServer[Any]", sessions: "holdfast.Sessions[Any]") -> None:
    from mcp.server.mcpserver.resolve import Resolve

    current = Annotated[holdfast.Session[Any], Resolve(sessions)]

    @server.tool()
    async def slow(article: str, basket: current, basket_id: str = "", fail: bool = False) -> str:  # type: ignore[valid-type]
        return await _slow_edit(basket, article, fail)

    server.tool()(_note(sessions))

    @server.tool()
    async def where(basket: current, basket_id: str = "") -> str:  # type: ignore[valid-type]
        return basket.handle  # type: ignore[attr-defined, no-any-return]

    PERSISTENT.install(server, tools=False)
    everybody = Annotated[holdfast.Session[Numbers], Resolve(PERSISTENT)]

    @server.tool()
    async def mark(basket: current, everyone: everybody, basket_id: str = "") -> dict[str, int]:  # type: ignore[valid-type]
        return await _mark(basket, everyone)
