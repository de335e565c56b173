"""Requests and notifications of extensions and vendors reach the server, or the client, that has them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from holdfast.gateway.backends.identity import ServerIdentity
from holdfast.gateway.methods.foreign import claims
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Era, Refusal, Scripted
from tests.gateway.test_identity import two_users
from tests.gateway.test_whole_messages import CELLS, ask
from tests.gateway.web_apps import serving_app

SEARCH = "search/run"


def having(era: Era, name: str, *methods: str, **capabilities: Any) -> Scripted:
    """A server that answers these methods with its name, and may declare something."""
    server = Scripted(era)
    server.capabilities |= capabilities
    for method in methods:
        server.results[method] = lambda params: {"from": name, "asked": params.get("q"), "_meta": {"v/m": 1}}
    return server


@pytest.mark.promise("gateway.foreign-methods")
@CELLS
async def test_one_server_alone_has_every_method(tmp_path: Path, client_era: str, server_era: Era) -> None:
    async with (
        having(server_era, "b", SEARCH).serving() as server,
        gateway(tmp_path, {"b": server.entry}) as program,
        RawClient(program.url) as client,
    ):
        answer = await ask(client, client_era, SEARCH, {"q": {"deep": [1, None]}, "_meta": {"v/q": 2}})
        assert (answer.result["from"], answer.result["asked"]) == ("b", {"deep": [1, None]})
        assert answer.result["_meta"]["v/m"] == 1
        assert server.params_of(SEARCH)[0]["_meta"]["v/q"] == 2
        unknown = await ask(client, client_era, "other/method", {})
        assert unknown.error["code"] == -32601
        assert unknown.status == (404 if client_era == "2026" else 200)


@pytest.mark.promise("gateway.foreign-methods")
@CELLS
@pytest.mark.parametrize("how", ["extension", "experimental", "capability", "pattern", "configured", "asked"])
async def test_of_several_servers_the_one_that_has_it_gets_it(
    tmp_path: Path, client_era: str, server_era: Era, how: str
) -> None:
    declared: dict[str, dict[str, Any]] = {
        "extension": {"extensions": {"x.example/search": {}}},
        "experimental": {"experimental": {"search": {}}},
        "capability": {"search": {}},
        "pattern": {"experimental": {"x": {"methods": ["search/*"]}}},
        "configured": {},
        "asked": {"experimental": {"x.example/something": {}}},
    }
    near, far = having(server_era, "near"), having(server_era, "far", SEARCH, **declared[how])
    async with near.serving(), far.serving():
        entry = {**far.entry, **({"methods": ["search/*"]} if how == "configured" else {})}
        async with gateway(tmp_path, {"near": near.entry, "far": entry}) as program, RawClient(program.url) as client:
            assert (await ask(client, client_era, SEARCH, {"q": 1})).result["from"] == "far"
            assert near.count(SEARCH) == 0
            assert (await ask(client, client_era, "nobody/has", {})).error["code"] == -32601
            assert near.count("nobody/has") == 0


@pytest.mark.promise("gateway.foreign-methods")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_of_two_that_declare_the_same_the_first_in_the_file_has_it(tmp_path: Path, era: Era) -> None:
    one = having(era, "one", SEARCH, extensions={"search": {}})
    two = having(era, "two", SEARCH, extensions={"search": {}})
    async with one.serving(), two.serving():
        async with gateway(tmp_path, {"one": one.entry, "two": two.entry}) as program, RawClient(program.url) as client:
            assert (await ask(client, era, SEARCH, {})).result["from"] == "one"
            assert two.count(SEARCH) == 0


@pytest.mark.promise("gateway.foreign-methods")
async def test_an_error_of_the_server_is_its_own_and_is_not_asked_elsewhere(tmp_path: Path) -> None:
    def refuse(_: object) -> dict[str, Any]:
        raise Refusal({"code": 0, "message": "no", "data": {"x": 1}})

    one = having("2025", "one", experimental={"x": {}})
    one.results[SEARCH] = refuse
    two = having("2025", "two", SEARCH, experimental={"y": {}})
    async with one.serving(), two.serving():
        async with gateway(tmp_path, {"one": one.entry, "two": two.entry}) as program, RawClient(program.url) as client:
            assert (await ask(client, "2025", SEARCH, {})).error == {"code": 0, "message": "no", "data": {"x": 1}}
            assert two.count(SEARCH) == 0


@pytest.mark.promise("gateway.foreign-methods")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_server_that_is_down_may_have_a_method_that_nobody_else_has(tmp_path: Path, era: Era) -> None:
    near = having(era, "near", experimental={"x": {}})
    async with near.serving():
        servers = {"near": near.entry, "far": {"url": "http://127.0.0.1:9/mcp", "era": era}}
        async with gateway(tmp_path, servers, sessions={"start": 0.3}) as program, RawClient(program.url) as client:
            data = (await ask(client, era, SEARCH, {})).error["data"]
            assert (data["family"], data["kind"]) == ("Unavailable", "NoBackend")
            near.results[SEARCH] = {"from": "near"}
            assert (await ask(client, era, SEARCH, {})).result["from"] == "near"


@pytest.mark.promise("gateway.foreign-methods")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_headers_of_the_caller_go_with_a_method_to_the_server_that_wants_them(tmp_path: Path, era: Era) -> None:
    near, far = having(era, "near"), having(era, "far", SEARCH, extensions={"x.example/search": {}})
    async with near.serving(), far.serving():
        servers = {"near": near.entry, "far": {**far.entry, "pass_headers": ["X-Tenant"]}}
        async with gateway(tmp_path, servers, sessions={"steer": False}) as program, RawClient(program.url) as client:
            if era == "2025":
                await client.initialize()
                answer = await client.ask(SEARCH, {}, x_tenant="fern")
                said = {"jsonrpc": "2.0", "method": "notifications/search/seen", "params": {}}
                await client.send(said, headers=client.headers(x_tenant="fern"))
                await until(lambda: far.count("notifications/search/seen"))
                assert far.headers[-1][1]["x-tenant"] == "fern"
            else:
                answer = await client.ask_2026(SEARCH, {}, x_tenant="fern")
            assert answer.result["from"] == "far"
            assert [headers["x-tenant"] for asked, headers in far.headers if asked == SEARCH] == ["fern"]


@pytest.mark.promise("gateway.foreign-methods")
async def test_a_server_that_refuses_the_caller_hides_no_method_of_the_next(tmp_path: Path) -> None:
    far = having("2025", "far", SEARCH, experimental={"x": {}})
    async with far.serving(), answering(401) as url:
        servers = {"near": {"url": url, "era": "2025", "pass_headers": ["X-Tenant"]}, "far": far.entry}
        async with gateway(tmp_path, servers, sessions={"start": 0.5}) as program, RawClient(program.url) as client:
            assert (await ask(client, "2025", SEARCH, {})).result["from"] == "far"
            assert (await ask(client, "2025", "nobody/has", {})).error["data"]["kind"] == "Unauthorized"


@asynccontextmanager
async def answering(status: int) -> AsyncGenerator[str]:
    """The URL of a server that answers all requests with a status."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    async with serving_app(app) as url:
        yield url


