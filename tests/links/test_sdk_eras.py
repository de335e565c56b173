"""A 2025 session of the SDK over a link to a 2026 server, and the other way round: nothing of the other era shows."""

from json import dumps, loads
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, ClientSession
from mcp.shared.exceptions import MCPError

from holdfast.links import LinkDispatcher, LinkTransport
from holdfast.testing import Fault, FaultServer
from tests.links.quick_links import link_to
from tests.links.web import WebAnswer, WebRequest, json_answer, web_server

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
ASKED = {"mode": "form", "message": "name?", "requestedSchema": {"type": "object", "properties": {}}}
SERVER_INFO = "io.modelcontextprotocol/serverInfo"


class Server2026:
    """Wants a name, and its parameter in a header."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any], str | None]] = []
        self.ends = True

    def handle(self, request: WebRequest) -> WebAnswer:
        message = loads(request.body) if request.body else {}
        method, params = message.get("method"), message.get("params") or {}
        region = request.headers.get("mcp-param-region")
        self.seen.append((str(method), params, region))

        def result(**more: Any) -> WebAnswer:
            full = {"resultType": "complete", "_meta": {SERVER_INFO: {"name": "s", "version": "1"}}, **more}
            return json_answer({"jsonrpc": "2.0", "id": message["id"], "result": full})

        def error(code: int, status: int, **data: Any) -> WebAnswer:
            said = {"code": code, "message": "no", "data": data}
            return json_answer({"jsonrpc": "2.0", "id": message["id"], "error": said}, status)

        if request.headers.get("mcp-protocol-version") != "2026-07-28":
            said = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
            return json_answer({"jsonrpc": "2.0", "id": message.get("id"), "error": said}, 400)
        if method == "server/discover":
            return result(supportedVersions=["2026-07-28"], capabilities={"tools": {}}, ttlMs=0, cacheScope="private")
        if method == "tools/list":
            return result(tools=[{"name": "t", "inputSchema": SCHEMA}], ttlMs=5, cacheScope="public")
        if method == "resources/read":
            return error(-32602, 400, uri=params["uri"])
        if region != params["arguments"]["region"]:
            return error(-32020, 400)
        if params["arguments"]["region"] == "nowhere":
            return error(-32021, 400, requiredCapabilities={"roots": {}})
        if "inputResponses" not in params or not self.ends:
            questions = {"who": {"method": "elicitation/create", "params": ASKED}}
            return result(resultType="input_required", inputRequests=questions, requestState="sealed")
        assert params["requestState"] == "sealed"
        return result(content=[{"type": "text", "text": dumps(params["inputResponses"])}])


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": params.message})


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("over", ["dispatcher", "transport"])
async def test_a_2025_session_over_a_2026_server_sees_2025_alone(over: str) -> None:
    served = Server2026()
    async with web_server(served.handle) as url, link_to(f"{url}/mcp") as link:
        if over == "dispatcher":
            context: Any = ClientSession(dispatcher=LinkDispatcher(link), elicitation_callback=accept)
        else:
            context = Client(LinkTransport(link), mode="legacy", elicitation_callback=accept)
        async with context as client:
            session = client if over == "dispatcher" else client.session
            if over == "dispatcher":
                await session.initialize()
            await session.send_ping()
            result = await session.call_tool("t", {"region": "north"})  # not listed: a refusal says what it wants
            assert result.content[0].text == '{"who": {"action": "accept", "content": {"name": "name?"}}}'
            methods = [method for method, *_ in served.seen]
            first = methods.index("tools/call")
            assert methods[first : first + 4] == ["tools/call", "tools/list", "tools/call", "tools/call"]
            assert served.seen[first + 3][2] == "north"
            calls = [
                ("tools/list", {}),
                ("tools/call", {"name": "t", "arguments": {"region": "north"}}),
            ]
            for method, params in calls:
                if over == "dispatcher":
                    raw = await session._dispatcher.send_raw_request(method, params)
                    assert not {"resultType", "ttlMs", "cacheScope", "_meta"} & set(raw)
            for ask, code in (
                (session.read_resource("x://y"), -32002),
                (session.call_tool("t", {"region": "nowhere"}), -32600),
            ):
                with pytest.raises(MCPError) as caught:
                    await ask
                assert caught.value.code == code
            served.ends = False
            with pytest.raises(MCPError) as caught:
                await session.call_tool("t", {"region": "north"})
            assert caught.value.data["holdfast"]["error"] == "LimitReached"


@pytest.mark.promise("link.sdk")
@pytest.mark.parametrize("over", ["dispatcher", "transport"])
async def test_a_2025_session_gets_2025_from_a_server_of_both_that_holds_no_session(over: str) -> None:
    """A link alone takes 2026 there. A session that asked for 2025 gets its server's own 2025."""
    async with FaultServer(era="both") as server:
        server.sessions.gives_sessions = False
        async with link_to(server.url) as alone:
            await alone.request("tools/list")
            assert alone.statistics().era == "2026"
        server.requests.clear()
        async with link_to(server.url) as link:
            if over == "dispatcher":
                async with ClientSession(dispatcher=LinkDispatcher(link)) as session:
                    await session.initialize()
                    await session.list_tools()
            else:
                async with Client(LinkTransport(link, close=False), mode="legacy") as client:
                    await client.list_tools()
            assert (link.statistics().era, link.statistics().why) == ("2025", "its user asked for it")
        assert [each.method for each in server.requests] == ["initialize", "notifications/initialized", "tools/list"]


