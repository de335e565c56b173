"""What an author sees of a failed call."""

import traceback
from typing import Any

import pytest

import holdfast
from holdfast import Callbacks, Server
from holdfast.client.runs.run import Run
from holdfast.testing import Fault, FaultServer
from tests.client.servers import FASTER, at
from tests.client.test_callbacks import asking

pytestmark = pytest.mark.anyio
NOBODY = Server("it", url="http://127.0.0.1:1/mcp", limits=holdfast.links.Limits(replays=0))


async def headers() -> dict[str, str]:
    raise LookupError("no such secret")


def shown(error: BaseException) -> tuple[int, list[str]]:
    """How often a traceback begins, and the files of ours in it."""
    text = "".join(traceback.format_exception(error))
    lines = [line for line in text.splitlines() if line.startswith('  File "') and "/src/holdfast/" in line]
    return text.count("Traceback (most recent call last)"), lines


@pytest.mark.promise("errors.traceback")
@pytest.mark.parametrize("method", ["call_tool", "list_tools", "read_resource", "ping"])
async def test_a_failed_call_shows_its_authors_line_one_of_ours_and_no_second_chain(method: str) -> None:
    arguments = {"call_tool": ("echo",), "read_resource": ("note://x",)}.get(method, ())
    async with FaultServer() as http, holdfast.run():
        for server in (NOBODY, at(http)):
            http.plan(Fault.STATUS, status=404, times=3)
            with pytest.raises(holdfast.HoldfastError) as caught:
                await getattr(server, method)(*arguments)  # the author's line
            begun, ours = shown(caught.value)
            assert begun == 1
            assert len(ours) == 1
            assert "the author's line" in "".join(traceback.format_exception(caught.value))


@pytest.mark.promise("errors.traceback")
async def test_a_cause_is_shown_once_and_whole() -> None:
    failing = NOBODY.with_(headers=headers)
    async with holdfast.run():
        for _ in range(2):  # each caller's own
            with pytest.raises(holdfast.errors.ConnectFailed) as caught:
                await failing.call_tool("x")
            text = "".join(traceback.format_exception(caught.value))
            assert text.count("no such secret") == 2 + 1  # as raised, in our words, in the author's code
            assert shown(caught.value)[0] == 2
            assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.promise("errors.traceback")
async def test_a_failing_callback_is_shown_with_its_own_traceback() -> None:
    async def elicit(params: Any) -> Any:
        raise KeyError("mine")

    server = Server("asks", app=asking(), era="2026", limits=FASTER, callbacks=Callbacks(elicit=elicit))
    async with holdfast.run():
        with pytest.raises(holdfast.errors.CallbackFailed) as caught:
            await server.call_tool("book")
        assert 'raise KeyError("mine")' in "".join(traceback.format_exception(caught.value))


@pytest.mark.promise("errors.numbers")
async def test_a_call_that_is_held_back_says_how_many_failures_and_how_long_to_go() -> None:
    limits = holdfast.links.Limits(replays=0, connect=1)
    async with FaultServer() as http:
        url = http.url
    failing = Server("gone", url=url, limits=limits)
    async with holdfast.run() as run:
        with pytest.raises(holdfast.errors.ConnectFailed):
            await failing.ping()
        circuit = (await run.link(failing))._calls.peer.circuit
        circuit.spacing = 0.0
        for _ in range(circuit.threshold):
            with pytest.raises(holdfast.HoldfastError) as caught:
                await failing.ping()
        with pytest.raises(holdfast.errors.CircuitOpen, match=r"failed 8 times in a row \(8 open") as caught:
            await failing.ping()
        assert caught.value.retry_after is not None
        assert f"call again in {caught.value.retry_after:.1f} s" in str(caught.value)


@pytest.mark.promise("errors.numbers")
async def test_a_late_answer_names_the_limit_that_was_passed() -> None:
    async with FaultServer() as http, holdfast.run():
        with pytest.raises(holdfast.errors.AnswerTimeout, match=r"within timeout=0.2 s"):
            await at(http).call_tool("wait", timeout=0.2)
        with pytest.raises(holdfast.errors.AnswerTimeout, match=r"0.2 s of silence \(silence=") as caught:
            await at(http).call_tool("wait", silence=0.2)
        assert "call_tool(…, idempotent=True)" in str(caught.value)


@pytest.mark.promise("errors.traceback")
@pytest.mark.parametrize("what", ["eager", "store", "link", "session", "watch", "end"])
async def test_what_fails_of_a_run_shows_its_authors_line_and_one_of_ours(what: str) -> None:
    async with holdfast.open_store("memory:") as store:
        async with holdfast.run("ended", store=store) as gone:
            await gone.end()
        off = Server("off", url="http://127.0.0.1:1/mcp", disabled=True)

        async def tried() -> Any:
            if what == "eager":
                async with holdfast.run(eager=[NOBODY]):  # the author's line
                    raise AssertionError("not reached")
            if what == "store":
                async with holdfast.run("ended", store=store):  # the author's line
                    raise AssertionError("not reached")
            async with holdfast.run("talk", store=store) as run:
                if what == "link":
                    await run.link(off)  # the author's line
                elif what == "session":
                    await NOBODY.session()  # the author's line
                elif what == "watch":
                    await off.watch(tools=True)  # the author's line
                else:
                    await failing(run).end()  # the author's line

        with pytest.raises(holdfast.HoldfastError) as caught:
            await tried()
        begun, ours = shown(caught.value)
        assert begun == 1
        assert len(ours) == 1, ours
        assert "the author's line" in "".join(traceback.format_exception(caught.value))


def failing(run: Run) -> Run:
    async def down(*_: Any) -> Any:
        raise holdfast.errors.StoreDown("as if")

    assert run._sessions._record is not None
    run._sessions._record.end = down  # type: ignore[method-assign]
    return run
