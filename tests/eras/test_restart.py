"""The table through a restart of the gateway: between a session's handshake and the rest, and between a question and
its answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests import no_tasks
from tests.deadlines import patience, until
from tests.eras.cells import ERAS, Cell, Era, Feature, cases
from tests.eras.features import calls, questions, resources, streams
from tests.eras.restarted import RestartedGateway, RestartedWalk
from tests.eras.server import EraServer, ServerCall
from tests.eras.walk import Walk

OF_SESSIONS = (calls.SUBJECT, questions.SUBJECT, resources.SUBJECT, streams.SUBJECT)
ASKING: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "any", "arguments": {}},
    "prompts/get": {"name": "ask", "arguments": {"a": "1"}},
    "resources/read": {"uri": "mem://listed"},
}
RESULTS: dict[str, dict[str, Any]] = {
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
    "prompts/get": {"messages": []},
    "resources/read": {"contents": []},
}


@pytest.fixture(scope="module")
async def gateways(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[Era, RestartedGateway]]:
    before = no_tasks._tasks()
    async with AsyncExitStack() as stack:
        found: dict[Era, RestartedGateway] = {}
        for era in ERAS:
            server = await stack.enter_async_context(EraServer(era).serving())
            restarted = RestartedGateway(server, tmp_path_factory.mktemp(era))
            found[era] = await stack.enter_async_context(restarted.running())
        yield found
    await until(lambda: not no_tasks._tasks() - before)


def _cases(client: Era, server: Era | None, *subjects: str) -> list[object]:
    found: list[object] = []
    for feature, cell in cases("gateway"):
        of_cell = cell.client == client and server in (None, cell.server)
        if of_cell and feature.subject in subjects:
            found.append(pytest.param(feature, cell, id=f"{cell.name}-{feature.id}"))
    return found


async def _walk(feature: Feature, cell: Cell, restarted: RestartedGateway, **when: bool) -> RestartedWalk:
    restarted.server.reset()
    async with AsyncExitStack() as stack:
        walk = RestartedWalk(cell, restarted, stack, **when)
        async with asyncio.timeout(patience(5)):
            await feature.walk(walk)
    return walk


@pytest.mark.promise("gateway.whole-protocol")
@pytest.mark.parametrize(("feature", "cell"), _cases("2025", None, *OF_SESSIONS))
async def test_a_feature_of_a_session_holds_after_a_restart(
    feature: Feature, cell: Cell, gateways: dict[Era, RestartedGateway]
) -> None:
    walk = await _walk(feature, cell, gateways[cell.server], after_handshake=True)
    assert walk.restarts == 1


@pytest.mark.promise("gateway.whole-protocol")
@pytest.mark.parametrize(("feature", "cell"), _cases("2026", "2026", questions.SUBJECT))
async def test_a_question_of_a_2026_server_is_answered_after_a_restart(
    feature: Feature, cell: Cell, gateways: dict[Era, RestartedGateway]
) -> None:
    await _walk(feature, cell, gateways["2026"], before_answers=True)


def _asking(server: EraServer) -> None:
    for method, result in RESULTS.items():

        async def ask(call: ServerCall, result: dict[str, Any] = result) -> dict[str, Any]:
            await call.questions({"one": ("roots/list", None)})
            return result

        server.on[method] = ask


def _params(walk: Walk, method: str) -> dict[str, Any]:
    params = ASKING[method]
    return {**params, "name": walk.name(params["name"])} if "name" in params else params


@pytest.mark.promise("gateway.whole-protocol")
@pytest.mark.parametrize("method", ASKING)
async def test_the_call_of_a_2026_client_that_waited_says_that_its_outcome_is_unknown(
    method: str, gateways: dict[Era, RestartedGateway]
) -> None:
    restarted = gateways["2025"]
    restarted.server.reset()
    _asking(restarted.server)
    async with AsyncExitStack() as stack, asyncio.timeout(patience(10)):
        walk = RestartedWalk(Cell("gateway", "2026", "2025"), restarted, stack)
        client = await walk.client({"roots": {}})
        client.answers["roots/list"] = {"result": {"roots": []}}
        params = _params(walk, method)
        wanted = (await client.request(method, params)).result
        assert wanted["resultType"] == "input_required"
        await walk.restart()
        again = await client.request(method, {**params, **await client.answers_to(wanted)})
        said = again.message.get("error", {}).get("data") or again.result["_meta"]
        assert "ParkedElsewhere" in repr(said), again.message
        assert len(restarted.server.all(method)) == 1
        assert (await client.ask(method, params)).result["resultType"] == "complete"


@pytest.mark.promise("gateway.whole-protocol")
@pytest.mark.parametrize("server_era", ERAS)
@pytest.mark.parametrize("method", ASKING)
async def test_the_call_of_a_2025_client_that_was_asked_ends_and_its_session_goes_on(
    method: str, server_era: Era, gateways: dict[Era, RestartedGateway]
) -> None:
    restarted = gateways[server_era]
    restarted.server.reset()
    _asking(restarted.server)
    async with AsyncExitStack() as stack, asyncio.timeout(patience(10)):
        walk = RestartedWalk(Cell("gateway", "2025", server_era), restarted, stack)
        client = await walk.client({"roots": {}})
        asked, restarted_since = asyncio.Event(), asyncio.Event()

        async def answer(question: dict[str, Any]) -> dict[str, Any]:
            asked.set()
            await restarted_since.wait()
            return {"result": {"roots": []}}

        client.answers["roots/list"] = answer
        params = _params(walk, method)
        running = await client.begin(method, params)
        await asked.wait()
        await walk.restart()
        ended = (await running.reply()).message
        assert "OutcomeUnknown" in repr(ended.get("error") or ended["result"].get("_meta")), ended
        late = {"jsonrpc": "2.0", "id": client.asked[0]["id"], "result": {"roots": []}}
        assert (await client.send("POST", late))[0] == 202
        client.answers["roots/list"] = {"result": {"roots": []}}
        assert (await client.request(method, params)).result.items() >= RESULTS[method].items()


@pytest.mark.promise("gateway.whole-protocol")
@pytest.mark.parametrize("server_era", ERAS)
async def test_a_clients_own_stream_is_resumed_after_a_restart(
    server_era: Era, gateways: dict[Era, RestartedGateway]
) -> None:
    restarted = gateways[server_era]
    restarted.server.reset()
    updated = "notifications/resources/updated"
    async with AsyncExitStack() as stack, asyncio.timeout(patience(10)):
        walk = RestartedWalk(Cell("gateway", "2025", server_era), restarted, stack)
        client = await walk.client()
        async with client.listening(uris=["mem://listed"]):
            await streams.push_until_noticed(walk, client, updated, {"uri": "mem://listed"})
        await walk.restart()
        messages = client.resume(client.event_ids[-1])
        coming = asyncio.ensure_future(anext(messages))
        while not coming.done():
            walk.server.push(updated, {"uri": "mem://listed", "x-unknown": 1})
            await asyncio.wait([coming], timeout=0.02)
        assert (await coming)["params"] == {"uri": "mem://listed", "x-unknown": 1}
        await messages.aclose()
