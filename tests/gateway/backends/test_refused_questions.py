"""A question that can't be passed on is told to the call that it came with, beside what the server itself said."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.auth import new_token
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway

ASKS = """
import json, pathlib, sys
waiting = []
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def asks(id):
    say(id=f"q-{id}", method="elicitation/create", params={"message": "?", "requestedSchema": {"type": "object"}})
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        info = {"name": "asks", "version": "1"}
        say(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "notifications/initialized":
        say(id="roots", method="roots/list")  # as many servers do
    elif method == "tools/list":
        say(id=id, result={"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        given = message["params"]["arguments"]
        if given.get("holds"):
            waiting.append(id)
            pathlib.Path(sys.argv[1]).touch()
        elif given.get("asks"):
            waiting.append(id)
            asks(id)
        elif given.get("ends"):
            asks(id)
            say(id=waiting.pop(), result={"content": [], "isError": True})
            say(id=id, result={"content": [], "isError": True})
        else:
            say(id=id, error={"code": -32602, "message": "row 7 does not exist", "data": {"row": 7}})
    elif str(id).startswith("q-") and waiting:
        say(id=waiting.pop(), error={"code": -32603, "message": "could not ask"})
    elif id is not None and method is not None:
        say(id=id, result={})
"""
OWN = {"code": -32602, "message": "row 7 does not exist", "data": {"row": 7}}


def asking(folder: Path, **policy: Any) -> dict[str, Any]:
    file = folder / "asks.py"
    file.write_text(ASKS)
    return {"asks": {"command": sys.executable, "args": [str(file), str(folder / "holds")], "era": "2025", **policy}}


@pytest.mark.promise("gateway.questions")
async def test_a_servers_own_error_is_not_replaced_by_a_question_from_before_the_call(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, asking(tmp_path), sessions={"handles": True}) as program,
        RawClient(program.url) as client,
    ):
        await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
        opened = (await client.ask_2026("tools/call", {"name": "holdfast__open_session"})).result
        handle = opened["structuredContent"]["holdfast_session"]
        first = (await client.call_2026("asks__t", holdfast_session=handle)).last
        if "error" not in first:  # the question came while it was under way
            first = {"error": first["result"]["_meta"]["dev.holdfast/error"]["answer"]}
        elif first["error"]["code"] == -32021:
            first = {"error": first["error"]["data"]["answer"]}
        assert first["error"] == OWN
        assert (await client.call_2026("asks__t", holdfast_session=handle)).error == OWN


@pytest.mark.promise("gateway.questions")
async def test_a_refused_question_is_added_to_the_servers_error_and_kept_from_other_calls(tmp_path: Path) -> None:
    async with gateway(tmp_path, asking(tmp_path, reuse="shared")) as program:
        async with RawClient(program.url) as one, RawClient(program.url) as two:
            await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
            failed = (await one.call_2026("asks__t", asks=True)).error
            assert failed["code"] == -32021
            answer = {"code": -32603, "message": "could not ask"}
            assert failed["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}, "answer": answer}
            assert (await two.call_2026("asks__t")).error == OWN


@pytest.mark.promise("gateway.questions")
async def test_a_question_on_a_pipe_with_several_calls_is_told_to_none_of_them(tmp_path: Path) -> None:
    async with gateway(tmp_path, asking(tmp_path, reuse="shared")) as program:
        async with RawClient(program.url) as one, RawClient(program.url) as two:
            await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
            holding = asyncio.create_task(one.call_2026("asks__t", holds=True))
            await until((tmp_path / "holds").exists, 20)
            ended = await two.call_2026("asks__t", ends=True)
            for answer in (ended, await holding):
                assert answer.result["isError"]
                assert "_meta" not in answer.result or "dev.holdfast/error" not in answer.result["_meta"]


@pytest.mark.promise("gateway.questions")
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("reuse", ["shared", "principal"])
async def test_what_a_server_asks_on_a_link_without_capabilities_is_refused_clearly(
    tmp_path: Path, reuse: str, era: str
) -> None:
    """Such a link declares no capabilities, so a server that asks all the same has no client that could be meant."""
    token, digest = new_token()
    auth = {"tokens": [{"hash": digest, "principal": "alice"}]}
    async with gateway(tmp_path, asking(tmp_path, reuse=reuse), auth=auth) as program:
        async with RawClient(program.url, token) as client:
            await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
            if era == "2025":
                await client.initialize({})
                failed = await client.call("asks__t", asks=True)
            else:
                failed = await client.call_2026("asks__t", asks=True)
            if era == "2026":
                assert failed.error["code"] == -32021
                assert failed.error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}
            else:
                assert failed.result["isError"]
                refused = failed.result["_meta"]["dev.holdfast/error"]
                assert (refused["family"], refused["kind"]) == ("Rejected", "QuestionRefused")
                assert refused["answer"] == {"code": -32603, "message": "could not ask"}
                assert "a question that can't be passed on" in failed.result["content"][-1]["text"]
            own = await (client.call("asks__t") if era == "2025" else client.call_2026("asks__t"))
            assert own.error == OWN
