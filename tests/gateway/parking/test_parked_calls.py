"""What a 2025 server asks a 2026 client in mid-call: the call waits, and the client's retry brings the answers."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import ElicitResult

from tests.deadlines import patience, until
from tests.gateway.clients import Answer, RawClient
from tests.gateway.gateways import gateway
from tests.gateway.parking.asking_backend import AskingBackend, asking_backend
from tests.links.server_process import RealServer

EVERYTHING = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which row?",
        "requestedSchema": {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]},
    },
}
URL = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "e1"},
}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "2+2?"}}],
        "maxTokens": 5,
        "tools": [{"name": "sum", "inputSchema": {"type": "object"}}],
        "toolChoice": {"mode": "auto"},
    },
}
ROOTS = {"method": "roots/list"}
ROW_7 = {"action": "accept", "content": {"row": 7}}


async def call(client: RawClient, tool: str, capabilities: dict[str, Any] = EVERYTHING, **arguments: Any) -> Answer:
    return await ask(client, {"name": tool, "arguments": arguments}, capabilities)


async def ask(
    client: RawClient, params: dict[str, Any], capabilities: dict[str, Any] = EVERYTHING, method: str = "tools/call"
) -> Answer:
    meta = {**params.get("_meta", {}), "io.modelcontextprotocol/clientCapabilities": capabilities}
    async with asyncio.timeout(patience(30)):
        return await client.ask_2026(method, {**params, "_meta": meta})


async def again(
    client: RawClient, params: dict[str, Any], asked: Answer, *answers: Any, method: str = "tools/call"
) -> Answer:
    """The retry of a call, with an answer to each of its questions in order."""
    responses = dict(zip(asked.result["inputRequests"], answers, strict=True))
    retry = {**params, "inputResponses": responses, "requestState": asked.result["requestState"]}
    return await ask(client, retry, method=method)


def questions(answer: Answer) -> list[Any]:
    assert answer.result["resultType"] == "input_required", answer.raw
    return list(answer.result["inputRequests"].values())


def rounds(*asked: list[Any], **more: Any) -> dict[str, Any]:
    return {"name": "asks__ask", "arguments": {"rounds": list(asked), **more}}


def is_invalid_state(answer: Answer) -> bool:
    return answer.status == 400 and answer.error == {
        "code": -32602,
        "message": "Invalid or expired requestState",
        "data": {"reason": "invalid_request_state"},
    }


@pytest.mark.promise("gateway.questions")
async def test_a_2026_client_answers_a_2025_servers_question_by_its_retry(tmp_path: Path) -> None:
    async with RealServer("fastmcp") as server:
        servers = {"real": {"url": server.url, "era": "2025"}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            params: dict[str, Any] = {"name": "real__book", "arguments": {}}
            asked = await ask(client, params)
            [question] = questions(asked)
            assert question["method"] == "elicitation/create"
            assert question["params"]["message"] == "Which row?"
            booked = await again(client, params, asked, ROW_7)
            assert booked.text == "row 7 is yours"
            assert booked.result["resultType"] == "complete"
            assert program.gateway is not None
            assert (len(program.gateway.parked), program.gateway.parked.places_taken) == (0, 0)


@pytest.mark.promise("gateway.questions")
async def test_the_sdks_2026_client_answers_by_its_callback(tmp_path: Path) -> None:
    async def seat(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"row": 7})

    async with RealServer("fastmcp") as server:
        servers = {"real": {"url": server.url, "era": "2025"}}
        async with gateway(tmp_path, servers) as program:
            async with Client(program.url, mode="2026-07-28", elicitation_callback=seat) as client:
                assert (await client.call_tool("real__book")).content[0].text == "row 7 is yours"


@pytest.mark.promise("gateway.questions")
@pytest.mark.parametrize("named", [False, True], ids=["alone", "handle"])
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
async def test_a_question_on_the_servers_own_stream_parks_the_call_too(tmp_path: Path, kind: Any, named: bool) -> None:
    async with RealServer(kind) as server:
        servers = {"real": {"url": server.url, "era": "2025"}}
        async with gateway(tmp_path, servers, sessions={"handles": True}) as program, RawClient(program.url) as client:
            arguments: dict[str, Any] = {}
            if named:
                opened = await call(client, "holdfast__open_session")
                arguments["holdfast_session"] = opened.result["structuredContent"]["holdfast_session"]
            params = {"name": "real__roots", "arguments": arguments}
            asked = await ask(client, params)
            assert [question["method"] for question in questions(asked)] == ["roots/list"]
            answered = await again(client, params, asked, {"roots": [{"uri": "file:///a", "name": "a"}]})
            assert "file:///a" in answered.text


@pytest.mark.promise("gateway.questions")
async def test_a_program_that_asks_is_answered(tmp_path: Path) -> None:
    program_file = Path(__file__).parents[1] / "asking_server.py"
    servers = {"asks": {"command": sys.executable, "args": [str(program_file)], "era": "2025"}}
    async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
        await until(lambda: program.gateway is not None and program.gateway.table.tools, 60)
        params: dict[str, Any] = {"name": "asks__ask", "arguments": {}}
        asked = await ask(client, params)
        answered = await again(client, params, asked, {"action": "accept", "content": {"a": "Ada"}})
        assert "Ada" in answered.text


@pytest.mark.promise("gateway.questions")
async def test_questions_of_every_kind_pass_as_they_came_and_those_at_once_together(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            params = rounds([FORM, SAMPLE], [URL], [ROOTS])
            asked = await ask(client, params)
            assert questions(asked) == [FORM, SAMPLE]
            sampled = {"role": "assistant", "model": "m", "content": [{"type": "tool_use", "id": "1", "name": "sum"}]}
            more = await again(client, params, asked, ROW_7, sampled)
            assert questions(more) == [URL]
            assert more.result["requestState"] != asked.result["requestState"]
            last = await again(client, params, more, {"action": "accept"})
            assert questions(last) == [{"method": "roots/list", "params": {}}]
            done = await again(client, params, last, {"roots": []})
            assert json.loads(done.text) == [ROW_7, sampled, {"action": "accept"}, {"roots": []}]
            assert backend.calls == 1
            assert EVERYTHING in [each["capabilities"] for each in backend.handshakes]


@pytest.mark.promise("gateway.questions")
@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", {"name": "asks__ask"}), ("resources/read", {"uri": "ask://one"})],
)
async def test_prompts_and_resources_are_parked_too(tmp_path: Path, method: str, params: dict[str, Any]) -> None:
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            asked = await ask(client, params, method=method)
            assert [question["method"] for question in questions(asked)] == ["roots/list"]
            done = await again(client, params, asked, {"roots": []}, method=method)
            assert done.result["resultType"] == "complete"
            assert '{"roots": []}' in json.dumps(done.result).replace("\\", "")


@pytest.mark.promise("gateway.questions")
async def test_a_question_that_the_retry_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            params = rounds([FORM, ROOTS])
            asked = await ask(client, params)
            first, second = asked.result["inputRequests"]
            retry = {**params, "inputResponses": {first: ROW_7, "other": 1}}
            more = await ask(client, {**retry, "requestState": asked.result["requestState"]})
            assert list(more.result["inputRequests"]) == [second]
            done = await again(client, params, more, {"roots": []})
            assert json.loads(done.text) == [ROW_7, {"roots": []}]


@pytest.mark.promise("gateway.questions")
async def test_progress_goes_to_the_request_that_waits(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            params = rounds([FORM])
            asked = await ask(client, {**params, "_meta": {"progressToken": "first"}})
            done = await again(client, {**params, "_meta": {"progressToken": "second"}}, asked, ROW_7)
            assert [message["params"]["progressToken"] for message in done.messages[:-1]] == ["second"]


@pytest.mark.promise("gateway.questions")
@pytest.mark.parametrize(
    ("question", "capabilities", "needed"),
    [
        (FORM, {"roots": {}}, {"elicitation": {"form": {}}}),
        (URL, {"elicitation": {}}, {"elicitation": {"url": {}}}),
        (SAMPLE, {"sampling": {}}, {"sampling": {"tools": {}}}),
        (ROOTS, {}, {"roots": {}}),
    ],
    ids=["form", "url", "tools", "none-at-all"],
)
async def test_a_capability_that_the_client_lacks_is_named(
    tmp_path: Path, question: Any, capabilities: dict[str, Any], needed: dict[str, Any]
) -> None:
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            refused = await ask(client, rounds([question]), capabilities)
            assert (refused.status, refused.error["code"]) == (400, -32021)
            assert refused.error["data"] == {"requiredCapabilities": needed}
            copes = await ask(client, rounds([question], copes=True), capabilities)
            assert "isError" not in copes.result
            assert program.gateway is not None
            assert program.gateway.parked.places_taken == 0


async def _let_go(backend: AskingBackend, program: Any) -> None:
    """The call was cancelled at its server, and nothing is left of it."""
    assert program.gateway is not None
    parked = program.gateway.parked
    await until(lambda: not backend.running and not parked.places_taken and not len(parked), 10)
    await until(lambda: backend.ended_sessions >= 1, 10)


@pytest.mark.promise("gateway.questions")
async def test_an_abandoned_call_is_cancelled_and_everything_freed_within_its_lifetime(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        servers = {"asks": {"url": backend.url}}
        async with gateway(tmp_path, servers, sessions={"park": 0.5}) as program, RawClient(program.url) as client:
            params = rounds([FORM])
            asked = await ask(client, params)
            assert backend.running == 1
            await _let_go(backend, program)
            assert backend.cancelled
            assert is_invalid_state(await again(client, params, asked, ROW_7))
            assert backend.calls == 1


@pytest.mark.promise("gateway.questions")
async def test_a_state_is_used_once_unchanged_and_for_its_own_request(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        servers = {"asks": {"url": backend.url}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            params = rounds([FORM])
            asked = await ask(client, params)
            state = asked.result["requestState"]
            for wrong in (state[:-1], state + "x", state[4:], "hfp_", "", state.upper()):
                assert is_invalid_state(await ask(client, {**params, "requestState": wrong})), wrong
            for other in (rounds([ROOTS]), {**params, "extra": 1}):
                assert is_invalid_state(await again(client, other, asked, ROW_7))
            malformed = await ask(client, {**params, "requestState": state, "inputResponses": []})
            assert (malformed.status, malformed.error["code"]) == (400, -32602)
            retries = await asyncio.gather(*(again(client, params, asked, ROW_7) for _ in range(5)))
            assert sorted(is_invalid_state(each) for each in retries) == [False, True, True, True, True]
            [done] = [each for each in retries if not is_invalid_state(each)]
            assert json.loads(done.text) == [ROW_7]
            assert is_invalid_state(await again(client, params, asked, ROW_7))
            assert backend.calls == 1


@pytest.mark.promise("gateway.questions")
async def test_answers_without_a_state_begin_a_new_call(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            done = await ask(client, {**rounds(), "inputResponses": {"question-1": ROW_7}})
            assert done.text == "[]"


def _tokens() -> tuple[dict[str, Any], list[str]]:
    from hashlib import sha256

    tokens = ["a" * 40, "b" * 40]
    hashes = [f"sha256:{sha256(token.encode()).hexdigest()}" for token in tokens]
    return {"tokens": [{"hash": each, "principal": f"caller-{n}"} for n, each in enumerate(hashes)]}, tokens


@pytest.mark.promise("gateway.questions")
@pytest.mark.parametrize("reuse", ["session", "principal"])
async def test_another_callers_state_is_like_an_unknown_one(tmp_path: Path, reuse: str) -> None:
    auth, [ours, theirs] = _tokens()
    async with asking_backend() as backend:
        servers = {"asks": {"url": backend.url, "reuse": reuse}}
        async with (
            gateway(tmp_path, servers, auth=auth) as program,
            RawClient(program.url, ours) as client,
            RawClient(program.url, theirs) as other,
        ):
            params = rounds([FORM])
            asked = await ask(client, params)
            stolen = await again(other, params, asked, {"action": "cancel"})
            unknown = await ask(other, {**params, "requestState": asked.result["requestState"][:-1] + "_"})
            assert is_invalid_state(stolen)
            assert (stolen.status, stolen.error) == (unknown.status, unknown.error)
            assert json.loads((await again(client, params, asked, ROW_7)).text) == [ROW_7]


@pytest.mark.promise("gateway.questions")
@pytest.mark.parametrize("ended", [True, False], ids=["restarted", "at-another-process"])
async def test_a_retry_at_another_process_is_answered_at_once_as_of_unknown_outcome(
    tmp_path: Path, ended: bool
) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    async with asking_backend() as backend:
        servers = {"asks": {"url": backend.url}}
        params = rounds([FORM])
        prompt = {"name": "asks__ask"}

        async def lost_at(url: str, asked: Answer, asked_prompt: Answer) -> None:
            async with RawClient(url) as client:
                lost = await again(client, params, asked, ROW_7)
                told = lost.result["_meta"]["dev.holdfast/error"]
                assert lost.result["isError"]
                assert (told["family"], told["kind"]) == ("OutcomeUnknown", "ParkedElsewhere")
                assert "gateway process that has ended" in lost.text
                assert "may have been executed" in lost.text
                lost = await again(client, prompt, asked_prompt, {"roots": []}, method="prompts/get")
                assert lost.error["data"]["family"] == "OutcomeUnknown"
                assert is_invalid_state(await again(client, rounds([ROOTS]), asked, ROW_7))
                assert backend.calls == 2

        settings = {"drain": 100}
        async with (
            gateway(folders[0], servers, store=store, sessions=settings) as program,
            RawClient(program.url) as client,
        ):
            asked = await ask(client, params)
            asked_prompt = await ask(client, prompt, method="prompts/get")
            if not ended:
                async with gateway(folders[1], servers, store=store) as another:
                    await lost_at(another.url, asked, asked_prompt)
                assert json.loads((await again(client, params, asked, ROW_7)).text) == [ROW_7]
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < patience(9)  # no call that waits for a client delays the end
        await until(lambda: not backend.running)
        if ended:
            async with gateway(folders[1], servers, store=store) as another:
                await lost_at(another.url, asked, asked_prompt)


@pytest.mark.promise("gateway.questions")
async def test_calls_that_wait_are_bounded_in_number_and_bytes(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        servers = {"asks": {"url": backend.url}}
        limits = {"parked_per_principal": 2, "parked_bytes": 20_000}
        async with gateway(tmp_path, servers, sessions=limits) as program, RawClient(program.url) as client:
            params = rounds([FORM])
            asked = [await ask(client, params) for _ in range(2)]
            refused = await ask(client, params)
            assert refused.result["_meta"]["dev.holdfast/error"]["kind"] == "LimitReached"
            assert program.gateway is not None
            for each in asked:
                assert json.loads((await again(client, params, each, ROW_7)).text) == [ROW_7]
            large = {**ROOTS, "params": {"_meta": {"text": 30_000 * "x"}}}
            refused = await ask(client, rounds([large]))
            assert refused.result["_meta"]["dev.holdfast/error"]["kind"] == "LimitReached"
            assert questions(await ask(client, params)) == [FORM]
            assert program.gateway.parked.places_taken == 1


@pytest.mark.promise("gateway.questions")
async def test_a_question_that_the_server_takes_back_needs_no_answer(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            done = await ask(client, rounds([FORM], take_back=True))
            assert done.text == "[]"


@pytest.mark.promise("gateway.questions")
async def test_a_client_that_hangs_up_on_its_retry_cancels_the_call(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            params = rounds([FORM], lasts=True)
            asked = await ask(client, params)
            retry = asyncio.create_task(again(client, params, asked, ROW_7))
            await until(lambda: program.gateway is not None and not len(program.gateway.parked))
            retry.cancel()
            await asyncio.wait((retry,))
            await _let_go(backend, program)


@pytest.mark.promise("gateway.questions")
async def test_the_end_of_a_session_ends_its_parked_calls_at_once(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        servers = {"asks": {"url": backend.url}}
        settings = {"handles": True, "drain": 100}
        async with gateway(tmp_path, servers, sessions=settings) as program, RawClient(program.url) as client:
            opened = await call(client, "holdfast__open_session")
            handle = opened.result["structuredContent"]["holdfast_session"]
            params = rounds([FORM], holdfast_session=handle)
            asked = await ask(client, params)
            began = asyncio.get_running_loop().time()
            assert not (await call(client, "holdfast__end_session", holdfast_session=handle)).result.get("isError")
            assert asyncio.get_running_loop().time() - began < patience(9)  # sessions.drain is for calls that go on
            await until(lambda: not backend.running)
            lost = await again(client, params, asked, ROW_7)
            assert lost.result["_meta"]["dev.holdfast/error"]["family"] == "OutcomeUnknown"
            assert program.gateway is not None
            assert program.gateway.parked.places_taken == 0


@pytest.mark.promise("gateway.questions")
async def test_urls_that_a_2025_error_wants_visited_are_asked_before_a_new_call(tmp_path: Path) -> None:
    error = {"code": -32042, "message": "Sign in first", "data": {"elicitations": [URL["params"]]}}
    async with asking_backend() as backend:
        async with gateway(tmp_path, {"asks": {"url": backend.url}}) as program, RawClient(program.url) as client:
            params = rounds(error=error)
            refused = await ask(client, params, {"elicitation": {}})
            assert (refused.status, refused.error["code"]) == (400, -32021)
            backend.calls = 0
            asked = await ask(client, params)
            assert questions(asked) == [URL]
            assert "requestState" not in asked.result
            [key] = asked.result["inputRequests"]
            done = await ask(client, {**params, "inputResponses": {key: {"action": "accept"}}})
            assert (done.text, backend.calls) == ("[]", 2)


@pytest.mark.promise("gateway.questions")
async def test_a_result_that_comes_before_the_answer_waits_for_the_client(tmp_path: Path) -> None:
    async with asking_backend() as backend:
        servers = {"asks": {"url": backend.url}}
        async with gateway(tmp_path, servers, sessions={"parked_bytes": 100_000}) as program:
            async with RawClient(program.url) as client:
                assert program.gateway is not None
                small, large = rounds([FORM]), rounds([FORM], padding=120_000)
                for params in (small, large):
                    asked = await ask(client, params)
                    backend.stop_waiting()
                    await until(lambda: not backend.running)
                    answer = await again(client, params, asked, ROW_7)
                    if params is small:
                        assert json.loads(answer.text) == [{"action": "cancel"}]
                    else:
                        assert answer.result["_meta"]["dev.holdfast/error"]["family"] == "OutcomeUnknown"
                    assert program.gateway.parked.places_taken == 0