@pytest.mark.promise("gateway.foreign-methods")
@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "notifications/vendor", "server/discover"])
async def test_methods_of_the_protocol_are_not_passed_on_as_foreign(tmp_path: Path, method: str) -> None:
    async with (
        having("2025", "b", method).serving() as server,
        gateway(tmp_path, {"b": server.entry}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        before = server.count(method)
        assert (await client.ask(method, {})).error["code"] == -32601
        assert (await client.ask("x/" + "y" * 1000, {})).error["code"] == -32601
        assert server.count(method) == before


@pytest.mark.promise("gateway.foreign-methods")
@pytest.mark.parametrize("reuse", ["session", "principal", "shared"])
@pytest.mark.parametrize("method", ["notifications/search/seen", "search/seen"])
async def test_notifications_of_the_client_reach_those_that_have_them_in_order(
    tmp_path: Path, reuse: str, method: str
) -> None:
    near, far = having("2025", "near"), having("2025", "far", extensions={"x.example/search": {}})
    async with near.serving(), far.serving():
        servers = {"near": near.entry, "far": {**far.entry, "reuse": reuse}}
        async with gateway(tmp_path, servers, **two_users()) as program, RawClient(program.url, "ann") as client:
            await client.initialize()
            await client.send({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "far__t"}})  # no request
            for number in range(20):
                said = {"jsonrpc": "2.0", "method": method, "params": {"n": number}}
                assert (await client.send(said)).status == 202
            await until(lambda: far.count(method) == 20)
            assert [each["n"] for each in far.params_of(method)] == list(range(20))
            assert near.count(method) == 0
            assert far.count("tools/call") == 0


@pytest.mark.promise("gateway.foreign-methods")
async def test_a_flood_of_notifications_to_a_server_that_is_slow_costs_a_limited_room(tmp_path: Path) -> None:
    far = having("2025", "far")
    async with far.serving():
        async with gateway(tmp_path, {"far": far.entry}) as program, RawClient(program.url) as client:
            await client.initialize()
            gate = program.gateway
            assert gate is not None
            (session,) = gate.sessions.live.values()
            passing = asyncio.Event()
            sent: list[int] = []

            async def send() -> None:
                await passing.wait()
                sent.append(1)

            for _ in range(50):
                session.outbox.put("far", send, 100_000)
            passing.set()
            await until(lambda: len(sent) == 10)
            session.outbox.put("far", send, 1_000_000)
            await until(lambda: len(sent) == 11)


@pytest.mark.promise("gateway.foreign-methods")
async def test_requests_and_notifications_of_the_server_reach_the_client_of_the_session(tmp_path: Path) -> None:
    server = having("2025", "b")
    async with server.serving(), gateway(tmp_path, {"b": server.entry}) as program, RawClient(program.url) as client:
        await client.initialize()
        async with client.stream() as events:
            await client.call("b__t")
            await until(lambda: server.listening)
            server.push("notifications/vendor/x", {"n": 1, "_meta": {"v": 1}})
            assert await events.next() == {
                "jsonrpc": "2.0",
                "method": "notifications/vendor/x",
                "params": {"n": 1, "_meta": {"v": 1}},
            }
            asking = asyncio.create_task(server.ask("vendor/ask", {"q": 1, "_meta": {"progressToken": 7}}))
            asked = await events.next()
            assert (asked["method"], asked["params"]["q"]) == ("vendor/ask", 1)
            token = asked["params"]["_meta"]["progressToken"]
            progress = {"progressToken": token, "progress": 1, "message": "m", "x": 2}
            await client.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
            await until(lambda: server.count("notifications/progress"))
            assert server.params_of("notifications/progress") == [{**progress, "progressToken": 7}]
            await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"a": [1], "_meta": {"v": 2}}})
            assert (await asking)["result"] == {"a": [1], "_meta": {"v": 2}}
            await client.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
            refused = asyncio.create_task(server.ask("vendor/none", {}))
            asked = await events.next()
            error = {"code": -32601, "message": "Method not found"}
            await client.send({"jsonrpc": "2.0", "id": asked["id"], "error": error})
            assert (await refused)["error"] == error
            assert (await server.ask("tools/call", {}))["error"]["code"] == -32601
            assert (await server.ask("tasks/get", {"taskId": "x"}))["error"]["code"] == -32601
            assert server.count("notifications/progress") == 1