@pytest.mark.promise("link.sdk")
async def test_a_2026_session_gets_the_error_that_its_2026_server_gave() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        async with Client(LinkTransport(link), mode="2026-07-28") as client:
            missing = {"jsonrpc": "2.0", "id": None, "error": {"code": -32002, "message": "Resource not found"}}
            server.plan(Fault.STATUS, method="resources/read", status=200, body=dumps(missing).encode())
            with pytest.raises(MCPError) as caught:
                await client.read_resource("x://y")
            assert caught.value.code == -32002


@pytest.mark.promise("link.sdk")
async def test_the_name_of_a_vendors_request_goes_into_its_header() -> None:
    """The session knows which parameter names it; for methods that the link knows, the link's word stands."""
    seen = dict[str, str | None]()

    def handle(request: WebRequest) -> WebAnswer:
        message = loads(request.body)
        seen[message["method"]] = request.headers.get("mcp-name")
        return json_answer({"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete"}})

    async with web_server(handle) as url, link_to(f"{url}/mcp") as link:
        link.introduction.assume("2026-07-28")
        dispatcher = LinkDispatcher(link)
        await dispatcher.send_raw_request("com.example/jobs", {"job": "j7"}, {"headers": {"Mcp-Name": "j7"}})
        await dispatcher.send_raw_request("tools/call", {"name": "t"}, {"headers": {"Mcp-Name": "another"}})
        await dispatcher.send_raw_request("com.example/none", {}, {"headers": {"mcp-method": "x"}})
    assert seen == {"com.example/jobs": "j7", "tools/call": "t", "com.example/none": None}


@pytest.mark.promise("link.sdk")
async def test_a_2026_session_over_a_2025_server_gets_the_code_of_2026() -> None:
    missing = {"jsonrpc": "2.0", "id": None, "error": {"code": -32002, "message": "Resource not found"}}
    async with FaultServer() as server, link_to(server.url) as link:
        async with Client(LinkTransport(link), mode="2026-07-28") as client:
            server.plan(Fault.STATUS, method="resources/read", status=200, body=dumps(missing).encode())
            await client.list_tools()
            with pytest.raises(MCPError) as caught:
                await client.read_resource("x://y")
            assert caught.value.code == -32602
