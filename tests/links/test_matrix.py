"""Era × form of answer × fault: the caller gets an answer or a typed error in time, and the same link goes on."""

import asyncio
import time
from json import dumps
from typing import Any, Literal

import pytest

import holdfast
from holdfast import Link
from holdfast.testing import LOST_SESSION, OTHER_REFUSALS, Fault, FaultServer, Refusal
from holdfast.testing.fault_plan import error_body
from tests.deadlines import until
from tests.links.quick_links import FAMILIES, FAST, link_to, scaled, text_of, tool

pytestmark = pytest.mark.anyio

ERAS = ("2025", "2026")
FORMS = ("json", "sse")


async def _one_call(link: Link, call: str, safe: bool) -> str:
    """What came of it: "answer", or the family of the error. Nothing else may come, and not after the deadline."""
    start = time.monotonic()
    try:
        await link.request("tools/call", tool("effect", call=call), safe=safe)
        return "answer"
    except holdfast.HoldfastError as error:
        assert isinstance(error, FAMILIES)
        assert error.server == "it"
        assert error.phase
        return next(family.__name__ for family in FAMILIES if isinstance(error, family))
    finally:
        assert time.monotonic() - start < FAST.silence * 3 + 3


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("safe", [False, True], ids=["unsafe", "safe"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.STATUS], ids=lambda fault: fault.name)
async def test_every_fault_ends_in_an_answer_or_a_typed_error_and_the_link_goes_on(
    fault: Fault, era: Literal["2025", "2026"], form: Literal["json", "sse"], safe: bool
) -> None:
    limits = FAST if fault is not Fault.HANG else scaled(FAST, 0.2)
    async with FaultServer(era=era, answers=form) as server, link_to(server.url, limits=limits) as link:
        await link.request("tools/list")
        server.plan(fault, method="tools/call")
        outcome = await _one_call(link, "x", safe)
        server.lift()
        effects = server.effects["x"]
        if outcome == "answer":
            assert effects == 1
        if safe and fault not in (Fault.REDIRECT, Fault.OVERSIZE):
            assert outcome == "answer"  # one fault, two replays
        assert effects <= 1
        assert text_of(await link.request("tools/call", tool("echo", text="still here"))) == "still here"
        assert link.statistics().opens == 1


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "fault", [Fault.CLOSE, Fault.RESET, Fault.CLOSE_IN_BODY, Fault.HTML, Fault.BROKEN_JSON], ids=lambda f: f.name
)
async def test_a_fault_after_the_effect_never_repeats_an_unsafe_call(fault: Fault, era: Any) -> None:
    async with FaultServer(era=era) as server, link_to(server.url) as link:
        await link.request("tools/list")
        server.plan(fault, method="tools/call", effect=True)
        assert await _one_call(link, "x", False) == "OutcomeUnknown"
        assert server.effects["x"] == 1
        server.plan(fault, method="tools/call", effect=True)
        assert await _one_call(link, "y", True) == "answer"
        assert server.effects["y"] == 2  # allowed: the caller said that it is harmless


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("refusal", LOST_SESSION, ids=lambda refusal: refusal.name)
async def test_every_shape_of_a_lost_session_is_healed(refusal: Refusal, form: Any) -> None:
    async with FaultServer(era="2025", answers=form, lost=refusal) as server, link_to(server.url) as link:
        await link.request("tools/list")
        first = link.session_id
        server.plan(Fault.FORGET, method="tools/call")
        # It had answered nothing but safe calls, so nothing is lost and even an unsafe call goes on.
        assert await _one_call(link, "x", False) == "answer"
        assert server.effects["x"] == 1
        assert link.session_id != first
        assert link.statistics().replacements == 1
        assert link.generation == 2


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("code", [-32600, -32000, -32001])
async def test_a_lost_session_told_under_http_200_is_healed_and_told(code: int) -> None:
    lost = Refusal("a proxy that always says 200", 200, error_body(code, "Session not found"))
    async with FaultServer(era="2025", lost=lost) as server, link_to(server.url) as link:
        await link.request("tools/list")
        server.plan(Fault.FORGET, method="tools/call")
        assert await _one_call(link, "x", False) == "answer"
        server.plan(Fault.FORGET, method="tools/call")
        with pytest.raises(holdfast.SessionReplaced):  # it had answered an unsafe call
            await link.request("tools/call", tool("effect", call="y"))
        assert server.effects["y"] == 0
        assert link.generation == 3


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("status", [201, 202, 203, 206])
async def test_the_answer_to_a_call_is_one_under_any_success(status: int, kind: str) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        body = dumps({"jsonrpc": "2.0", "id": "mine", "result": {"content": []}})
        body = body if kind == "application/json" else f"data: {body}\n\n"
        headers = {"content-type": kind}
        server.plan(Fault.STATUS, method="tools/call", effect=True, status=status, headers=headers, body=body.encode())
        assert await link.request("tools/call", tool("effect", call="x"), id="mine") == {"content": []}
        assert server.effects["x"] == 1
        if kind == "application/json":  # a server that is wrong about the status has answered all the same
            server.plan(Fault.STATUS, method="tools/call", status=status + 299, headers=headers, body=body.encode())
            assert await link.request("tools/call", tool("echo"), id="mine") == {"content": []}
        server.plan(Fault.STATUS, method="tools/call", status=status, headers={"content-type": "text/html"}, body=b"x")
        assert await _one_call(link, "y", False) == "OutcomeUnknown"  # it took the call, and said nothing of it


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("refusal", OTHER_REFUSALS, ids=lambda refusal: refusal.name)
async def test_no_other_refusal_costs_the_session(refusal: Refusal, era: Any) -> None:
    async with FaultServer(era=era) as server, link_to(server.url) as link:
        await link.request("tools/list")
        session, handshakes = link.session_id, server.sessions.handshakes
        server.plan(Fault.STATUS, method="tools/call", refusal=refusal)
        outcome = await _one_call(link, "x", False)
        expected = {401: "Rejected", 403: "Rejected", 429: "answer"}.get(refusal.status, "OutcomeUnknown")
        if refusal.status == 503 and refusal.headers:
            expected = "answer"  # busy, waited, sent again
        assert outcome == expected
        assert await _one_call(link, "y", False) == "answer"
        assert (link.session_id, server.sessions.handshakes) == (session, handshakes)


