"""Values by property: whatever is taken comes back equal, and whatever is not plain JSON is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.values import MAX_DEPTH, decode, encode
from holdfast.errors import UnstorableValue

_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)
_odd = st.sampled_from([(), (1,), {1}, b"x", object(), float("nan"), float("inf"), 1j, range(3), {1: 2}, "\ud800"])


@pytest.mark.promise("store.values")
@given(_plain)
def test_plain_json_comes_back_equal(value: Any) -> None:
    assert repr(decode(encode(value))) == repr(value)


@pytest.mark.promise("store.values")
@given(st.lists(_plain, max_size=3), _odd, st.lists(_plain, max_size=3))
def test_one_odd_value_anywhere_is_found_and_named(before: list[Any], odd: Any, after: list[Any]) -> None:
    with pytest.raises(UnstorableValue) as caught:
        encode({"list": [*before, {"here": odd}, *after]})
    assert caught.value.path.startswith(f"data.list[{len(before)}].here")


@pytest.mark.promise("store.values")
def test_depth_is_bounded_in_both_directions() -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return value

    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(UnstorableValue, match=f"deeper than {MAX_DEPTH}"):
        encode(nested(MAX_DEPTH + 1))
    with pytest.raises(UnstorableValue):
        encode(nested(50_000))


@pytest.mark.promise("store.values")
@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b"1 2", b"'a'"])
def test_what_could_not_have_been_written_is_not_read(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode(body)


@pytest.mark.promise("store.values")
def test_bodies_are_compact_utf8() -> None:
    assert encode({"a": ["ä", 1]}) == '{"a":["ä",1]}'.encode()
    assert json.loads(encode({"a": [1]})) == {"a": [1]}
