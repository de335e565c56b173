"""What we rely on in the SDK, one by one. After an SDK update, the test that fails says which door to look at."""

import inspect
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client, ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.session import DISCOVER_TIMEOUT_SECONDS
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.dispatcher import CallOptions, DispatchContext, Dispatcher, run_notify_intercept
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse
from mcp_types import version as versions

from holdfast.core import eras
from holdfast.core.eras import Era

pytestmark = pytest.mark.anyio


class Recorder:
    """The smallest dispatcher: answers from a table and writes down what it was asked."""

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any, CallOptions]] = []
        self.told: list[str] = []
        self.handlers: tuple[Any, ...] = ()

    async def send_raw_request(self, method: str, params: Any, opts: CallOptions | None = None) -> dict[str, Any]:
        self.asked.append((method, params, opts or {}))
        if method not in self.answers:
            raise MCPError(-32601, "Method not found")
        return dict(self.answers[method])

    async def notify(self, method: str, params: Any, opts: CallOptions | None = None) -> None:
        self.told.append(method)

    async def run(
        self, on_request: Any, on_notify: Any, intercept: Any = None, *, task_status: Any = anyio.TASK_STATUS_IGNORED
    ) -> None:
        self.handlers = (on_request, on_notify, intercept)
        task_status.started()
        await anyio.sleep_forever()


INITIALIZED = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {},
    "ttlMs": 0,
    "cacheScope": "private",
}
CALLED = {"content": []}


@pytest.mark.promise("link.sdk-assumptions")
async def test_versions_are_the_ones_that_we_speak() -> None:
    assert set(eras.VERSIONS[Era.Y2025]) == set(versions.HANDSHAKE_PROTOCOL_VERSIONS)
    assert set(eras.VERSIONS[Era.Y2026]) == set(versions.MODERN_PROTOCOL_VERSIONS)
    assert eras.VERSIONS[Era.Y2025][0] == versions.LATEST_HANDSHAKE_VERSION
    assert eras.VERSIONS[Era.Y2026][0] == versions.LATEST_MODERN_VERSION


@pytest.mark.promise("link.sdk-assumptions")
async def test_the_envelopes_keys_are_the_sdks() -> None:
    assert eras.PROTOCOL_VERSION == types.PROTOCOL_VERSION_META_KEY
    assert eras.CLIENT_CAPABILITIES == types.CLIENT_CAPABILITIES_META_KEY
    assert eras.CLIENT_INFO == types.CLIENT_INFO_META_KEY
    assert eras.LOG_LEVEL == types.LOG_LEVEL_META_KEY
    assert eras.SERVER_INFO == types.SERVER_INFO_META_KEY
    assert eras.UNSUPPORTED_VERSION == types.UNSUPPORTED_PROTOCOL_VERSION
    from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

    assert eras.SUBSCRIPTION_ID == SUBSCRIPTION_ID_META_KEY


@pytest.mark.promise("link.sdk-assumptions")
async def test_header_values_are_encoded_as_the_sdk_does() -> None:
    from mcp.shared.inbound import NAME_BEARING_METHODS, decode_header_value, encode_header_value

    for value in ("plain", "with space", " led", "écho", "a\nb", "=?base64?eA==?=", "", "ß" * 50, "a\tb"):
        assert eras.header_value(value) == encode_header_value(value), value
        assert decode_header_value(eras.header_value(value)) == value
    assert NAME_BEARING_METHODS.items() <= eras.NAMED_BY.items()


@pytest.mark.promise("link.sdk-assumptions")
async def test_a_session_takes_a_dispatcher_starts_it_and_makes_its_handshake_through_it() -> None:
    recorder = Recorder({"initialize": INITIALIZED, "tools/call": CALLED, "tools/list": {"tools": []}})
    async with ClientSession(dispatcher=recorder) as session:
        assert len(recorder.handlers) == 3
        result = await session.initialize()
        assert result.protocol_version == "2025-11-25"
        assert recorder.asked[0][0] == "initialize"
        assert {"clientInfo", "capabilities", "protocolVersion"} <= recorder.asked[0][1].keys()
        assert recorder.told == ["notifications/initialized"]
        await session.initialize()
        assert len(recorder.asked) == 1  # a second handshake is impossible, so the link must make the handshake


@pytest.mark.promise("link.sdk-assumptions")
async def test_discover_carries_capabilities_in_meta_and_a_session_stamps_2026_requests() -> None:
    recorder = Recorder({"server/discover": DISCOVERED, "tools/list": {**DISCOVERED, "tools": []}})
    async with ClientSession(dispatcher=recorder) as session:
        await session.discover()
        method, params, opts = recorder.asked[0]
        assert method == "server/discover"
        assert types.CLIENT_CAPABILITIES_META_KEY in params["_meta"]
        assert opts.get("timeout") == DISCOVER_TIMEOUT_SECONDS
        await session.list_tools()
        method, params, opts = recorder.asked[1]
        assert params["_meta"][types.PROTOCOL_VERSION_META_KEY] == "2026-07-28"
        assert {name.lower() for name in opts.get("headers", {})} >= {"mcp-method", "mcp-protocol-version"}


