"""The handshake: which era is taken where a server offers both, what is learnt of it, and what a failure means."""

import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import events
from holdfast.core.eras import PASSED_SECONDS, Era, Offers, Why
from holdfast.testing import Fault, FaultServer
from holdfast.testing.fault_plan import error_body
from tests.links.quick_links import FAST, link_to, scaled, text_of, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.handshake-failed")
@pytest.mark.parametrize("method", ["initialize", "notifications/initialized", "server/discover"])
@pytest.mark.parametrize(
    ("fault", "options"),
    [
        (Fault.STATUS, {"status": 502, "body": b"<html>bad gateway"}),
        (Fault.STATUS, {"status": 500}),
        (Fault.HANG, {}),
        (Fault.RESET, {}),
        (Fault.CLOSE_IN_BODY, {}),
    ],
    ids=["502", "500", "hang", "reset", "cut"],
)
async def test_a_handshake_that_fails_has_executed_nothing(method: str, fault: Fault, options: Any) -> None:
    era: Any = "2026" if method == "server/discover" else "2025"
    async with FaultServer(era=era) as server, link_to(server.url, era=era, limits=scaled(FAST, 0.1)) as link:
        server.plan(fault, method=method, times=10, **options)
        with pytest.raises(holdfast.Unavailable) as caught:
            await link.request("tools/call", {"name": "effect", "arguments": {"call": "x"}})
        assert caught.value.status == options.get("status")
        assert caught.value.server == "it"
        assert caught.value.phase == "handshake"
        assert "executed" not in str(caught.value).replace("nothing was executed", "")
        assert "nothing was executed" in caught.value.public_text()
        assert not server.effects


def _asked(server: FaultServer) -> list[str | None]:
    """The methods of all requests, without those of the server's own stream and the end."""
    return [request.method for request in server.requests if request.verb == "POST"]


@pytest.mark.promise("link.era")
async def test_a_server_that_offers_both_eras_is_taken_in_the_one_that_holds_a_session() -> None:
    async with FaultServer(era="both") as server, link_to(server.url, stream=False) as link:
        for turn in ("1", "2", "3"):
            assert text_of(await link.request("tools/call", tool("count"))) == turn
        assert _asked(server)[:3] == ["initialize", "notifications/initialized", "tools/call"]
        told = link.statistics()
        assert (told.era, told.why) == ("2025", "it can hold a session")


@pytest.mark.promise("link.era")
async def test_where_no_session_is_wanted_2026_is_taken_first() -> None:
    async with FaultServer(era="both") as server, link_to(server.url, stateful=False) as link:
        await link.request("tools/call", tool("count"))
        assert _asked(server) == ["server/discover", "tools/call"]
        assert (link.statistics().era, link.statistics().why) == ("2026", "no session was wanted")


@pytest.mark.promise("link.era")
async def test_one_links_preference_or_pin_does_not_decide_for_the_next() -> None:
    async with FaultServer(era="both") as server, link_to(server.url, era="2026") as pinned:
        await pinned.request("tools/list")
        async with link_to(server.url, stateful=False) as stateless:
            await stateless.request("tools/list")
            async with link_to(server.url) as link:
                await link.request("tools/list")
                async with link_to(server.url, prefer="2026") as other:
                    await other.request("tools/list")
                    eras = [each.statistics().era for each in (pinned, stateless, link, other)]
        assert eras == ["2026", "2026", "2025", "2026"]
        assert _asked(server).count("initialize") == 1
        assert pinned.statistics().why == "era= pins it"


REFUSALS = {
    "unsupported version": (400, error_body(-32022, "Unsupported protocol version", {"supported": ["2026-07-28"]})),
    "method not found": (404, error_body(-32601, "Method not found")),
    "method not found under 200": (200, error_body(-32601, "Method not found")),
    "header check": (400, error_body(-32020, "Mcp-Method is missing")),
    "envelope check": (400, error_body(-32602, "Invalid params")),
    "a router's 400": (400, b"no Mcp-Method"),
    "a router's 404": (404, b""),
    "a router's 405": (405, b""),
}


@pytest.mark.promise("link.era")
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_server_of_2026_alone_costs_one_request_more_once(refusal: str) -> None:
    status, body = REFUSALS[refusal]
    async with FaultServer(era="2026") as server:
        server.plan(Fault.STATUS, method="initialize", status=status, body=body, times=10)
        async with link_to(server.url) as link:
            await link.request("tools/list")
            assert _asked(server) == ["initialize", "server/discover", "tools/list"]
            assert (link.statistics().era, link.statistics().why) == ("2026", "the server refused the other era")
        async with link_to(server.url) as link:  # remembered though no link was left
            await link.request("tools/list")
            assert _asked(server)[3:] == ["server/discover", "tools/list"]


