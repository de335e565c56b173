"""A loss counts as reported once the answer that tells of it was written whole to its caller, and not before."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.dispatch import Methods
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}
SAID = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 500_000}}


@pytest.mark.promise("gateway.state-loss")
@pytest.mark.parametrize("how", ["read", "cut off", "taken over"])
async def test_a_loss_whose_answer_was_not_written_whole_is_still_to_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    reported: list[object] = []
    link = SimpleNamespace(losses=SimpleNamespace(reported=reported.append))
    said, go = asyncio.Event(), asyncio.Event()

    async def answer(methods: Methods, context: RequestContext, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert context.reply_channel is not None
        context.reply_channel.send({**SAID, "params": {"level": "info", "data": "begun"}})
        said.set()
        await go.wait()
        for _ in range(40 if how == "cut off" else 1):
            context.reply_channel.send(SAID)
        context.reporting = cast("Any", (link, "the loss"))
        return {"content": []}

    async with gateway(tmp_path, {}) as program, RawClient(program.url) as client:
        await client.initialize()
        assert program.gateway is not None
        front = program.front
        assert front is not None
        monkeypatch.setattr(Methods, "answer", answer)
        async with client.stream("POST", CALL) as events:
            first = await events.event()
            await said.wait()
            if how == "taken over":
                async with client.stream(last_event_id=first.id) as other:
                    await until(lambda: len(front.open) == 2)
                    go.set()
                    await other.event()
                    with pytest.raises(EOFError):
                        while True:
                            await events.next()
            else:
                go.set()
                ids = []
                try:
                    while 1 not in ids:
                        ids.append((await events.next()).get("id"))
                except EOFError:
                    assert how == "cut off"
            await until(lambda: not front.open)
        assert reported == (["the loss"] if how == "read" else [])
