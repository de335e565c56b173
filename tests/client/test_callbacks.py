"""What servers ask and say, and what the author's own functions answer: right, wrong, and declared wrong."""

import asyncio
import functools
import logging
from types import SimpleNamespace
from typing import Annotated, Any

import mcp_types as types
import pytest
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

import holdfast
from holdfast import Callbacks, Server
from holdfast.client.calls import input_rounds
from holdfast.client.runs.pool import pool
from holdfast.testing import FaultServer
from tests.client.servers import FASTER, at, said
from tests.deadlines import patience, until
from tests.links.quick_links import FAST
from tests.links.server_process import RealServer

pytestmark = pytest.mark.anyio


QUESTION = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}


class Seat(BaseModel):
    row: int


def ask_for_seat() -> Any:
    return Elicit("Which row?", Seat)


def asking() -> MCPServer:
    app = MCPServer("asks")

    @app.tool()
    async def book(seat: Annotated[Seat, Resolve(ask_for_seat)]) -> str:
        return f"row {seat.row} is yours"

    @app.tool()
    async def talk(context: Context[Any, Any]) -> str:
        for level in ("debug", "info", "error"):
            await context.log(level, f"it is {level}")  # type: ignore[arg-type]
        return "said"

    return app


@pytest.mark.promise("run.callback-errors")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_callback_that_raises_is_logged_with_its_traceback_and_its_words_reach_no_server(
    era: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def elicit(params: Any) -> types.ElicitResult:
        raise KeyError("hunter2")

    server = Server("asks", app=asking(), era=era, limits=FASTER, callbacks=Callbacks(elicit=elicit))
    async with holdfast.run():
        with pytest.raises(holdfast.errors.CallbackFailed) as caught:
            await server.call_tool("book")
        assert caught.value.server == "asks"
        assert "hunter2" not in caught.value.public_text()
        if era == "2025":  # the server was told, and said so
            assert isinstance(caught.value.__cause__, holdfast.errors.ErrorAnswer)
            assert "CallbackFailed" in str(caught.value.__cause__)
            assert "hunter2" not in str(caught.value.__cause__)
        else:  # there is no way to tell it
            assert isinstance(caught.value.__cause__, KeyError)
    [record] = [record for record in caplog.records if record.exc_info is not None]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    assert "asks" in record.getMessage()


@pytest.mark.promise("run.callback-errors")
async def test_every_callback_answers_the_server_with_a_typed_error_and_what_it_refused_with_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def nonsense(*_: Any) -> Any:
        return {"action": "accept"}

    async def fails(*_: Any) -> Any:
        raise RuntimeError("hunter2")

    async def refuses(*_: Any) -> Any:
        raise MCPError(-1, "the user said no", {"why": "mood"})

    async def answers_an_error(*_: Any) -> Any:
        return types.ErrorData(code=-1, message="the user said no", data={"why": "mood"})

    async def no_words(params: Any) -> Any: ...

    async with FaultServer(answers="sse") as http:
        for number, (callback, says) in enumerate(
            ((fails, "CallbackFailed"), (nonsense, "CallbackFailed"), (refuses, "mood"), (answers_an_error, "mood"))
        ):
            asked = Callbacks(elicit=callback, sample=callback, roots=callback)
            server = at(http, f"it-{number}", callbacks=asked)
            async with holdfast.run():
                sample = {"messages": [], "maxTokens": 1}
                for method, params in (
                    ("elicitation/create", QUESTION), ("sampling/createMessage", sample), ("roots/list", {}),
                ):  # fmt: skip
                    answer = said(await server.call_tool("ask", {"method": method, "params": params}))
                    assert says in answer
                    assert "hunter2" not in answer
                    assert server.name in answer or says == "mood"
        async with holdfast.run(callbacks=Callbacks(elicit=no_words)):
            unreadable = said(await at(http).call_tool("ask", {"params": {"message": 7}}))
            assert "-32602" in unreadable
    assert caplog.text.count("Traceback") == 3 + 3  # of those that failed; a refusal is no failure


@pytest.mark.promise("run.callback-errors")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_callback_whose_helper_was_cancelled_has_failed_and_leaves_nobody_waiting(era: Any) -> None:
    async def elicit(params: Any) -> types.ElicitResult:
        helper = asyncio.ensure_future(asyncio.Event().wait())
        helper.cancel()
        await helper
        raise AssertionError

    server = Server("asks", app=asking(), era=era, limits=FASTER, callbacks=Callbacks(elicit=elicit))
    async with holdfast.run(), asyncio.timeout(patience(10)):
        with pytest.raises(holdfast.errors.CallbackFailed):
            await server.call_tool("book")
        assert said(await server.call_tool("talk"))  # the session stands


@pytest.mark.filterwarnings("ignore:The logging capability is deprecated")
@pytest.mark.promise("run.on-log")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_on_log_hears_in_both_eras_from_the_level_on_that_it_asks_for(era: Any) -> None:
    heard: list[Any] = []
    app = asking()
    async with holdfast.run(callbacks=Callbacks(on_log=lambda params: heard.append(params["data"]))):
        await Server("asks", app=app, era=era, limits=FASTER).call_tool("talk")
        await until(lambda: len(heard) == 3)
    assert heard == ["it is debug", "it is info", "it is error"]
    heard.clear()
    async with FaultServer(era=era, answers="sse") as http:
        asks = Callbacks(on_log=lambda params: heard.append(params["data"]), log_level="warning")
        async with holdfast.run(callbacks=asks):
            await at(http, reuse="process").call_tool("log", {"text": "x"})
        async with holdfast.run():  # wants no log: another link
            await at(http, reuse="process").call_tool("log", {"text": "y"})
        await pool.close()
    sent = [request.message for request in http.requests if request.message is not None]
    if era == "2026":
        calls = [message["params"]["_meta"] for message in sent if message["method"] == "tools/call"]
        assert [meta.get("io.modelcontextprotocol/logLevel") for meta in calls] == ["warning", None]
    else:
        assert [m["params"] for m in sent if m["method"] == "logging/setLevel"] == [{"level": "warning"}]
    assert heard == ["x"]


@pytest.mark.promise("run.callback-errors")
async def test_a_notification_callback_that_raises_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("mine")

    async def on_progress(*_: Any) -> None:
        raise KeyError("mine")

    async with FaultServer(answers="sse") as http:
        async with holdfast.run(callbacks=Callbacks(on_log=broken)):
            assert said(await at(http).call_tool("log", {"text": "x"})) == "x"
            await at(http).call_tool("progress", {"steps": 1}, on_progress=on_progress)
    assert [record.levelno for record in caplog.records if record.exc_info is not None] == [logging.ERROR] * 2


async def _good(params: Any) -> Any: ...


async def _as_the_sdk(context: Any, params: Any) -> Any: ...


async def _roots() -> Any: ...


class _Callable:
    async def __call__(self, params: Any) -> Any: ...

    async def method(self, params: Any) -> Any: ...


@functools.wraps(_good)
def _wrapped(params: Any) -> Any:
    return _good(params)


@pytest.mark.promise("run.callback-errors")
@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"elicit": lambda params: None}, "elicit= must be an async function"),
        ({"sample": lambda params: None}, "sample= must be an async function"),
        ({"roots": list}, "roots= must be an async function"),
        ({"elicit": _as_the_sdk}, r"elicit= can't be called with \(params\)"),
        ({"roots": _good}, r"roots= can't be called with \(\)"),
        ({"elicit": 7}, "elicit= must be an async function"),
        ({"roots": "file:///a"}, "roots= must be a list of URIs"),
        ({"roots": [7]}, "roots="),
        ({"on_log": _good}, "on_log= is an async function"),
        ({"on_log": lambda: None}, r"on_log= can't be called with \(params\)"),
        ({"on_notification": lambda params: None}, r"on_notification= can't be called with \(method, params\)"),
        ({"on_log": 7}, "on_log= can't be called"),
        ({"on_log": print, "log_level": "loud"}, "log_level='loud'"),
    ],
)
def test_a_callback_that_can_not_work_is_refused_when_it_is_declared(declared: dict[str, Any], says: str) -> None:
    with pytest.raises(holdfast.errors.ConfigError, match=says) as caught:
        Callbacks(**declared)
    assert caught.value.remedy


