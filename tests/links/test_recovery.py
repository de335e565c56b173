"""What a link does about faults: the right depth, once, and never silently."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import events
from holdfast.core.verdicts import Verdict, VerdictRule
from holdfast.links import Limits, Options
from holdfast.testing import LOST_SESSION, Fault, FaultServer
from tests.deadlines import until
from tests.links.quick_links import FAST, helper_is_cancelled, link_to, text_of, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.single-flight")
async def test_fifty_first_calls_make_one_open_and_one_handshake() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        results = await asyncio.gather(*(link.request("tools/call", tool("echo", text=str(n))) for n in range(50)))
        assert [text_of(result) for result in results] == [str(n) for n in range(50)]
        assert server.sessions.handshakes == 1
        assert (link.statistics().opens, link.statistics().handshakes) == (1, 1)


@pytest.mark.promise("link.single-flight")
async def test_fifty_calls_that_learn_of_a_lost_session_make_one_recovery() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        server.sessions.sessions.clear()
        results = await asyncio.gather(*(link.request("tools/call", tool("echo", text=str(n))) for n in range(50)))
        assert [text_of(result) for result in results] == [str(n) for n in range(50)]
        assert server.sessions.handshakes == 2
        assert link.statistics().replacements == 1


@pytest.mark.promise("link.single-flight")
async def test_a_waiter_that_is_cancelled_stops_nobody_else() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.HANG, method="initialize")
        first = asyncio.ensure_future(link.request("tools/list"))
        second = asyncio.ensure_future(link.request("tools/list"))
        await until(lambda: server.requests)
        first.cancel()
        assert (await second)["tools"]  # the handshake hung until its deadline, and was asked again
        with pytest.raises(asyncio.CancelledError):
            await first


@pytest.mark.promise("link.state-loss")
async def test_after_an_unsafe_call_the_next_unsafe_one_is_told_and_a_safe_one_is_replayed() -> None:
    heard: list[events.Event] = []
    async with FaultServer() as server, link_to(server.url, on_event=heard.append) as link:
        assert text_of(await link.request("tools/call", tool("count"))) == "1"
        old = link.session_id
        server.sessions.sessions.clear()
        with pytest.raises(holdfast.SessionReplaced) as caught:
            await link.request("tools/call", tool("count", call="x"))
        assert (caught.value.session, caught.value.new_session) == (old, link.session_id)
        assert server.effects["x"] == 0
        assert "call again" in str(caught.value)
        assert text_of(await link.request("tools/call", tool("count"))) == "1"
        server.sessions.sessions.clear()
        assert (await link.request("tools/list"))["tools"]
        [first, second] = [event for event in heard if isinstance(event, events.LinkSessionReplaced)]
        assert (first.old, first.new, first.kept_state) == (old, second.old, True)
        assert link.statistics().replacements == 2


@pytest.mark.promise("link.state-loss")
async def test_a_loss_that_a_safe_call_met_is_told_to_the_next_unsafe_one() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/call", tool("count"))
        server.sessions.sessions.clear()
        await link.request("tools/list")
        with pytest.raises(holdfast.SessionReplaced):
            await link.request("tools/call", tool("count", call="x"))
        assert server.effects["x"] == 0
        assert text_of(await link.request("tools/call", tool("count"))) == "1"


@pytest.mark.promise("link.state-loss")
async def test_a_server_declared_stateless_loses_nothing() -> None:
    async with FaultServer() as server, link_to(server.url, stateful=False) as link:
        await link.request("tools/call", tool("count"))
        server.sessions.sessions.clear()
        assert text_of(await link.request("tools/call", tool("count", call="x"))) == "1"
        assert server.effects["x"] == 1


@pytest.mark.promise("link.reseed")
async def test_the_hook_runs_in_the_new_session_before_the_replay_and_may_allow_it() -> None:
    seen: list[tuple[str | None, str | None, bool]] = []

    async def reseed(lost: holdfast.links.ReseedContext) -> bool:
        seen.append((lost.old_session, lost.new_session, lost.kept_state))
        await lost.request("tools/call", tool("count"))  # put back what was there
        return True

    async with FaultServer() as server, link_to(server.url, reseed=reseed) as link:
        assert text_of(await link.request("tools/call", tool("count"))) == "1"
        old = link.session_id
        server.sessions.sessions.clear()
        counts = await asyncio.gather(*(link.request("tools/call", tool("count")) for _ in range(5)))
        assert sorted(text_of(each) for each in counts) == ["2", "3", "4", "5", "6"]
        assert seen == [(old, link.session_id, True)]


@pytest.mark.promise("link.reseed")
async def test_a_hook_that_fails_allows_nothing() -> None:
    async def reseed(lost: holdfast.links.ReseedContext) -> bool:
        await lost.request("no/such/method")
        return True

    async with FaultServer() as server, link_to(server.url, reseed=reseed) as link:
        await link.request("tools/call", tool("count"))
        server.sessions.sessions.clear()
        with pytest.raises(holdfast.SessionReplaced):
            await link.request("tools/call", tool("count"))
        assert link.statistics().strays == 1
        assert text_of(await link.request("tools/call", tool("count"))) == "1"


@pytest.mark.promise("link.restore")
async def test_log_level_and_subscriptions_are_restored_before_any_replay() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("logging/setLevel", {"level": "debug"})
        await link.request("resources/subscribe", {"uri": "a:1"})
        await link.request("resources/subscribe", {"uri": "a:2"})
        await link.request("resources/unsubscribe", {"uri": "a:1"})
        server.sessions.sessions.clear()
        before = len(server.requests)
        await link.request("tools/list")
        assert [request.method for request in server.requests[before:] if request.verb == "POST"] == [
            "tools/list", "initialize", "notifications/initialized", "logging/setLevel", "resources/subscribe",
            "tools/list",
        ]  # fmt: skip
        [session] = server.sessions.sessions.values()
        assert (session.log_level, session.subscribed) == ("debug", {"a:2"})


@pytest.mark.promise("link.exhausted")
async def test_exhausted_recoveries_say_so_with_attempts_and_both_sessions() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        server.plan(Fault.FORGET, method="tools/call", times=10)
        with pytest.raises(holdfast.SessionReplaced) as caught:
            await link.request("tools/call", tool("effect", call="x"), safe=True)
        assert caught.value.attempts == 3
        assert caught.value.session
        assert caught.value.new_session
        server.lift()
        assert server.effects["x"] == 0
        await link.request("tools/call", tool("effect", call="x"), safe=True)


@pytest.mark.promise("link.exhausted")
async def test_replays_are_bounded_and_counted() -> None:
    heard: list[events.Event] = []
    async with FaultServer() as server, link_to(server.url, on_event=heard.append) as link:
        await link.request("tools/list")
        server.plan(Fault.CLOSE, method="tools/call", times=10)
        with pytest.raises(holdfast.errors.ConnectionLost) as caught:
            await link.request("tools/call", tool("echo"), safe=True)
        assert caught.value.attempts == 3
        assert [event.attempt for event in heard if isinstance(event, events.CallReplayed)] == [1, 2]
        assert link.statistics().replays == 2
        assert link.statistics().unknown_outcomes == 3


@pytest.mark.promise("link.busy")
async def test_retry_after_is_honoured_within_the_deadline() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        loop = asyncio.get_running_loop()
        server.plan(Fault.STATUS, method="tools/call", status=429, headers={"retry-after": "1"})
        start = loop.time()
        await link.request("tools/call", tool("effect", call="x"))
        assert loop.time() - start >= 1
        server.plan(Fault.STATUS, method="tools/call", status=503, headers={"retry-after": "60"})
        with pytest.raises(holdfast.errors.Busy) as caught:
            await link.request("tools/call", tool("effect", call="y"))
        assert (caught.value.retry_after, caught.value.status) == (60, 503)
        assert "call again in 60 s: a call itself waits for at most 30 s" in str(caught.value)
        server.plan(Fault.STATUS, method="tools/call", status=429, headers={"retry-after": "5"})
        start = loop.time()
        with pytest.raises(holdfast.errors.Busy, match=r"call again in 5 s, or raise timeout=: 0.* of 0.5 s were used"):
            await link.request("tools/call", tool("effect", call="y"), timeout=0.5)
        assert loop.time() - start < 0.5
        server.plan(Fault.STATUS, method="tools/call", status=429, times=3)
        with pytest.raises(
            holdfast.errors.Busy, match=r"3 of 3 tries in 0.\d s.*or in Python raise Limits\(replays=…\), which is 2"
        ):
            await link.request("tools/call", tool("effect", call="y"))
        assert server.effects == {"x": 1}


@pytest.mark.promise("link.circuit")
async def test_a_server_that_fails_on_and_on_rests_and_comes_back() -> None:
    heard: list[str] = []

    def sink(event: events.Event) -> None:
        if isinstance(event, events.CircuitChanged):
            heard.append(event.state)

    async with FaultServer() as server, link_to(server.url, on_event=sink) as link:
        await link.request("tools/list")
        await server.refuse()
        refused: list[holdfast.HoldfastError] = []

        async def rests() -> bool:
            with pytest.raises(holdfast.Unavailable) as caught:
                await link.request("tools/list")
            refused.append(caught.value)
            return isinstance(caught.value, holdfast.errors.CircuitOpen)

        while not await rests():
            assert len(refused) < 1000
        assert refused[-1].retry_after is not None
        assert 0 < refused[-1].retry_after <= 1
        # Another link to the same server shares the circuit.
        async with link_to(server.url) as other:
            with pytest.raises(holdfast.errors.CircuitOpen):
                await other.request("tools/list")
        await server.listen()
        loop = asyncio.get_running_loop()
        end = loop.time() + 5
        while True:
            try:
                await link.request("tools/list")
                break
            except holdfast.errors.CircuitOpen as error:
                assert loop.time() < end
                await asyncio.sleep(error.retry_after or 0)
        assert heard[0] == "open"
        assert "half open" in heard


@pytest.mark.promise("link.generations")
async def test_a_recovery_does_not_cut_calls_of_the_old_generation() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        waiting = asyncio.ensure_future(link.request("tools/call", tool("wait", call="w")))
        await until(lambda: server.effects["w"])
        server.sessions.sessions.clear()
        await link.request("tools/list")
        assert link.generation == 2
        server.sessions.release.set()
        assert text_of(await waiting) == ""
        assert link.generation == 2


@pytest.mark.promise("link.eras")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_server_that_comes_back_in_the_other_era_gets_its_handshake_in_that_era(era: Any) -> None:
    async with FaultServer(era=era) as server, link_to(server.url) as link:
        await link.request("tools/list")
        assert link.era is not None
        assert link.era.value == era
        server.plan(Fault.CHANGE_ERA, method="tools/call")
        assert text_of(await link.request("tools/call", tool("echo", text="hi"), safe=True)) == "hi"
        assert link.era is not None
        assert link.era.value != era


@pytest.mark.promise("link.rows")
async def test_a_server_declaration_may_add_a_shape() -> None:
    odd = VerdictRule("418 is how it forgets", Verdict.SESSION_LOST, status=(418,))
    refusal = LOST_SESSION[2]
    async with FaultServer(lost=type(refusal)("teapot", 418)) as server:
        async with link_to(server.url) as plain:
            await plain.request("tools/list")
            server.sessions.sessions.clear()
            with pytest.raises(holdfast.Rejected):
                await plain.request("tools/list")
        async with link_to(server.url, verdict_rules=(odd,)) as link:
            await link.request("tools/list")
            server.sessions.sessions.clear()
            assert (await link.request("tools/list"))["tools"]


@pytest.mark.promise("link.limits")
async def test_calls_over_the_cap_are_refused_before_they_are_sent() -> None:
    limits = holdfast.links.Limits(in_flight=2, close=1)
    async with FaultServer() as server, holdfast.Link(server.url, Options(limits=limits)) as link:
        await link.request("tools/list")
        waiting = [asyncio.ensure_future(link.request("tools/call", tool("wait", call="w"))) for _ in range(2)]
        await until(lambda: server.effects["w"] == 2)
        with pytest.raises(holdfast.errors.Busy, match="2 of 2"):
            await link.request("tools/list")
        server.sessions.release.set()
        await asyncio.gather(*waiting)
        await link.request("tools/list")


@pytest.mark.promise("link.limits")
async def test_a_total_timeout_covers_everything_and_says_what_is_known() -> None:
    async with FaultServer() as server, link_to(server.url, limits=FAST) as link:
        server.plan(Fault.HANG, method="initialize", times=10)
        loop = asyncio.get_running_loop()
        start = loop.time()
        with pytest.raises(holdfast.errors.StartTimeout):
            await link.request("tools/call", tool("effect", call="x"), timeout=0.2)
        server.lift()
        await link.request("tools/list")
        server.plan(Fault.HANG, method="tools/call", effect=True)
        with pytest.raises(holdfast.errors.AnswerTimeout):
            await link.request("tools/call", tool("effect", call="x"), timeout=0.2)
        assert loop.time() - start < 4
        await until(lambda: server.sessions.cancelled)  # the server was told


@pytest.mark.promise("link.retry")
@pytest.mark.parametrize(("said", "taken"), [("Infinity", None), ("nan", None), ("1e300", 86_400), ("-5", 0)])
async def test_a_retry_after_beyond_measure_is_no_wait_for_ever(said: str, taken: float | None) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        for _ in range(4):
            server.plan(Fault.STATUS, method="tools/call", status=503, headers={"retry-after": said})
        with pytest.raises(holdfast.HoldfastError) as caught:
            await link.request("tools/call", tool("echo"))
        assert caught.value.retry_after == taken


@pytest.mark.promise("link.state-loss")
async def test_an_executed_call_whose_answer_was_too_large_counts_as_state() -> None:
    limits = Limits(message_bytes=50_000, close=1)
    async with FaultServer() as server, link_to(server.url, limits=limits, stream=False) as link:
        with pytest.raises(holdfast.errors.LimitReached):
            await link.request("tools/call", tool("large", bytes=60_000))
        server.sessions.sessions.clear()
        with pytest.raises(holdfast.SessionReplaced):
            await link.request("tools/call", tool("count"))


@pytest.mark.promise("link.state-loss")
async def test_a_safe_call_that_was_told_leaves_the_next_unsafe_one_to_be_told() -> None:
    limits = Limits(replays=0, close=1)
    async with FaultServer() as server, link_to(server.url, limits=limits, stream=False) as link:
        await link.request("tools/call", tool("count"))
        server.sessions.sessions.clear()
        for safe in (True, False):
            with pytest.raises(holdfast.SessionReplaced):
                await link.request("tools/call", tool("count"), safe=safe)
        assert text_of(await link.request("tools/call", tool("count"))) == "1"


@pytest.mark.promise("link.circuit")
async def test_a_trial_whose_caller_was_cancelled_does_not_hold_up_the_next() -> None:
    async with FaultServer() as server, link_to(server.url, limits=FAST) as link:
        await server.refuse()
        loop, opened = asyncio.get_running_loop(), False
        while not opened:
            with pytest.raises(holdfast.Unavailable) as caught:
                await link.request("tools/list")
            opened = isinstance(caught.value, holdfast.errors.CircuitOpen)
        await server.listen()
        server.plan(Fault.HANG, method="initialize")
        end = loop.time() + 8
        while True:
            try:
                await asyncio.wait_for(link.request("tools/list"), 0.3)
            except TimeoutError:
                break
            except holdfast.errors.CircuitOpen as error:
                assert loop.time() < end
                await asyncio.sleep(error.retry_after or 0)
        server.lift()
        await link.request("tools/list")


@pytest.mark.promise("link.reseed")
async def test_a_hook_that_uses_the_link_itself_is_told() -> None:
    async def reseed(lost: holdfast.links.ReseedContext) -> bool:
        await link.request("tools/list")
        return True

    async with FaultServer() as server:
        link = link_to(server.url, reseed=reseed)
        await link.request("tools/call", tool("count"))
        server.sessions.sessions.clear()
        with pytest.raises(holdfast.SessionReplaced):
            await asyncio.wait_for(link.request("tools/call", tool("count")), 3)
        await link.close()


@pytest.mark.promise("link.reseed")
async def test_a_reseed_hook_whose_helper_was_cancelled_harms_no_call() -> None:
    async with FaultServer() as http, link_to(http.url, reseed=helper_is_cancelled) as link:
        await link.request("tools/list")
        http.sessions.sessions.clear()
        await link.request("tools/list")
        assert link.statistics().replacements == 1
