"""Servers as the tests of runs declare them, and what they answered."""

from typing import Any

import mcp_types as types

import holdfast
from holdfast import Server
from holdfast.testing import FaultServer, stdio_target
from tests.links.quick_links import FAST

FASTER = holdfast.links.Limits(
    **{
        **{name: getattr(FAST, name) for name in FAST.__dataclass_fields__},
        "exit": 0.5,
        "handshake": 5,
        "program_handshake": 20,
    }
)


def at(server: FaultServer, name: str = "it", **more: Any) -> Server:
    return Server(name, url=server.url, limits=FASTER, **more)


def program(name: str = "program", **more: Any) -> Server:
    target = stdio_target()
    return Server(name, command=target.command, args=target.args, limits=FASTER, **more)


def said(result: types.CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, types.TextContent)
    return content.text


async def count(server: Server) -> int:
    return int(said(await server.call_tool("count")))
