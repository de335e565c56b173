"""A watch: it begins again after drops and lost sessions, and reports refusals and gaps."""

import asyncio
import dataclasses
from typing import Any

import pytest

import holdfast
from holdfast.links import HttpTarget, Limits
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import FAST, Notifications, link_to, tool

pytestmark = pytest.mark.anyio


CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


@pytest.mark.promise("link.watch")
async def test_a_2026_watch_listens_again_after_a_drop_and_tells_the_gap() -> None:
    handlers = Notifications()
    async with FaultServer(era="2026") as server, link_to(server.url, on_notification=handlers) as link:
        watch = await link.watch(tools=True, uris=["a:1"])
        listen = next(r.message for r in server.requests if r.method == "subscriptions/listen")
        assert listen is not None
        assert listen["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["a:1"]}
        server.push(CHANGED)
        await until(lambda: handlers.count("notifications/tools/list_changed") == 1)
        waiting = asyncio.ensure_future(link.request("tools/call", tool("wait", call="w")))
        await until(lambda: server.effects["w"])
        server.drop_streams()
        await until(lambda: handlers.count("notifications/resources/updated") == 1)
        assert handlers.heard[-1] == (
            "notifications/resources/updated",
            {"uri": "a:1", "_meta": {"holdfast/gap": True}},
        )
        await until(lambda: server.streams == 1)
        server.push(CHANGED)
        await until(lambda: handlers.count("notifications/tools/list_changed") == 3)
        server.sessions.release.set()
        await waiting  # the dropped stream harmed no call
        watch.close()
        await until(lambda: server.streams == 0)


@pytest.mark.promise("link.watch")
async def test_a_2025_watch_subscribes_and_survives_a_lost_session() -> None:
    handlers = Notifications()
    async with FaultServer() as server, link_to(server.url, on_notification=handlers) as link:
        await link.watch(tools=True, uris=["a:1"])
        await until(lambda: server.streams == 1)
        [session] = server.sessions.sessions.values()
        assert session.subscribed == {"a:1"}
        server.sessions.sessions.clear()
        server.drop_streams()
        await until(lambda: handlers.count("notifications/tools/list_changed") == 1)
        [session] = server.sessions.sessions.values()
        assert session.subscribed == {"a:1"}
        await until(lambda: server.streams == 1)
        server.push(CHANGED)
        await until(lambda: handlers.count("notifications/tools/list_changed") == 2)


@pytest.mark.promise("link.watch")
async def test_a_watch_that_is_refused_says_so() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}'
        server.plan(Fault.STATUS, method="subscriptions/listen", status=404, body=body)
        with pytest.raises(holdfast.errors.ErrorAnswer):
            await link.watch(tools=True)
        await link.request("tools/list")


@pytest.mark.promise("link.watch")
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.STATUS])
async def test_a_watch_that_is_not_agreed_to_ends_in_time(fault: Fault) -> None:
    limits = Limits(start=0.5, handshake=0.5, close=1, stream_retry=0.02)
    async with FaultServer(era="2026") as server, link_to(server.url, limits=limits) as link:
        server.plan(fault, method="subscriptions/listen", times=1000)
        with pytest.raises(holdfast.HoldfastError):
            await asyncio.wait_for(link.watch(tools=True), patience(5))


@pytest.mark.promise("link.watch")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_watch_heals_a_lost_session_and_a_401(era: Any) -> None:
    tokens = iter(f"t{n}" for n in range(1, 100))

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {next(tokens)}"}

    async with FaultServer(era=era, bearer="t1", get_stream=False) as server:
        async with link_to(HttpTarget(server.url, headers=headers)) as link:
            await link.request("tools/list")
            server.bearer = "t2"
            server.sessions.sessions.clear()
            watch = await asyncio.wait_for(link.watch(tools=True, uris=["a:1"]), patience(5))
            if era == "2025":
                [session] = server.sessions.sessions.values()
                assert session.subscribed == {"a:1"}
            watch.close()


@pytest.mark.promise("link.watch")
@pytest.mark.parametrize("how", ["refuses", "hangs at subscribe"])
async def test_a_watch_gives_up_when_its_link_should_have_come_up(how: str) -> None:
    limits = dataclasses.replace(FAST, start=1, handshake=20, stream_retry=40)
    async with FaultServer() as http, link_to(http.url, limits=limits) as link:
        if how == "refuses":
            await http.refuse()
        else:
            http.plan(Fault.HANG, method="resources/subscribe", times=100)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(holdfast.HoldfastError) as caught:
            await link.watch(tools=True, uris=["note://x"])
        assert 0.9 <= loop.time() - began < 6
        assert caught.value.phase is not None
        http.lift()
