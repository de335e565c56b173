"""`x-mcp-header` in all four cells: the parameter is repeated in a header for a 2026 server, and for no other."""

from json import loads
from typing import Any

import pytest
from mcp import Client

from holdfast.links import LinkTransport
from tests.links.quick_links import link_to
from tests.links.web import WebAnswer, WebRequest, json_answer, web_server

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
VERSIONS = {"2025": "2025-11-25", "2026": "2026-07-28"}


class RawServer:
    """Speaks one era, and has one tool that wants a parameter in a header."""

    def __init__(self, era: str) -> None:
        self.era = era
        self.calls: list[tuple[dict[str, Any], dict[str, str]]] = []

    def handle(self, request: WebRequest) -> WebAnswer:
        message: dict[str, Any] = loads(request.body) if request.body else {}
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message:
            return WebAnswer(202 if message else 405)
        version = request.headers.get("mcp-protocol-version")
        if (version == VERSIONS["2026"]) is not (self.era == "2026"):
            said = {"code": -32022, "message": "no", "data": {"supported": [VERSIONS[self.era]]}}
            return json_answer({"jsonrpc": "2.0", "id": message["id"], "error": said}, 400)
        result: dict[str, Any] = {"capabilities": {"tools": {}}}
        if method == "initialize":
            result |= {"protocolVersion": VERSIONS["2025"], "serverInfo": {"name": "raw", "version": "1"}}
        elif method == "server/discover":
            result |= {"supportedVersions": [VERSIONS["2026"]], "ttlMs": 0, "cacheScope": "private"}
        elif method == "tools/list":
            result = {"tools": [{"name": "t", "inputSchema": SCHEMA}], "ttlMs": 0, "cacheScope": "private"}
        else:
            headers = {name: value for name, value in request.headers.items() if name.startswith("mcp-param-")}
            self.calls.append((params["arguments"], headers))
            if self.era == "2026" and headers != {"mcp-param-region": params["arguments"]["region"]}:
                error = {"code": -32020, "message": "Mcp-Param-Region does not match"}
                return json_answer({"jsonrpc": "2.0", "id": message["id"], "error": error}, 400)
            result = {"content": []}
        if self.era == "2026":
            result["resultType"] = "complete"
        return json_answer({"jsonrpc": "2.0", "id": message["id"], "result": result})


@pytest.mark.promise("link.sdk-eras")
@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("server_era", ["2025", "2026"])
@pytest.mark.parametrize("client_era", ["2025", "2026"])
async def test_a_parameter_goes_into_a_header_for_2026_servers_only(
    client_era: str, server_era: str, lists: bool
) -> None:
    server = RawServer(server_era)
    async with web_server(server.handle) as url, link_to(f"{url}/mcp") as link:
        mode: Any = "legacy" if client_era == "2025" else VERSIONS["2026"]
        async with Client(LinkTransport(link), mode=mode) as client:
            if lists:
                await client.list_tools()
            await client.call_tool("t", {"region": "north"})
        arguments, headers = server.calls[-1]
        assert arguments == {"region": "north"}
        assert headers == ({"mcp-param-region": "north"} if server_era == "2026" else {})
        if lists:
            assert len(server.calls) == 1
        assert link.statistics().era == server_era