@pytest.mark.promise("link.era")
async def test_a_server_of_2025_alone_is_not_probed_unless_2026_is_wanted_and_then_once() -> None:
    async with FaultServer() as server:
        async with link_to(server.url) as link:
            await link.request("tools/list")
        assert "server/discover" not in _asked(server)
        for _ in range(2):
            async with link_to(server.url, stateful=False) as link:
                await link.request("tools/list")
                assert link.statistics().why == "the server refused the other era"
        assert _asked(server).count("server/discover") == 1


@pytest.mark.promise("link.era")
async def test_a_server_that_gives_no_session_in_2025_is_taken_in_2026_where_it_has_that() -> None:
    """Nothing is held either way, and only in 2026 can it ask in mid-call."""
    async with FaultServer(era="both") as server:
        server.sessions.gives_sessions = False
        async with link_to(server.url) as link:
            await link.request("tools/list")
            assert _asked(server) == ["initialize", "server/discover", "tools/list"]
            assert link.statistics().why == "the server speaks 2025 too, and gives no session there"
        async with link_to(server.url) as link:
            await link.request("tools/list")
            assert _asked(server)[3:] == ["server/discover", "tools/list"]


@pytest.mark.promise("link.era")
@pytest.mark.parametrize("fault", [None, Fault.CLOSE, Fault.HANG])
async def test_a_server_of_2025_without_sessions_goes_on_as_one(fault: Fault | None) -> None:
    async with FaultServer() as server:
        server.sessions.gives_sessions = False
        if fault is not None:
            server.plan(fault, method="server/discover")
        async with link_to(server.url, limits=scaled(FAST, 0.2)) as link:
            await link.request("tools/list")
            assert link.statistics().era == "2025"
            assert _asked(server) == ["initialize", "server/discover", "notifications/initialized", "tools/list"]


@pytest.mark.promise("link.probe")
@pytest.mark.parametrize("status", [401, 429, 500, 502, 503])
async def test_a_transient_fault_on_the_handshake_is_no_era(status: int) -> None:
    async with FaultServer(era="both") as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, method="initialize", status=status, times=10)
        with pytest.raises(holdfast.HoldfastError) as caught:
            await link.request("tools/list")
        assert caught.value.status == status
        server.lift()
        await link.request("tools/list")
        assert link.statistics().era == "2025"
        assert "server/discover" not in _asked(server)


@pytest.mark.promise("link.era")
async def test_state_that_was_expected_where_none_is_kept_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[events.Event] = []
    async with FaultServer(era="2026") as server:
        for _ in range(2):
            async with link_to(server.url, on_event=heard.append) as link:
                await link.request("tools/list")
        [said] = [event for event in heard if isinstance(event, events.SessionNotOffered)]
        assert said.server == "it"
        assert "stateful=False" in said.what
        assert sum("stateful=False" in record.getMessage() for record in caplog.records) == 1
    for options in ({"stateful": False}, {"era": "2026"}, {"prefer": "2026"}):
        async with FaultServer(era="2026") as server, link_to(server.url, on_event=heard.append, **options) as link:
            await link.request("tools/list")
    assert sum(isinstance(event, events.SessionNotOffered) for event in heard) == 1


@pytest.mark.promise("link.era")
async def test_a_saved_handshake_of_the_other_era_is_not_adopted_where_a_session_could_be_had() -> None:
    async with FaultServer(era="both") as server, holdfast.open_store("memory:") as store:
        async with link_to(server.url, stateful=False, memory=holdfast.links.StoreMemory(store, "one")) as link:
            await link.request("tools/list")
        async with link_to(server.url, memory=holdfast.links.StoreMemory(store, "one"), stream=False) as link:
            assert text_of(await link.request("tools/call", tool("count"))) == "1"
            assert text_of(await link.request("tools/call", tool("count"))) == "2"


@pytest.mark.promise("link.era")
async def test_programs_that_speak_one_era_or_end_at_the_others_first_message(tmp_path: Path) -> None:
    answers = {
        "2026": "m['method'] == 'server/discover' and {'supportedVersions': ['2026-07-28'], 'capabilities': {}}",
        "2025": "m['method'] == 'initialize' and {'protocolVersion': '2025-11-25', 'capabilities': {}}",
    }
    for era, answer in answers.items():
        for otherwise in ("sys.exit('what?')", "say(m, error={'code': -32601, 'message': 'Method not found'})"):
            program = tmp_path / "program.py"
            program.write_text(
                "import json, sys\n"
                "def say(m, **answer): print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], **answer}), flush=True)\n"
                "for line in sys.stdin:\n"
                "    m = json.loads(line)\n"
                f"    if 'id' not in m: continue\n"
                f"    found = {answer}\n"
                "    if m['method'] == 'tools/list': found = {'tools': []}\n"
                "    if found: say(m, result=found)\n"
                f"    else: {otherwise}\n"
            )
            target = holdfast.links.CommandTarget(sys.executable, [str(program)])
            for prefer in ("2025", "2026"):
                async with link_to(target, prefer=prefer) as link:
                    assert await link.request("tools/list") == {"tools": []}
                    assert link.statistics().era == era


