"""JSON that is only passed on comes out as it went in."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from holdfast.core.exact import Number, decode, encode, plain
from holdfast.links.codec import encode_known

_NUMBERS = st.one_of(
    st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
)
_UNITS = st.one_of(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'),
    st.from_regex(r"\\(u[0-9a-fA-F]{4}|[\"\\/bfnrt])", fullmatch=True),
)
_STRINGS = st.lists(_UNITS, max_size=12).map(lambda parts: '"' + "".join(parts) + '"')
_SPACE = st.sampled_from(["", " ", "\n\t"])


def _object(pairs: list[tuple[str, str]]) -> str:
    unique = {json.loads(key): f"{key}:{value}" for key, value in pairs}
    return "{" + ",".join(unique.values()) + "}"


_TEXTS = st.recursive(
    st.one_of(_NUMBERS, _NUMBERS, _STRINGS, st.sampled_from(["true", "false", "null"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: "[" + ",".join(parts) + "]"),
        st.lists(st.tuples(_STRINGS, inner), max_size=4).map(_object),
        st.tuples(_SPACE, inner, _SPACE).map("".join),
    ),
    max_leaves=15,
)


def tokens(text: str | bytes) -> Any:
    """The value with every number as its text, and objects in their order."""
    return json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=lambda pairs: ("object", pairs))


@pytest.mark.promise("gateway.fidelity")
@given(text=_TEXTS)
def test_any_text_passes_with_every_digit_and_character(text: str) -> None:
    value = decode(text.encode())
    for encoded in (encode(value), encode_known(value)):
        assert tokens(encoded) == tokens(text)
        encoded.decode()  # UTF-8 whatever came in


@pytest.mark.promise("gateway.fidelity")
@given(text=_NUMBERS)
def test_what_stays_a_python_number_is_written_by_every_encoder_as_it_was(text: str) -> None:
    value = decode(text.encode())
    if not isinstance(value, Number):
        assert to_json(value) == encode(value) == text.encode()


@pytest.mark.promise("gateway.fidelity")
def test_a_number_of_any_length_passes() -> None:
    for text in ("9" * 100_000, "-" + "1" * 4_301, "0." + "1" * 10_000, "1e" + "9" * 1_000):
        assert encode(decode(text.encode())) == text.encode()


@pytest.mark.promise("gateway.fidelity")
@pytest.mark.parametrize(
    "text",
    ["", "NaN", "[-Infinity]", "01", "1.", ".5", "+1", "1 2", "[1,]", "{'a':1}", '"\t"', "\ufeff1", '"\\ud8"', "["],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # whatever it says, it is no other error
        decode(text.encode())


@pytest.mark.promise("gateway.fidelity")
def test_bytes_that_are_no_utf8_and_endless_nesting_are_refused() -> None:
    for data in (b'"\xff"', b'"\xed\xa0\xbd"', b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(ValueError):
            decode(data)


@pytest.mark.promise("gateway.fidelity")
def test_plain_is_what_python_makes_of_it() -> None:
    value = decode(b'{"a":[1e2,1.50,-0,1e400],"\\ud83d":"x\\ude00","pair":"\\ud83d\\ude00"}')
    assert plain(value) == {"a": [100.0, 1.5, 0.0, None], "\ufffd": "x\ufffd", "pair": "\U0001f600"}


@pytest.mark.promise("gateway.fidelity")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"a":1,"a":1}', "'a'"),
        (r'{"a":1,"b":2,"\u0061":3}', "'a'"),
        ('{"params":{"arguments":[0,{"path":"/safe","n":-0,"path":"/etc/shadow"}]}}', "'params.arguments.1.path'"),
        ('{"x":' + "9" * 5_000 + ',"y":{"z":null,"z":null}}', "'y.z'"),
        ('{"%s":{"b":{"x":1,"x":1}}}' % ("k" * 1000), f"'{'k' * 40}.b.x'"),
    ],
)
def test_a_key_that_is_there_twice_is_refused_with_its_place(text: str, key: str) -> None:
    with pytest.raises(ValueError, match=f"^the key {key} occurs twice$"):
        decode(text.encode())


@pytest.mark.promise("gateway.fidelity")
def test_the_same_key_in_two_objects_is_no_repetition() -> None:
    text = b'{"a":{"a":[{"a":1},{"a":2}]},"b":"\\"a\\":1,\\"a\\":2"}'
    assert encode(decode(text)) == text


@pytest.mark.promise("gateway.fidelity")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": NaN}', "NaN at character 6 is not JSON"),
        ('{"a": "NaN \\" Infinity", "b": [1, -Infinity]}', "-Infinity at character 34 is not JSON"),
        ('["[[", ' + "[" * 200 + "]" * 201, "it is nested deeper than 200 levels from character 206 on"),
        ("[" * 100_000, "it is nested deeper than 200 levels from character 200 on"),
    ],
)
def test_what_is_refused_is_named_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        decode(text.encode())
    assert str(caught.value) == words