@pytest.mark.promise("link.sdk-assumptions")
async def test_a_2026_session_wants_result_type_and_cache_hints() -> None:
    bare = Recorder({"server/discover": DISCOVERED, "tools/list": {"tools": []}})
    async with ClientSession(dispatcher=bare) as session:
        await session.discover()
        with pytest.raises(ValueError, match="resultType"):
            await session.list_tools()
    shaped = eras.result_in(Era.Y2026, "tools/list", {"tools": []})
    full = Recorder({"server/discover": DISCOVERED, "tools/list": shaped})
    async with ClientSession(dispatcher=full) as session:
        await session.discover()
        assert (await session.list_tools()).tools == []


@pytest.mark.promise("link.sdk-assumptions")
async def test_a_2025_session_ignores_what_only_2026_has() -> None:
    recorder = Recorder({"initialize": INITIALIZED, "tools/list": {**DISCOVERED, "tools": []}})
    async with ClientSession(dispatcher=recorder) as session:
        await session.initialize()
        assert (await session.list_tools()).tools == []


@pytest.mark.promise("link.sdk-assumptions")
async def test_only_mcp_error_may_leave_a_dispatcher() -> None:
    """A session lets an MCPError through to its caller and lives on."""
    recorder = Recorder({"initialize": INITIALIZED})
    async with ClientSession(dispatcher=recorder) as session:
        await session.initialize()
        with pytest.raises(MCPError):
            await session.list_tools()
        with pytest.raises(MCPError):
            await session.list_tools()


@pytest.mark.promise("link.sdk-assumptions")
async def test_the_protocols_have_the_shape_that_we_implement() -> None:
    assert list(inspect.signature(Dispatcher.run).parameters) == [
        "self", "on_request", "on_notify", "on_notify_intercept", "task_status",
    ]  # fmt: skip
    assert list(inspect.signature(Dispatcher.send_raw_request).parameters) == ["self", "method", "params", "opts"]
    members = {"transport", "can_send_request", "request_id", "message_metadata", "cancel_requested", "progress"}
    assert members <= set(dir(DispatchContext))
    assert {"request_id", "timeout", "on_progress", "headers"} <= CallOptions.__annotations__.keys()
    assert run_notify_intercept(None, "x", None) is False


@pytest.mark.promise("link.sdk-assumptions")
async def test_a_client_takes_any_pair_of_message_streams_and_puts_headers_into_metadata() -> None:
    to_client, for_client = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    from_client, written = anyio.create_memory_object_stream[SessionMessage](10)
    seen: list[SessionMessage] = []

    class Transport:
        async def __aenter__(self) -> Any:
            return for_client, from_client

        async def __aexit__(self, *_: object) -> None:
            for stream in (to_client, for_client, from_client, written):
                stream.close()

    async def answer() -> None:
        async for item in written:
            seen.append(item)
            if isinstance(item.message, JSONRPCRequest):
                await to_client.send(
                    SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=item.message.id, result=DISCOVERED))
                )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        async with Client(Transport()) as client:  # type: ignore[arg-type]
            assert client.protocol_version == "2026-07-28"
        tasks.cancel_scope.cancel()
    metadata = seen[0].metadata
    assert isinstance(metadata, ClientMessageMetadata)
    assert metadata.headers is not None


@pytest.mark.promise("link.sdk-assumptions")
async def test_a_server_object_serves_both_eras_over_a_pair_of_streams() -> None:
    server = MCPServer("x")
    lowlevel = server._lowlevel_server
    assert isinstance(lowlevel, Server)
    for method in ("initialize", "server/discover"):
        params: dict[str, Any] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": INITIALIZED["serverInfo"],
        }
        if method == "server/discover":
            params = eras.stamp_2026(None, "2026-07-28", {"name": "x", "version": "1"}, {})
        async with create_client_server_memory_streams() as ((read, write), (server_read, server_write)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lowlevel.run, server_read, server_write, lowlevel.create_initialization_options())
                await write.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id="1", method=method, params=params)))
                item = await read.receive()
                assert isinstance(item, SessionMessage)
                assert isinstance(item.message, JSONRPCResponse)
                tasks.cancel_scope.cancel()


@pytest.mark.promise("link.sdk-assumptions")
async def test_fastmcp_keeps_its_low_level_server_where_we_look() -> None:
    from fastmcp import FastMCP

    server = FastMCP("x")
    assert isinstance(server._mcp_server, Server)
    assert callable(server._lifespan_manager)


@pytest.mark.promise("link.sdk-assumptions")
async def test_an_oauth_provider_is_an_httpx2_flow_that_yields_the_request_itself() -> None:
    assert issubclass(OAuthClientProvider, httpx2.Auth)
    basic = httpx2.BasicAuth("a", "b")
    request = httpx2.Request("POST", "http://host/")
    flow = basic.async_auth_flow(request)
    assert await anext(flow) is request
    assert request.headers["authorization"].startswith("Basic ")
    await flow.aclose()
