"""Which capability a question needs of a client, and when two requests are the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.exact import decode
from holdfast.core.questions import answer_of, asked_by_error, has, may_be_asked, request_digest, required

URL = {"elicitation": {"url": {}}}
FORM = {"elicitation": {"form": {}}}


@pytest.mark.promise("gateway.questions")
@pytest.mark.parametrize(
    ("method", "params", "needed"),
    [
        ("elicitation/create", None, FORM),
        ("elicitation/create", {"mode": "form"}, FORM),
        ("elicitation/create", {"mode": "url"}, URL),
        ("sampling/createMessage", {"messages": []}, {"sampling": {}}),
        ("sampling/createMessage", {"tools": []}, {"sampling": {"tools": {}}}),
        ("sampling/createMessage", {"toolChoice": {}}, {"sampling": {"tools": {}}}),
        ("roots/list", None, {"roots": {}}),
        ("ping", None, None),
        ("vendor/ask", {}, None),
    ],
)
def test_what_a_question_needs(method: str, params: Any, needed: Any) -> None:
    assert required(method, params) == needed


@pytest.mark.promise("gateway.questions")
@pytest.mark.parametrize(
    ("declared", "needed", "enough"),
    [
        ({"elicitation": {}}, FORM, True),
        ({"elicitation": {"form": {}}}, FORM, True),
        ({"elicitation": {"url": {}}}, FORM, False),
        ({"elicitation": {}}, URL, False),
        ({"elicitation": {"form": {}, "url": {}}}, URL, True),
        ({"sampling": {}}, {"sampling": {}}, True),
        ({"sampling": {}}, {"sampling": {"tools": {}}}, False),
        ({"sampling": True}, {"sampling": {}}, False),
        ({}, {"roots": {}}, False),
    ],
)
def test_who_has_what_is_needed(declared: Any, needed: Any, enough: bool) -> None:
    assert has(declared, needed) is enough


@pytest.mark.promise("gateway.questions")
def test_who_may_be_asked_at_all() -> None:
    assert may_be_asked({"roots": {}})
    assert not may_be_asked({"extensions": {}})


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.promise("gateway.questions")
@given(st.dictionaries(st.text(), _VALUES), st.randoms())
def test_a_retry_in_another_order_is_the_same_request(params: dict[str, Any], random: Any) -> None:
    names = list(params)
    random.shuffle(names)
    retry = {name: params[name] for name in names} | {"inputResponses": {"a": 1}, "requestState": "s", "_meta": {}}
    first = {name: value for name, value in params.items() if name not in ("inputResponses", "requestState", "_meta")}
    assert request_digest("tools/call", first) == request_digest("tools/call", retry)
    assert request_digest("prompts/get", first) != request_digest("tools/call", first)
    assert request_digest("tools/call", {**first, "one more": 1}) != request_digest("tools/call", first) or (
        first.get("one more") == 1
    )


@pytest.mark.promise("gateway.questions")
def test_numbers_are_the_same_digit_for_digit() -> None:
    one, other = (decode(text) for text in (b'{"a":1.50}', b'{"a":1.5}'))
    assert request_digest("m", one) != request_digest("m", other)


@pytest.mark.promise("gateway.questions")
def test_a_response_is_what_a_2025_server_expects() -> None:
    assert answer_of({"resultType": "complete", "roots": []}) == {"roots": []}
    assert answer_of("nonsense") == {}


@pytest.mark.promise("gateway.questions")
def test_urls_that_an_error_wants_visited_are_questions() -> None:
    wanted = {"elicitations": [{"url": "https://a", "message": "in", "mode": "url"}, "nonsense"]}
    assert asked_by_error(-32042, wanted) == {
        "question-1": {"method": "elicitation/create", "params": wanted["elicitations"][0]}
    }
    for code, data in ((-32602, wanted), (-32042, None), (-32042, {"elicitations": []}), (-32042, {"elicitations": 1})):
        assert asked_by_error(code, data) is None