@pytest.mark.promise("gateway.foreign-methods")
async def test_what_a_server_sends_reaches_the_client_of_its_session_only(tmp_path: Path) -> None:
    one, two = having("2025", "one"), having("2025", "two")
    async with one.serving(), two.serving():
        async with gateway(tmp_path, {"one": one.entry, "two": two.entry}, **two_users()) as program:
            async with RawClient(program.url, "ann") as ann, RawClient(program.url, "bob") as bob:
                await ann.initialize()
                await bob.initialize()
                async with ann.stream() as hers, bob.stream() as his:
                    await ann.call("one__t")
                    await bob.call("two__t")
                    await until(lambda: one.listening == two.listening == 3)  # that for all callers is the third
                    two.push_to_each("notifications/vendor/y")
                    got = [(await each.next(patience(5)))["params"]["n"] for each in (hers, his)]
                    assert got[0] != got[1]


@pytest.mark.promise("gateway.foreign-methods")
def test_a_server_claims_methods_by_the_names_and_patterns_that_it_declares() -> None:
    def declares(name: str, settings: Any = None) -> ServerIdentity:
        return ServerIdentity(capabilities={"extensions": {name: settings}})

    assert claims(declares("x.example/search"), "search/run")
    assert claims(declares("x.example/search"), "x.example/search/run")
    assert claims(declares("search"), "notifications/search/done")
    assert claims(declares("x", {"methods": ["a/*", "notifications/b/*"]}), "a/c")
    assert claims(declares("x", {"methods": ["a/*", "notifications/b/*"]}), "notifications/b/c")
    assert not claims(declares("x.example/search"), "x.example/searching")
    assert not claims(declares("x", {"methods": [1, None]}), "a")
    assert not claims(ServerIdentity(capabilities={"tools": {}}), "tools/vendor")
