"""What one era has and the other has not: results, errors, handshakes, questions."""

from typing import Any

import pytest

from holdfast.core.disclosure import rpc_error
from holdfast.core.eras import SERVER_INFO, Era
from holdfast.core.handshake import Handshake
from holdfast.errors import BadAnswer, ErrorAnswer
from holdfast.links.crossing.shapes import (
    TASKS,
    discover_result,
    error_for_2025,
    error_for_2026,
    initialize_result,
    question_for_2025,
    result_for_2025,
    without_tasks,
)


def error(code: int, data: object = None) -> ErrorAnswer:
    made = ErrorAnswer("it failed", message="no", data=data, code=code, server="it")
    made.answer = {"code": code, "message": "no", "vendor": 1} | ({} if data is None else {"data": data})
    return made


@pytest.mark.promise("link.sdk-eras")
@pytest.mark.parametrize("method", ["tools/call", "tools/list", "resources/read", "prompts/get", "prompts/list"])
def test_a_2025_session_sees_no_field_of_2026(method: str) -> None:
    only_2026: dict[str, Any] = {"resultType": "complete", "_meta": {SERVER_INFO: {"name": "s"}, "vendor": 1}}
    if method.endswith(("list", "read")):
        only_2026 |= {"ttlMs": 5, "cacheScope": "public"}
    if not method.endswith("list"):
        only_2026 |= {"requestState": "x", "inputRequests": {}}
    assert result_for_2025(method, {**only_2026, "vendor": 2}, "it") == {"vendor": 2, "_meta": {"vendor": 1}}
    del only_2026["_meta"]["vendor"]
    assert result_for_2025(method, only_2026, "it") == {}


@pytest.mark.promise("link.sdk-eras")
def test_vendor_fields_of_other_results_are_kept() -> None:
    result = {"resultType": "complete", "ttlMs": 3, "requestState": "mine"}
    assert result_for_2025("vendor/thing", result, "it") == {"ttlMs": 3, "requestState": "mine"}


@pytest.mark.promise("link.sdk-eras")
def test_a_task_never_reaches_a_2025_session() -> None:
    with pytest.raises(BadAnswer, match="'task'"):
        result_for_2025("tools/call", {"resultType": "task", "taskId": "t"}, "it")


@pytest.mark.promise("link.sdk-eras")
def test_structured_content_that_is_no_object_is_text_in_2025() -> None:
    told = result_for_2025("tools/call", {"content": [], "structuredContent": [1, 2]}, "it")
    assert told == {"content": [{"type": "text", "text": "[1, 2]"}]}
    text = [{"type": "text", "text": "one"}]
    assert result_for_2025("tools/call", {"content": text, "structuredContent": 1}, "it") == {"content": text}
    whole = {"content": [], "structuredContent": {"a": 1}}
    assert result_for_2025("tools/call", whole, "it") == whole
    tools = [{"name": "a", "outputSchema": {"type": "array"}}, {"name": "b", "outputSchema": {"type": "object"}}, 7]
    assert result_for_2025("tools/list", {"tools": tools}, "it") == {"tools": [{"name": "a"}, *tools[1:]]}


@pytest.mark.promise("link.sdk-eras")
@pytest.mark.parametrize(
    ("method", "code", "data", "expected"),
    [
        ("resources/read", -32602, {"uri": "x://y"}, -32002),
        ("resources/read", -32602, None, -32002),
        ("resources/read", -32602, {"reason": "invalid_request_state"}, -32602),
        ("tools/call", -32602, None, -32602),
        ("tools/call", -32020, None, -32600),
        ("tools/call", -32021, {"requiredCapabilities": {}}, -32600),
        ("tools/call", -32022, {"supported": []}, -32600),
        ("tools/call", -32601, None, -32601),
        ("tools/call", 0, None, 0),
    ],
)
def test_codes_of_2026_in_2025(method: str, code: int, data: object, expected: int) -> None:
    crossed = error_for_2025(method, error(code, data))
    assert (crossed.code, crossed.data, crossed.message) == (expected, data, "no")
    assert rpc_error(crossed) == {"code": expected, "message": "no", "vendor": 1} | ({"data": data} if data else {})


@pytest.mark.promise("link.sdk-eras")
def test_codes_of_2025_in_2026() -> None:
    crossed = error_for_2026("resources/read", error(-32002), {"uri": "x://y"})
    assert (crossed.code, crossed.data) == (-32602, {"uri": "x://y"})
    assert error_for_2026("resources/read", error(-32002, {"own": 1}), {"uri": "x://y"}).data == {"own": 1}
    assert error_for_2026("tools/call", error(-32042), {}).code == -32600
    assert error_for_2026("tools/call", error(-32002), {}).code == -32002


@pytest.mark.promise("link.sdk-eras")
def test_handshakes_in_the_other_era() -> None:
    info, capabilities = {"name": "s", "version": "1"}, {"tools": {}, "extensions": {"x": {}}}
    of_2026 = {"capabilities": capabilities, "instructions": "i", "_meta": {SERVER_INFO: info}, "ttlMs": 1}
    assert initialize_result(Handshake(Era.Y2026, "2026-07-28", of_2026), "it", "2025-06-18") == {
        "protocolVersion": "2025-06-18",
        "capabilities": capabilities,
        "serverInfo": info,
        "instructions": "i",
    }
    unknown = initialize_result(Handshake(Era.Y2026, "2026-07-28", {}), "it", "1999-01-01")
    assert unknown["protocolVersion"] == "2025-11-25"
    assert unknown["serverInfo"]["name"] == "it"
    of_2025 = {"capabilities": {**capabilities, "tasks": {}}, "serverInfo": info, "_meta": {"vendor": 1}}
    assert discover_result(Handshake(Era.Y2025, "2025-06-18", of_2025)) == {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28", "2025-06-18"],
        "capabilities": capabilities,
        "_meta": {"vendor": 1, SERVER_INFO: info},
        "ttlMs": 0,
        "cacheScope": "private",
    }


@pytest.mark.promise("link.sdk-eras")
def test_a_question_by_url_has_an_id_in_2025() -> None:
    params = {"mode": "url", "url": "https://x", "message": "m"}
    assert question_for_2025("elicitation/create", params, "q1") == {**params, "elicitationId": "q1"}
    assert question_for_2025("elicitation/create", {**params, "elicitationId": "e"}, "q1")["elicitationId"] == "e"
    assert question_for_2025("elicitation/create", {"message": "m"}, "q1") == {"message": "m"}


@pytest.mark.promise("link.sdk-eras")
def test_the_tasks_of_2026_are_not_promised_for_a_2025_session() -> None:
    tasks, other = {TASKS: {}}, {"vendor": {}}
    assert without_tasks({"roots": {}, "extensions": {**tasks, **other}}) == {"roots": {}, "extensions": other}
    assert without_tasks({"roots": {}, "extensions": tasks}) == {"roots": {}}
    assert without_tasks({"extensions": other}) == {"extensions": other}
    handshake = Handshake(Era.Y2026, "2026-07-28", {"capabilities": {"extensions": tasks}})
    assert initialize_result(handshake, "it", None)["capabilities"] == {}
