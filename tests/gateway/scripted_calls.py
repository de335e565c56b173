"""Calls of the tool of a scripted backend `s`, in both eras."""

from typing import Any

from holdfast.gateway.server import Program
from tests.deadlines import until
from tests.gateway.clients import BOTH, RawClient

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def call_of(client_era: str, id: int = 7, **extra: Any) -> dict[str, Any]:
    meta = {"_meta": dict(META)} if client_era == "2026" else {}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "s__t", **meta, **extra}}


async def ready(program: Program, client: RawClient, client_era: str, accept: str = BOTH) -> dict[str, str]:
    """The headers of a call."""
    await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
    if client_era == "2025":
        await client.initialize()
        return client.headers(accept=accept)
    return client.headers(accept=accept, mcp_protocol_version="2026-07-28", mcp_method="tools/call", mcp_name="s__t")
