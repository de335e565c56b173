"""A 404 of a 2025 server to a method that the protocol does not define: an unknown method, or a lost session."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

import holdfast
from holdfast.core.eras import Era
from holdfast.core.verdicts import Seen
from holdfast.links.calls.unknown_method import may_be_unknown
from tests.gateway.web_apps import serving_app
from tests.links.quick_links import link_to, text_of, tool

pytestmark = pytest.mark.anyio
VENDOR = "acme/search"


class Router:
    """A 2025 server whose router answers 404 with nothing to every method that is not in `known`, and to sessions that
    it does not have."""

    def __init__(self, *known: str) -> None:
        self.known = {"tools/call", *known}
        self.sessions: list[str] = []
        self.lost: set[str] = set()
        self.asked: list[str] = []
        self.url = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        method, session = message["method"], request.headers.get("mcp-session-id")
        self.asked.append(method)
        if method == "initialize":
            self.sessions.append(f"session-{len(self.sessions)}")
            shown = {"capabilities": {"tools": {}}, "serverInfo": {"name": "r", "version": "1"}}
            result: dict[str, Any] = {"protocolVersion": "2025-11-25", **shown}
            session = self.sessions[-1]
        elif session not in self.sessions or session in self.lost:
            return web.Response(status=404)
        elif "id" not in message:
            return web.Response(status=202)
        elif method not in self.known:
            return web.Response(status=404)
        else:
            result = {"content": [{"type": "text", "text": session}]}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return web.json_response(answer, headers={"mcp-session-id": session})

    def serving(self) -> Any:
        app = web.Application()
        app.router.add_route("*", "/mcp", self.serve)
        return serving_app(app, cancels=True)


@pytest.mark.promise("link.unknown-method")
async def test_an_unknown_method_costs_a_ping_and_no_session() -> None:
    router = Router("ping")
    async with router.serving() as url, link_to(url, era="2025") as link:
        assert text_of(await link.request("tools/call", tool("t"))) == "session-0"
        for _ in range(5):
            with pytest.raises(holdfast.errors.ErrorAnswer) as raised:
                await link.request(VENDOR, {})
            assert (raised.value.code, raised.value.status) == (-32601, 404)
        assert text_of(await link.request("tools/call", tool("t"))) == "session-0"
        assert (len(router.sessions), router.asked.count("ping")) == (1, 5)


@pytest.mark.promise("link.unknown-method")
async def test_the_calls_of_others_keep_their_session() -> None:
    router = Router("ping")
    async with router.serving() as url, link_to(url, era="2025") as link:
        await link.request("tools/call", tool("t"))

        async def unknown() -> None:
            with pytest.raises(holdfast.errors.ErrorAnswer):
                await link.request(VENDOR, {})

        answers, *_ = await asyncio.gather(
            asyncio.gather(*(link.request("tools/call", tool("t")) for _ in range(20))), *(unknown() for _ in range(20))
        )
        assert {text_of(answer) for answer in answers} == {"session-0"}


@pytest.mark.promise("link.unknown-method")
async def test_a_lost_session_is_still_replaced() -> None:
    router = Router("ping", VENDOR)
    async with router.serving() as url, link_to(url, era="2025") as link:
        await link.request("ping")
        router.lost.add("session-0")
        assert text_of(await link.request(VENDOR, {})) == "session-1"
        await link.request("tools/call", tool("t"))  # keeps state from here on
        router.lost.add("session-1")
        with pytest.raises(holdfast.SessionReplaced):
            await link.request(VENDOR, {})
        assert len(router.sessions) == 3


@pytest.mark.promise("link.unknown-method")
async def test_a_server_that_has_no_ping_either_costs_one_session() -> None:
    router = Router()
    async with router.serving() as url, link_to(url, era="2025", stateful=False) as link:
        await link.request("tools/call", tool("t"))
        with pytest.raises(holdfast.errors.ErrorAnswer) as raised:
            await link.request(VENDOR, {})
        assert raised.value.code == -32601
        assert len(router.sessions) == 2


@pytest.mark.promise("link.unknown-method")
async def test_a_caller_that_gives_up_while_the_server_is_asked_leaves_the_session() -> None:
    router, asked = Router("ping"), asyncio.Event()
    usual = router.serve

    async def hang(request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and (await request.json())["method"] == "ping":
            asked.set()
            await asyncio.Event().wait()
        return await usual(request)

    router.serve = hang  # type: ignore[method-assign]
    async with router.serving() as url, link_to(url, era="2025") as link:
        await link.request("tools/call", tool("t"))
        call = asyncio.create_task(link.request(VENDOR, {}))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert text_of(await link.request("tools/call", tool("t"))) == "session-0"


@pytest.mark.promise("link.unknown-method")
def test_which_404_is_in_doubt() -> None:
    empty = Seen(Era.Y2025, session_sent=True, status=404)
    assert may_be_unknown(VENDOR, empty)
    assert may_be_unknown("tasks/list", empty)
    assert not may_be_unknown("tools/call", empty)  # which every server has: 404 means the session
    assert not may_be_unknown(VENDOR, Seen(Era.Y2025, session_sent=True, status=404, text="Session not found"))
    assert not may_be_unknown(VENDOR, Seen(Era.Y2025, session_sent=False, status=404))
    assert not may_be_unknown(VENDOR, Seen(Era.Y2025, session_sent=True, status=410))
    assert not may_be_unknown(VENDOR, Seen(Era.Y2026, status=404))
