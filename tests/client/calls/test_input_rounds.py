"""What a 2026 request carries and what its answer asks for: bounded in number and in time."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import mcp_types as types
import pytest

import holdfast
from holdfast import Callbacks, Server
from holdfast.client.calls import input_rounds
from holdfast.core.eras import LOG_LEVEL
from holdfast.testing import FaultServer
from tests.client.servers import at

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.callbacks")
async def test_input_rounds_are_bounded_by_the_timeout_and_raise_ours() -> None:
    server = Server("s", url="http://h/")

    class RequestContext:
        losses = SimpleNamespace(sharers=())

        def __init__(self, question: Any) -> None:
            self.question = question

        async def request(self, method: str, params: Any, *, timeout: float | None, **_: Any) -> dict[str, Any]:
            assert timeout is None or timeout <= 0.3
            return {"resultType": "input_required", "inputRequests": {"q": self.question}}

    for question in (
        "oops",
        {"method": "sampling/createMessage"},
        {"method": "elicitation/create", "params": {"x": 1}},
    ):
        with pytest.raises(holdfast.Rejected) as caught:
            await input_rounds.request_with_input(
                server, RequestContext(question), "tools/call", {"name": "x"}, timeout=0.3
            )  # type: ignore[arg-type]
        assert caught.value.server == "s"


async def _everything(server: Server) -> None:
    for one in (
        server.call_tool("echo", {"text": "x"}),
        server.list_tools(),
        server.list_resources(),
        server.list_resource_templates(),
        server.list_prompts(),
        server.complete(types.PromptReference(type="ref/prompt", name="x"), "y"),
        server.ping(),
    ):
        with suppress(holdfast.errors.ErrorAnswer):
            await one


@pytest.mark.promise("run.on-log")
async def test_every_request_of_a_nested_run_asks_for_its_logs_and_none_of_the_outer_run() -> None:
    async with FaultServer(era="2026") as http:
        server = at(http)

        async def levels() -> set[Any]:
            before = len(http.requests)
            await _everything(server)
            sent = [request.message for request in http.requests[before:] if request.message is not None]
            assert len(sent) == 7
            return {message["params"]["_meta"].get(LOG_LEVEL) for message in sent}

        async with holdfast.run():
            await server.ping()
            async with holdfast.run(callbacks=Callbacks(on_log=print, log_level="info")):
                assert await levels() == {"info"}
            assert await levels() == {None}


@pytest.mark.promise("run.on-log")
async def test_a_2025_request_carries_nothing_more_for_it() -> None:
    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run(), holdfast.run(callbacks=Callbacks(on_log=print)):
            await _everything(server)
        sent = [request.message for request in http.requests if request.message is not None]
        assert not [message for message in sent if "_meta" in message.get("params", {})]
        assert not any(message.get("params") for message in sent if message["method"] in ("ping", "tools/list"))
