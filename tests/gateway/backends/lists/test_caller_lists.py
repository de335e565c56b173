"""A server that wants a header of the caller on every request, and shows each tenant other tools."""

from pathlib import Path

import pytest

from holdfast.events import BackendItemLeftOut, Event
from holdfast.testing import FaultServer, Refusal, Request
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.raw_backend import raw_http

TOOLS = {"moss": ("count", "echo"), "fern": ("count", "log")}


class TenantServer(FaultServer):
    """401 to whatever names no tenant; `x-tenant` decides what is listed."""

    async def intercept(self, request: Request) -> Refusal | None:
        tenant = request.headers.get("x-tenant")
        if tenant not in TOOLS:
            return Refusal("no tenant", 401, headers={"www-authenticate": self.challenge})
        self.sessions.tools = TOOLS[tenant]
        return None


def refused(server: FaultServer) -> list[str | None]:
    return [request.method or request.verb for request in server.requests if "x-tenant" not in request.headers]


@pytest.mark.promise("gateway.headers")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_passed_headers_go_with_every_request_and_each_caller_sees_its_own_lists(
    tmp_path: Path, era: str
) -> None:
    async with TenantServer(era=era) as http, FaultServer() as plain:  # type: ignore[arg-type]
        servers = {"t": {"url": http.url, "pass_headers": ["X-Tenant"], "era": era}, "plain": {"url": plain.url}}
        async with gateway(tmp_path, servers) as program:
            async with RawClient(program.url) as moss, RawClient(program.url) as fern:
                for client, tenant in ((moss, "moss"), (fern, "fern")):
                    await client.initialize()
                    listed = (await client.ask("tools/list", x_tenant=tenant)).result["tools"]
                    names = {tool["name"] for tool in listed if tool["name"].startswith("t__")}
                    assert names == {f"t__{name}" for name in TOOLS[tenant]}
                    assert "plain__count" in {tool["name"] for tool in listed}
                    for number in ("1", "2"):
                        call = {"name": "t__count", "arguments": {}}
                        counted = (await client.ask("tools/call", call, x_tenant=tenant)).text
                        assert counted == (number if era == "2025" else "")
                echo = {"name": "t__echo", "arguments": {"text": "x"}}
                assert (await moss.ask("tools/call", echo, x_tenant="moss")).text == "x"
                assert "Unknown tool" in (await fern.ask("tools/call", echo, x_tenant="fern")).error["message"]
                if era == "2025":
                    async with moss.stream(x_tenant="moss"):
                        await until(lambda: http.streams)
                    assert (await moss.delete()).status == 204
                    assert http.sessions.deletes == 1
    assert refused(http) == []


@pytest.mark.promise("gateway.headers")
async def test_a_2026_client_without_a_session_passes_its_headers_too(tmp_path: Path) -> None:
    async with TenantServer() as http:
        servers = {"t": {"url": http.url, "pass_headers": ["X-Tenant"]}}
        async with gateway(tmp_path, servers, sessions={"steer": False}) as program, RawClient(program.url) as client:
            for tenant in TOOLS:
                listed = (await client.ask_2026("tools/list", x_tenant=tenant)).result["tools"]
                assert {tool["name"] for tool in listed} == {f"t__{name}" for name in TOOLS[tenant]}
                call = {"name": "t__count", "arguments": {}}
                assert (await client.ask_2026("tools/call", call, x_tenant=tenant)).text == "1"
            lists = sum(request.method == "tools/list" for request in http.requests)
            call = {"name": "t__count", "arguments": {}}
            assert (await client.ask_2026("tools/call", call, x_tenant="moss")).text == "1"
            assert sum(request.method == "tools/list" for request in http.requests) == lists  # known by now
            await client.ask_2026("tools/list", x_tenant="moss")
            assert sum(request.method == "tools/list" for request in http.requests) == lists + 1  # a call came between
    assert refused(http) == []


@pytest.mark.promise("gateway.redeployed")
async def test_new_tools_of_a_server_with_passed_headers_are_seen_by_its_callers(tmp_path: Path) -> None:
    async with FaultServer() as http:
        servers = {"t": {"url": http.url, "pass_headers": ["X-Tenant"]}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            assert "t__fresh" not in await client.tools()
            http.sessions.tools, http.sessions.version = ("fresh",), "2"
            assert "t__fresh" not in await client.tools()
            await http.restart()
            async with client.stream() as events:
                await client.call("t__count")
                assert (await events.next())["method"] == "notifications/tools/list_changed"
            assert "t__fresh" in await client.tools()


BAD = '{"tools": [{"name": "t", "inputSchema": {"type": "object"}}, 7, {"title": "nameless"}]}'


@pytest.mark.promise("gateway.fidelity")
async def test_bad_items_of_callers_own_lists_are_reported_once(tmp_path: Path) -> None:
    told: list[Event] = []
    async with raw_http({"era": "2025", "tools": BAD}) as url:
        servers = {"bad": {"url": url, "era": "2025", "pass_headers": ["X-Tenant"]}}
        async with gateway(tmp_path, servers, sink=told.append) as program:
            for tenant in ("moss", "fern"):
                async with RawClient(program.url) as client:
                    await client.initialize()
                    listed = (await client.ask("tools/list", x_tenant=tenant)).result["tools"]
                    assert [tool["name"] for tool in listed] == ["bad__t"]
            left_out = [event.what for event in told if isinstance(event, BackendItemLeftOut)]
            assert left_out == ["tools[1] is not an object", "tools[2] has no name"]
            assert program.gateway is not None
            assert program.gateway.describe()["backends"]["bad"]["left_out"] == left_out


@pytest.mark.promise("gateway.fidelity")
async def test_bad_items_of_a_sessions_own_lists_are_reported(tmp_path: Path) -> None:
    told: list[Event] = []
    said = {"era": "2025"}
    async with raw_http(said) as url:
        async with gateway(tmp_path, {"bad": {"url": url, "era": "2025"}}, sink=told.append) as program:
            async with RawClient(program.url) as client:
                await client.initialize()
                assert program.gateway is not None
                (session,) = program.gateway.sessions.live.values()
                await until(lambda: session.links["bad"].is_up)
                said["tools"] = BAD
                session.links.on_notification("bad", "notifications/tools/list_changed", None)
                await until(lambda: sum(isinstance(event, BackendItemLeftOut) for event in told) == 2)
