"""What a tool's definition decides: parameter headers, and whether a result fits its schema."""

import mcp_types as types
import pytest

import holdfast
from holdfast import Server
from holdfast.client.calls import listed_tools
from holdfast.testing import Fault, FaultServer
from tests.client.servers import at, said

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.typed")
async def test_a_tool_that_wants_parameters_in_headers_is_listed_once_and_called_again() -> None:
    async with FaultServer(era="2026") as http:
        server = at(http)
        async with holdfast.run():
            await server.ping()
            mismatch = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"Mcp-Param-Region is missing"}}'
            http.plan(Fault.STATUS, method="tools/call", status=400, body=mismatch)
            before = len(http.requests)
            assert said(await server.call_tool("echo", {"text": "x"})) == "x"
            assert [request.method for request in http.requests[before:]] == ["tools/call", "tools/list", "tools/call"]
            http.plan(Fault.STATUS, method="tools/call", status=400, body=mismatch, times=2)
            with pytest.raises(holdfast.errors.ErrorAnswer):
                await server.call_tool("echo", {"text": "x"})


@pytest.mark.promise("run.typed")
async def test_a_servers_output_schema_makes_us_fetch_nothing_and_raises_ours() -> None:
    for schema in ({"$ref": "http://127.0.0.1:1/secret"}, {"type": "wibble"}, {"$ref": "#/nope"}, {"type": "string"}):
        tool = types.Tool(name="t", input_schema={"type": "object"}, output_schema=schema)
        result = types.CallToolResult(content=[], structured_content={"a": 1})
        with pytest.raises(holdfast.errors.BadAnswer):
            listed_tools.check_result(Server("s", url="http://h/"), tool, result)