@pytest.mark.promise("link.matrix")
@pytest.mark.parametrize("era", ERAS)
async def test_refused_connections_are_typed_and_the_link_serves_when_the_server_is_back(era: Any) -> None:
    async with FaultServer(era=era) as server, link_to(server.url) as link:
        await link.request("tools/list")
        await server.refuse()
        with pytest.raises(holdfast.errors.ConnectFailed) as caught:
            await link.request("tools/call", tool("effect", call="x"))
        assert caught.value.attempts == 3
        assert server.effects["x"] == 0
        await server.listen()
        assert await _one_call(link, "x", False) == "answer"


@pytest.mark.promise("link.blast-radius")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("form", FORMS)
async def test_a_failing_call_harms_no_other_in_flight(era: Any, form: Any) -> None:
    async with FaultServer(era=era, answers=form) as server, link_to(server.url) as link:
        await link.request("tools/list")
        waiting = [asyncio.ensure_future(link.request("tools/call", tool("wait", call=f"w{n}"))) for n in range(5)]
        await _met(server, 5)
        for fault in (Fault.CLOSE, Fault.RESET, Fault.NOT_HTTP, Fault.CLOSE_IN_BODY, Fault.FORGET):
            server.plan(fault, method="tools/call")
            await _one_call(link, fault.name, False)
        server.plan(Fault.HANG, method="tools/call")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(link.request("tools/call", tool("effect")), 0.05)
        server.sessions.release.set()
        assert [text_of(result) for result in await asyncio.gather(*waiting)] == [""] * 5
        assert all(server.effects[f"w{n}"] == 1 for n in range(5))


async def _met(server: FaultServer, calls: int) -> None:
    await until(lambda: sum(request.method == "tools/call" for request in server.requests) >= calls)
