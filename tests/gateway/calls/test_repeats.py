"""A 2026 server that asks inside its result: its 2025 client gets real requests, as often as the cap allows."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.calls.repeats import ROUNDS
from holdfast.gateway.server import Program
from tests.deadlines import until
from tests.gateway.clients import Events, RawClient
from tests.gateway.gateways import gateway
from tests.gateway.parking.test_parked_calls import EVERYTHING, FORM, ROOTS, ROW_7, SAMPLE, URL
from tests.gateway.scripted_backend import Scripted
from tests.gateway.scripted_calls import call_of


def asking(*rounds: dict[str, Any]) -> Scripted:
    """A server whose tool asks the questions of each round at once, and returns all answers."""
    answers: list[Any] = []

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        turn = int(params.get("requestState", 0))
        answers.extend(params.get("inputResponses", {}).values())
        if turn < len(rounds):
            return {"resultType": "input_required", "inputRequests": rounds[turn], "requestState": str(turn + 1)}
        return {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(answers)}]}

    return Scripted("2026", tools__call=answer)


@asynccontextmanager
async def called(
    folder: Path, backend: Scripted, capabilities: dict[str, Any] = EVERYTHING, **meta: Any
) -> AsyncGenerator[tuple[Program, RawClient, Events]]:
    async with backend.serving():
        async with gateway(folder, {"s": backend.entry}) as program, RawClient(program.url) as client:
            await client.initialize(capabilities)
            await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
            body = call_of("2025", **({"_meta": meta} if meta else {}))
            async with client.stream("POST", body, accept="text/event-stream") as events:
                yield program, client, events


async def answered(client: RawClient, events: Events, question: dict[str, Any], answer: Any) -> None:
    asked = await events.next(20)
    assert {key: asked[key] for key in question} == question
    assert (await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": answer})).status == 202


@pytest.mark.promise("gateway.input-rounds")
async def test_questions_of_every_kind_become_requests_and_answers_go_back(tmp_path: Path) -> None:
    sampled = {"role": "assistant", "model": "m", "content": [{"type": "tool_use", "id": "1", "name": "sum"}]}
    visited = {"action": "accept"}
    backend = asking({"a": FORM, "b": SAMPLE}, {"c": URL}, {"d": ROOTS})
    backend.before = [{"method": "notifications/progress", "params": {"progressToken": "@TOKEN@", "progress": 1}}]
    async with called(tmp_path, backend, progressToken="p") as (_, client, events):
        for asked in ([(FORM, ROW_7), (SAMPLE, sampled)], [(URL, visited)], [(ROOTS, {"roots": []})], []):
            said = await events.next(20)  # of each round
            assert (said["method"], said["params"]["progressToken"]) == ("notifications/progress", "p")
            for question, answer in asked:
                await answered(client, events, question, answer)
        done = (await events.next(20))["result"]
        assert "resultType" not in done
        assert json.loads(done["content"][0]["text"]) == [ROW_7, sampled, visited, {"roots": []}]
        assert backend.count("tools/call") == 4


@pytest.mark.promise("gateway.input-rounds")
async def test_a_server_that_never_has_enough_is_cut_off(tmp_path: Path) -> None:
    backend = asking(*({"a": ROOTS} for _ in range(ROUNDS + 5)))
    async with called(tmp_path, backend) as (_, client, events):
        for _ in range(ROUNDS):
            await answered(client, events, ROOTS, {"roots": []})
        result = (await events.next(20))["result"]
        assert result["isError"]
        assert result["_meta"]["dev.holdfast/error"]["kind"] == "LimitReached"
        assert backend.count("tools/call") == ROUNDS + 1


@pytest.mark.promise("gateway.input-rounds")
@pytest.mark.parametrize(
    ("question", "capabilities"),
    [
        (FORM, {"roots": {}}),
        (FORM, {"elicitation": {"url": {}}}),
        (URL, {"elicitation": {}}),
        (SAMPLE, {"sampling": {}}),
        ({"method": "no/question"}, EVERYTHING),
    ],
    ids=["none", "url-only", "form-only", "no-tools", "unknown"],
)
async def test_a_question_that_the_client_has_not_declared_is_refused_clearly(
    tmp_path: Path, question: dict[str, Any], capabilities: dict[str, Any]
) -> None:
    backend = asking({"a": question})
    async with called(tmp_path, backend, capabilities) as (_, _client, events):
        result = (await events.next(20))["result"]
        assert result["isError"]
        assert result["_meta"]["dev.holdfast/error"]["kind"] == "QuestionRefused"
        assert backend.count("tools/call") == 1


@pytest.mark.promise("gateway.input-rounds")
async def test_a_state_without_questions_is_a_new_try(tmp_path: Path) -> None:
    backend = asking({}, {})
    async with called(tmp_path, backend) as (_, _client, events):
        assert (await events.next(20))["result"]["content"][0]["text"] == "[]"
        assert backend.count("tools/call") == 3


@pytest.mark.promise("gateway.input-rounds")
async def test_a_clients_refusal_is_the_end_of_the_call(tmp_path: Path) -> None:
    backend = asking({"a": SAMPLE})
    async with called(tmp_path, backend) as (program, client, events):
        asked = await events.next(20)
        error = {"code": -1, "message": "User rejected sampling request"}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "error": error})
        assert (await events.next(20))["error"] == error
        assert program.gateway is not None
        [session] = program.gateway.sessions.live.values()
        assert (len(session.questions), len(session.calls)) == (0, 0)


@pytest.mark.promise("gateway.input-rounds")
async def test_level_and_ping_are_answered_without_the_server(tmp_path: Path) -> None:
    async with Scripted("2026").serving() as backend:
        async with gateway(tmp_path, {"s": backend.entry}, health={"every": 600}) as program:
            async with RawClient(program.url) as client:
                await client.initialize()
                await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
                before = len(backend.requests)
                assert (await client.ask("ping")).result == {}
                assert (await client.ask("logging/setLevel", {"level": "warning"})).result == {}
                assert len(backend.requests) == before
                await client.call("s__t")
                [params] = backend.params_of("tools/call")
                assert params["_meta"]["io.modelcontextprotocol/logLevel"] == "warning"


@pytest.mark.promise("gateway.input-rounds")
async def test_a_question_that_a_restart_cuts_off_is_said_to_have_an_unknown_outcome(tmp_path: Path) -> None:
    backend = asking({"a": FORM})
    store = f"sqlite:///{tmp_path}/s.db"
    async with backend.serving():
        settings = {"drain": 0.2}
        async with RawClient("") as client:
            async with gateway(tmp_path, {"s": backend.entry}, store=store, sessions=settings) as program:
                client.url = program.url
                await client.initialize(EVERYTHING)
                await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
                stream = client.stream("POST", call_of("2025"))
                events = await stream.__aenter__()
                asked = await events.next(20)
                ending = asyncio.ensure_future(events.next(30))
            taken_back = await ending
            assert taken_back["method"] == "notifications/cancelled"
            assert taken_back["params"]["requestId"] == asked["id"]
            result = (await events.next(30))["result"]
            assert result["isError"]
            assert result["_meta"]["dev.holdfast/error"]["family"] == "OutcomeUnknown"
            await stream.__aexit__(None, None, None)
            async with gateway(tmp_path, {"s": backend.entry}, store=store, sessions=settings) as program:
                client.url = program.url
                late = await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": ROW_7})
                assert late.status == 202
                assert (await client.ask("ping")).result == {}


@pytest.mark.promise("gateway.input-rounds")
async def test_a_2026_servers_own_state_passes_through_a_restart(tmp_path: Path) -> None:
    backend = asking({"a": FORM})
    store = f"sqlite:///{tmp_path}/s.db"
    meta = {"io.modelcontextprotocol/clientCapabilities": EVERYTHING}
    params: dict[str, Any] = {"name": "s__t", "arguments": {}, "_meta": meta}
    async with backend.serving():
        asked: dict[str, Any] = {}
        for turn in range(2):
            async with gateway(tmp_path, {"s": backend.entry}, store=store) as program:
                async with RawClient(program.url) as client:
                    await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
                    if turn == 0:
                        asked = (await client.ask_2026("tools/call", params)).result
                        assert (asked["resultType"], asked["inputRequests"]) == ("input_required", {"a": FORM})
                    else:
                        more = {"inputResponses": {"a": ROW_7}, "requestState": asked["requestState"]}
                        done = await client.ask_2026("tools/call", {**params, **more})
                        assert json.loads(done.text) == [ROW_7]


@pytest.mark.promise("gateway.input-rounds")
async def test_a_question_that_nobody_answers_frees_everything_in_its_time(tmp_path: Path) -> None:
    backend = asking({"a": FORM})
    async with backend.serving():
        settings = {"ask": 0.3}
        async with gateway(tmp_path, {"s": backend.entry}, sessions=settings) as program:
            async with RawClient(program.url) as client:
                await client.initialize(EVERYTHING)
                await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
                assert program.gateway is not None
                [session] = program.gateway.sessions.live.values()
                async with client.stream("POST", call_of("2025")) as events:
                    assert (await events.next(20))["method"] == "elicitation/create"
                    late = await events.next(20)
                    assert "did not answer in time" in late["error"]["message"]
                async with client.stream("POST", call_of("2025", 8)) as events:  # and one that hangs up
                    assert (await events.next(20))["method"] == "elicitation/create"
                await until(lambda: not len(session.questions) and not session.calls)
                assert backend.count("tools/call") == 2
