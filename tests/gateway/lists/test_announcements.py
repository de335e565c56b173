"""What a server announces on its own stream becomes a frame of `subscriptions/listen`, and for whom."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.eras import Era
from holdfast.gateway.auth import new_token
from holdfast.testing import Fault, FaultServer
from tests.deadlines import until
from tests.gateway.clients import Events, RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Scripted
from tests.gateway.scripted_calls import call_of, ready
from tests.gateway.test_whole_messages import ENVELOPE, LISTEN, UPDATED
from tests.links.server_process import RealServer

TOOLS = "notifications/tools/list_changed"
CHANGES = [TOOLS, "notifications/prompts/list_changed", "notifications/resources/list_changed", UPDATED]
EVERYTHING: dict[str, Any] = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["x://one"],
}


@asynccontextmanager
async def listening(client: RawClient, **headers: str) -> AsyncGenerator[Events]:
    """A subscription to everything, acknowledged."""
    body = {
        "jsonrpc": "2.0",
        "id": "sub",
        "method": "subscriptions/listen",
        "params": {"notifications": EVERYTHING, "_meta": ENVELOPE},
    }
    async with client.stream("POST", body, **{**LISTEN, **headers}) as events:
        assert (await events.next(20))["params"]["notifications"] == EVERYTHING
        yield events


async def frame(events: Events, uri: str = "x://one") -> str:
    """The method of the next frame, whose form is checked."""
    said = await events.next(20)
    assert said["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "sub"
    if said["method"] == UPDATED:
        assert said["params"]["uri"] == uri
    return said["method"]


def _auth(*names: str) -> tuple[dict[str, Any], list[str]]:
    tokens = [new_token() for _ in names]
    hashes = [{"hash": digest, "principal": name} for name, (_, digest) in zip(names, tokens, strict=True)]
    return {"tokens": hashes}, [token for token, _ in tokens]


@pytest.mark.promise("gateway.announcements")
@pytest.mark.parametrize("change", CHANGES)
async def test_what_a_server_says_on_its_own_stream_becomes_a_frame_for_every_listener(
    tmp_path: Path, change: str
) -> None:
    async with Scripted().serving() as backend:
        async with gateway(tmp_path, {"s": backend.entry}, sessions={"steer": False}) as program:
            async with RawClient(program.url) as one, RawClient(program.url) as two:
                async with listening(one) as first, listening(two) as second:
                    await until(lambda: backend.listening)
                    backend.push(change, {"uri": "x://one"} if change == UPDATED else {})
                    assert [await frame(first), await frame(second)] == [change, change]


@pytest.mark.promise("gateway.announcements")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("named_by", ["handle", "header", "principal"])
async def test_what_a_server_says_to_the_calling_session_alone_becomes_a_frame(
    tmp_path: Path, named_by: str, change: str
) -> None:
    auth, [token] = _auth("alice")
    sessions = {"handle": {"handles": True}, "header": {"header": "x-key"}, "principal": {"steer": False}}[named_by]
    async with Scripted().serving() as backend:
        servers = {"s": {**backend.entry, "reuse": "principal" if named_by == "principal" else "session"}}
        backend.aside = [(change, {"uri": "x://one"} if change == UPDATED else {})]
        async with gateway(tmp_path, servers, auth=auth, sessions=sessions) as program:
            async with RawClient(program.url, token) as client:
                await until(lambda: program.gateway is not None and program.gateway.table.tools)
                arguments, headers = {}, {}
                if named_by == "handle":
                    opened = await client.call_2026("holdfast__open_session")
                    arguments = {"holdfast_session": opened.result["structuredContent"]["holdfast_session"]}
                if named_by == "header":
                    headers = {"x_key": "k"}
                call = {"name": "s__t", "arguments": arguments}
                async with listening(client, **headers) as events:
                    assert "result" in (await client.ask_2026("tools/call", call, **headers)).last
                    assert await frame(events) == change


@pytest.mark.promise("gateway.announcements")
@pytest.mark.parametrize("reuse", ["session", "principal"])
async def test_what_a_server_says_to_one_caller_reaches_no_other(tmp_path: Path, reuse: str) -> None:
    auth, [ours, theirs] = _auth("alice", "bob")
    async with Scripted().serving() as backend:
        servers = {"s": {**backend.entry, "reuse": reuse}}
        backend.aside = [(UPDATED, {"uri": "x://one"})]
        async with gateway(tmp_path, servers, auth=auth, sessions={"header": "x-key"}) as program:
            async with RawClient(program.url, ours) as alice, RawClient(program.url, theirs) as bob:
                await until(lambda: program.gateway is not None and program.gateway.table.tools)
                call = {"name": "s__t", "arguments": {}}
                async with (
                    listening(alice, x_key="k") as hers,
                    listening(bob, x_key="k") as his,
                    listening(alice, x_key="other") as in_another_session,
                ):
                    assert "result" in (await alice.ask_2026("tools/call", call, x_key="k")).last
                    assert await frame(hers) == UPDATED
                    assert program.gateway is not None
                    program.gateway.listeners.lists_changed(("prompts",))  # for all: what comes first is seen
                    assert await frame(his) == CHANGES[1]
                    if reuse == "session":
                        assert await frame(in_another_session) == CHANGES[1]


@pytest.mark.promise("gateway.announcements")
async def test_a_change_that_shows_no_difference_is_announced_once(tmp_path: Path) -> None:
    async with Scripted().serving() as backend:
        async with gateway(tmp_path, {"s": backend.entry}) as program, RawClient(program.url) as client:
            await client.initialize()
            async with client.stream() as events:
                await until(lambda: backend.listening == 2)  # the gateway's own session, and the client's
                backend.push(TOOLS)
                before = backend.count("tools/list")
                assert (await events.next(20))["method"] == TOOLS
                await until(lambda: backend.count("tools/list") >= before + 1)  # over the other link, too
                assert program.gateway is not None
                looks = program.gateway.backends["s"].lists.looks
                await until(lambda: looks.is_fresh("tools", 0.0))
                [session] = program.gateway.sessions.live.values()
                session.notices.push({"method": "notifications/last"})
                assert (await events.next(20))["method"] == "notifications/last"


@pytest.mark.promise("gateway.announcements")
async def test_what_the_calling_session_of_2025_is_told_reaches_it_although_no_difference_shows(tmp_path: Path) -> None:
    async with Scripted().serving() as backend:
        backend.aside = [(TOOLS, {})]
        async with gateway(tmp_path, {"s": backend.entry}) as program, RawClient(program.url) as client:
            await client.initialize()
            async with client.stream() as events:
                await until(lambda: backend.listening == 2)
                await client.call("s__t")
                assert (await events.next(20))["method"] == TOOLS


LOG = "notifications/message"
LEVEL = "io.modelcontextprotocol/logLevel"


def _said(level: str) -> dict[str, Any]:
    return {"level": level, "logger": "l", "data": level}


@pytest.mark.promise("gateway.announcements")
async def test_a_2026_call_gets_log_messages_of_a_2025_server_from_its_level_on(tmp_path: Path) -> None:
    async with Scripted(logging__setLevel={}).serving() as backend:
        backend.capabilities["logging"] = {}
        backend.before = [{"method": LOG, "params": _said(level)} for level in ("debug", "warning", "error")]
        async with gateway(tmp_path, {"s": backend.entry}, sessions={"header": "x-key"}) as program:
            async with RawClient(program.url) as client:
                await until(lambda: program.gateway is not None and program.gateway.table.tools)
                for level, expected in (
                    ("error", ["error"]),
                    ("warning", ["warning", "error"]),
                    ("error", ["error"]),
                    (None, []),
                    ("nonsense", ["debug", "warning", "error"]),
                ):
                    meta = {LEVEL: level} if level is not None else {}
                    answer = await client.ask_2026("tools/call", {"name": "s__t", "_meta": meta}, x_key="k")
                    assert [each["params"]["level"] for each in answer.messages[:-1]] == expected
                assert [each["level"] for each in backend.params_of("logging/setLevel")] == ["error", "warning"]


@pytest.mark.promise("gateway.announcements")
@pytest.mark.parametrize("key", [{"x_key": "k"}, {}], ids=["session", "alone"])
async def test_a_log_message_on_the_servers_own_stream_reaches_the_call_that_wants_it(
    tmp_path: Path, key: dict[str, str]
) -> None:
    gate = asyncio.Event()
    async with Scripted().serving() as backend:
        backend.gates["tools/call"] = gate
        settings: dict[str, Any] = {"sessions": {"header": "x-key"}, "clients": {"keep_alive": 0.05}}
        async with gateway(tmp_path, {"s": backend.entry}, **settings) as program:
            async with RawClient(program.url) as client:
                headers = await ready(program, client, "2026")
                body = call_of("2026")
                body["params"]["_meta"][LEVEL] = "info"
                named = {name.replace("-", "_"): value for name, value in headers.items()} | key
                async with client.stream("POST", body, **named) as events:
                    await until(lambda: backend.open_calls == 1 and backend.listening >= 2)
                    backend.push(LOG, _said("debug"))
                    backend.push(LOG, _said("error"))
                    assert (await events.next(20))["params"] == _said("error")
                    gate.set()
                    assert "result" in await events.next(20)


@pytest.mark.promise("gateway.announcements")
async def test_a_change_in_a_2026_call_is_announced_where_the_server_offers_both_eras(tmp_path: Path) -> None:
    async with RealServer("sdk") as server:
        seldom = {"every": 600, "lists": 600}
        async with gateway(tmp_path, {"b": {"url": server.url}}, health=seldom) as program:
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            assert program.gateway is not None
            assert program.gateway.backends["b"].era is Era.Y2025
            wanted: dict[str, Any] = {"toolsListChanged": True, "resourceSubscriptions": ["note://unlisted"]}
            body = {
                "jsonrpc": "2.0",
                "id": "sub",
                "method": "subscriptions/listen",
                "params": {"notifications": wanted, "_meta": ENVELOPE},
            }
            async with RawClient(program.url) as client, client.stream("POST", body, **LISTEN) as events:
                assert (await events.next(20))["params"]["notifications"] == wanted
                assert (await client.call_2026("b__announce")).text == "announced"
                assert {await frame(events, "note://unlisted"), await frame(events, "note://unlisted")} == {
                    TOOLS,
                    UPDATED,
                }


@pytest.mark.promise("gateway.announcements")
async def test_a_listen_is_acknowledged_before_a_server_of_both_eras_agrees_to_its_own(tmp_path: Path) -> None:
    async with FaultServer(era="both") as server:
        server.plan(Fault.HANG, method="subscriptions/listen")
        async with gateway(tmp_path, {"b": {"url": server.url}}) as program, RawClient(program.url) as client:
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            wanted: dict[str, Any] = {"toolsListChanged": True}
            params: dict[str, Any] = {"notifications": wanted, "_meta": ENVELOPE}
            body = {"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": params}
            async with client.stream("POST", body, **LISTEN) as events:
                assert (await events.next(5))["params"]["notifications"] == wanted