@pytest.mark.promise("link.era")
def test_what_was_refused_is_asked_again_after_a_while() -> None:
    offers = Offers()
    offers.passes(Era.Y2025, Why.ONLY_ONE, now=0.0)
    assert offers.first(Era.Y2025, now=1.0) is Era.Y2026
    assert offers.first(Era.Y2026, now=1.0) is Era.Y2026
    assert offers.first(Era.Y2025, now=PASSED_SECONDS + 1) is Era.Y2025
    offers.passes(Era.Y2026, Why.ONLY_ONE, now=2.0)  # it came back in the other era
    assert offers.first(Era.Y2025, now=3.0) is Era.Y2025


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault.HTML, "not an MCP server"),
        (Fault.BROKEN_JSON, "not valid JSON"),
        (Fault.NOT_JSON_RPC, "not a JSON-RPC answer"),
        (Fault.WRONG_ID, "not a JSON-RPC answer"),
        (Fault.ACCEPTED, "without an answer"),
    ],
)
async def test_a_server_that_is_not_mcp_at_all(fault: Fault, says: str) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(fault, times=2)
        with pytest.raises(holdfast.Rejected, match=says) as caught:
            await link.request("tools/list")
        assert (caught.value.server, caught.value.phase) == ("it", "handshake")
        assert "URL" in str(caught.value.remedy)
        server.lift()
        assert (await link.request("tools/list"))["tools"]


@pytest.mark.promise("link.bad-input")
async def test_a_port_that_does_not_speak_http() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.NOT_HTTP, times=2)
        with pytest.raises(holdfast.Rejected, match="not an MCP server"):
            await link.request("tools/list")


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize("status", [400, 404, 405, 406])
async def test_a_plain_refusal_of_the_handshake(status: int) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, status=status, headers={"content-type": "text/plain"}, body=b"nothing here", times=2)
        with pytest.raises(holdfast.Rejected) as caught:
            await link.request("tools/list")
        assert caught.value.status == status
        assert "nothing here" in str(caught.value)
        assert caught.value.remedy


@pytest.mark.promise("link.probe")
@pytest.mark.parametrize("status", [401, 429, 500, 502, 503])
async def test_a_transient_fault_on_the_probe_is_no_era(status: int) -> None:
    """The SDK's client lands on 2025 for good here."""
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, method="server/discover", status=status, times=10)
        with pytest.raises(holdfast.HoldfastError) as caught:
            await link.request("tools/list")
        assert caught.value.status == status
        server.lift()
        await link.request("tools/list")
        assert link.era is not None
        assert link.era.value == "2026"
        assert link.session_id is None


@pytest.mark.promise("link.probe")
async def test_a_probe_that_hangs_or_is_cut_is_asked_again() -> None:
    async with FaultServer(era="2026") as server:
        for fault in (Fault.HANG, Fault.CLOSE, Fault.RESET, Fault.CLOSE_IN_BODY):
            async with link_to(server.url, limits=scaled(FAST, 0.2)) as link:
                server.plan(fault, method="server/discover")
                await link.request("tools/list")
                assert link.era is not None
                assert link.era.value == "2026"


@pytest.mark.promise("link.probe")
async def test_the_era_is_asked_for_once_per_server() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as first, link_to(server.url) as second:
        await first.request("tools/list")
        await second.request("tools/list")
        assert sum(request.method == "initialize" for request in server.requests) == 1


@pytest.mark.promise("link.probe")
async def test_a_pinned_era_is_not_asked_for() -> None:
    async with FaultServer() as server:
        async with link_to(server.url, era="2025") as link:
            await link.request("tools/list")
        assert "server/discover" not in {request.method for request in server.requests}
        async with link_to(server.url, era="2026") as link:
            with pytest.raises(holdfast.Rejected, match="does not speak 2026"):
                await link.request("tools/list")
    async with FaultServer(era="2026") as server, link_to(server.url, era="2025") as link:
        with pytest.raises(holdfast.Rejected, match="refused the handshake"):
            await link.request("tools/list")


@pytest.mark.promise("link.probe")
async def test_a_server_of_another_century_is_told_apart() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"no","data":{"supported":["2031-01-01"]}}}'
        server.plan(Fault.STATUS, method="server/discover", status=400, body=body)
        with pytest.raises(holdfast.Rejected, match="2031-01-01") as caught:
            await link.request("tools/list")
        assert "update" in str(caught.value.remedy)


@pytest.mark.promise("link.bad-input")
async def test_a_session_id_with_illegal_characters() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.sessions.bad_session_id = "böse id"
        with pytest.raises(holdfast.Rejected, match="visible ASCII"):
            await link.request("tools/list")
        server.sessions.bad_session_id = None
        await link.request("tools/list")