@pytest.mark.promise("run.callback-errors")
async def test_async_functions_of_every_form_are_taken() -> None:
    for form in (_good, _wrapped, _Callable(), _Callable().method, functools.partial(_as_the_sdk, None)):
        assert Callbacks(elicit=form).elicit is form
    assert Callbacks(roots=_roots, on_log=print, on_notification=print).roots is _roots
    for wrong in (lambda *_: None, _good):
        with pytest.raises(holdfast.UsageError, match="on_progress"):
            await Server("s", url="http://127.0.0.1:1/").call_tool("x", on_progress=wrong)  # type: ignore[arg-type]


@pytest.mark.promise("run.callbacks")
async def test_elicitation_sampling_and_roots_in_both_eras() -> None:
    async def elicit(params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "moss"})

    async with FaultServer(answers="sse") as http:
        server = at(http)
        async with holdfast.run(callbacks=Callbacks(elicit=elicit, roots=["file:///a"])):
            asked = {"params": {"message": "name?", "requestedSchema": {"type": "object", "properties": {}}}}
            assert "moss" in said(await server.call_tool("ask", asked))
            assert "file:///a" in said(await server.call_tool("ask", {"method": "roots/list"}))
            assert "-32601" in said(await server.call_tool("ask", {"method": "sampling/createMessage"}))
    initialized = next(request.message for request in http.requests if request.method == "initialize")
    assert initialized is not None
    assert set(initialized["params"]["capabilities"]) == {"elicitation", "roots"}

    app = MCPServer("asks")

    @app.tool()
    async def name(answer: str = "", context: Any = None) -> str:
        return "unused"

    rounds: list[dict[str, Any]] = []

    class RequestContext:
        """A 2026 server's input round, as the wire has it."""

        losses = SimpleNamespace(sharers=())

        async def request(self, method: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
            rounds.append(params)
            if "inputResponses" not in params:
                question = {"method": "elicitation/create", "params": asked["params"]}
                return {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "sealed"}
            text = str(params["inputResponses"]["q"]["content"])
            return {"resultType": "complete", "content": [{"type": "text", "text": text}]}

    server = Server("asks", app=app, callbacks=Callbacks(elicit=elicit))
    result = await input_rounds.request_with_input(server, RequestContext(), "tools/call", {"name": "x"})  # type: ignore[arg-type]
    assert "moss" in result["content"][0]["text"]
    assert rounds[1]["requestState"] == "sealed"
    endless = RequestContext()
    endless.request = lambda *_, **__: asyncio.sleep(0, {"resultType": "input_required", "requestState": "x"})  # type: ignore[method-assign]
    with pytest.raises(holdfast.errors.LimitReached):
        await input_rounds.request_with_input(server, endless, "tools/call", {"name": "x"})  # type: ignore[arg-type]


@pytest.mark.promise("run.callbacks")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_real_server_asks_and_the_run_answers(era: Any) -> None:
    asked: list[str] = []

    async def elicit(params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"row": 7})

    async with RealServer("sdk") as real:
        server = Server("seats", url=real.url, era=era, limits=FAST)
        async with holdfast.run(callbacks=Callbacks(elicit=elicit)) as run:
            assert said(await server.call_tool("book")) == "row 7 is yours"
            assert (await run.link(server)).era is not None
        assert asked == ["Which row?"]
        async with holdfast.run():  # nobody answers: told with the server's name, not hung
            try:
                refused = await server.call_tool("book")
            except holdfast.HoldfastError as error:
                assert error.server == "seats"
            else:
                assert refused.is_error
