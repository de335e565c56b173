"""Questions inside a 2026 answer: bounded in number and in time."""

from typing import Any

import pytest

import holdfast
from holdfast import Server
from holdfast.client.calls import input_rounds

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.callbacks")
async def test_input_rounds_are_bounded_by_the_timeout_and_raise_ours() -> None:
    server = Server("s", url="http://h/")

    class RequestContext:
        sharers = ()

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
