"""Defects of the gateway itself in mid-answer: an error in the form of the answer, logged once, nothing disclosed."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.dispatch import Methods
from holdfast.gateway.fronts.http.streams import Stream
from holdfast.gateway.fronts.listens import Subscription
from holdfast.gateway.server import Program
from tests.deadlines import until
from tests.gateway.clients import BOTH, RawClient, messages_in
from tests.gateway.fronts.test_stdio import META_2026, served
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Scripted
from tests.gateway.scripted_calls import call_of, ready

SECRET = "/srv/keys of db-7"
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "begun"}}
HIDDEN = {"code": -32603, "message": "Internal error"}


class Defect:
    """In place of the code that answers calls: it fails, after it sent so many messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
        self.before = before
        usual = Methods.answer

        async def fail(
            methods: Methods, context: RequestContext, method: str, params: dict[str, Any]
        ) -> dict[str, Any]:
            if method != "tools/call":
                return await usual(methods, context, method, params)
            for _ in range(self.before):
                assert context.reply_channel is not None
                context.reply_channel.send(NOTE)
            await asyncio.sleep(0)  # the head of the stream is sent
            raise ZeroDivisionError(SECRET)

        monkeypatch.setattr(Methods, "answer", fail)


@asynccontextmanager
async def served_tool(folder: Path) -> AsyncGenerator[tuple[Program, RawClient]]:
    async with Scripted().serving() as backend, gateway(folder, {"s": backend.entry}) as program:
        async with RawClient(program.url) as client:
            yield program, client


def logged_once(caplog: pytest.LogCaptureFixture) -> bool:
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    return len(errors) == 1 and errors[0].exc_info is not None and SECRET in str(errors[0].exc_info[1])


@pytest.mark.promise("gateway.defects")
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("accept", [BOTH, "text/event-stream", "application/json"])
async def test_a_defect_in_a_call_is_answered_in_the_form_of_its_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    era: str,
    before: int,
    accept: str,
) -> None:
    async with served_tool(tmp_path) as (program, client):
        headers = await ready(program, client, era, accept)
        Defect(monkeypatch, before)
        answer = await client.send(call_of(era), headers=headers)
        streamed = accept == "text/event-stream" or (before and accept == BOTH)
        assert answer.headers["content-type"] == ("text/event-stream" if streamed else "application/json")
        assert answer.status == (200 if streamed else 500)
        assert answer.messages == [*([NOTE] * before if streamed else []), {"jsonrpc": "2.0", "id": 7, "error": HIDDEN}]
        assert SECRET.encode() not in answer.raw
        assert logged_once(caplog)
        ping = client.ask if era == "2025" else client.ask_2026
        assert "tools" in (await ping("tools/list")).result  # the connection serves on


@pytest.mark.promise("gateway.defects")
async def test_a_defect_in_one_call_of_a_batch_fails_that_call_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(tmp_path, {}) as program, RawClient(program.url) as client:
        await client.initialize(version="2025-03-26")
        Defect(monkeypatch, 1)
        answer = await client.send([call_of("2025"), {"jsonrpc": "2.0", "id": "p", "method": "ping"}])
        answers = {each["id"]: each for each in answer.messages if "id" in each}
        assert answers[7]["error"] == HIDDEN
        assert answers["p"]["result"] == {}
        assert NOTE in answer.messages
        assert logged_once(caplog)


@pytest.mark.promise("gateway.defects")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_defect_behind_the_stdio_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, era: str
) -> None:
    async with served(tmp_path, {}) as client:
        Defect(monkeypatch, 1)
        client.send(7, "tools/call", {"name": "x", **({"_meta": META_2026} if era == "2026" else {})})
        await until(lambda: client.has(7))
        *_, note, answer = client.read()
        assert (note, answer) == (NOTE, {"jsonrpc": "2.0", "id": 7, "error": HIDDEN})
        assert logged_once(caplog)


@pytest.mark.promise("gateway.defects")
async def test_a_defect_in_a_listen_ends_it_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usual = Subscription.messages

    async def fail(subscription: Subscription) -> AsyncGenerator[dict[str, Any]]:
        messages = usual(subscription)
        try:
            yield await anext(messages)
            raise ZeroDivisionError(SECRET)
        finally:
            await messages.aclose()

    monkeypatch.setattr(Subscription, "messages", fail)
    async with gateway(tmp_path, {}) as program, RawClient(program.url) as client:
        answer = await client.ask_2026("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        assert answer.messages[0]["method"] == "notifications/subscriptions/acknowledged"
        assert answer.error == HIDDEN
        assert len(answer.messages) == 2
        assert logged_once(caplog)
        assert program.gateway is not None
        assert len(program.gateway.listeners) == 0


@pytest.mark.promise("gateway.defects")
async def test_a_defect_in_what_is_no_answer_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's own stream answers nothing, so nothing on it can be an error."""

    async def fail(stream: Stream, number: int) -> AsyncGenerator[bytes]:
        yield b"data: %s\n\n" % json.dumps(NOTE).encode()
        raise ZeroDivisionError(SECRET)

    async with gateway(tmp_path, {}) as program, RawClient(program.url) as client:
        await client.initialize()
        monkeypatch.setattr(Stream, "after", fail)
        async with client.stream() as events:
            came = b""
            with pytest.raises(Exception, match=r"payload|TransferEncoding|disconnected"):
                while part := await events.response.content.readany():
                    came += part
        assert messages_in(came, "text/event-stream") in ([NOTE], [])
        assert logged_once(caplog)
