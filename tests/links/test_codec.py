"""Messages to bytes and back, for those who use them in Python."""

import pytest

from holdfast.core.exact import NESTING
from holdfast.errors import UsageError
from holdfast.links.codec import Decode, decode, decode_exactly, encode, encode_known


@pytest.mark.promise("link.values")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'"a\ud83d"', "a\ufffd"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'["\ude00","\\ud83d"]', ["\ufffd", "\\ud83d"]),
        (rb'{"\uD83D":1}', {"\ufffd": 1}),
    ],
)
def test_half_a_character_becomes_a_replacement_character(text: bytes, value: object) -> None:
    assert decode(text) == value


@pytest.mark.promise("link.values")
def test_what_is_not_json_is_still_refused() -> None:
    for data in (rb'"\ud83d', rb'"\ud83', b"NaN", rb'["\ud83d",]', b"\xff"):
        with pytest.raises(ValueError):
            decode(data)


@pytest.mark.promise("link.values")
def test_half_a_character_is_sent_as_its_escape() -> None:
    message = {"method": "x", "params": {"text": "\ud83d é \U0001f600"}}
    for data in (encode(message, "s"), encode_known(message)):
        assert data == '{"method":"x","params":{"text":"\\ud83d é \U0001f600"}}'.encode()


@pytest.mark.promise("link.values")
def test_what_can_not_be_sent_is_a_usage_error_of_either_encoder() -> None:
    nested: object = 1
    for _ in range(100_000):
        nested = [nested]
    for encoder in (encode, encode_known):
        with pytest.raises(UsageError, match="are not JSON"):
            encoder({"method": "x", "params": {"x": nested}}, "s")


@pytest.mark.promise("link.values")
@pytest.mark.parametrize("decoder", [decode, decode_exactly])
@pytest.mark.parametrize("halves", [(b"[", b"1", b"]"), (b'{"a":', b"1.50", b"}"), (b'{"a":[', b'"\\ud800"', b"]}")])
def test_what_can_be_read_can_be_written_and_deeper_is_refused(
    decoder: Decode, halves: tuple[bytes, bytes, bytes]
) -> None:
    begin, inner, end = halves
    levels = begin.count(b"[") + begin.count(b"{")
    read = 0
    for count in (*range(190 // levels, 210 // levels), 940 // levels, 20_000):
        data = b'{"method":"x","params":' + begin * count + inner + end * count + b"}"
        try:
            message = decoder(data)
        except ValueError as error:
            assert 1 + count * levels > NESTING
            assert "nested deeper than 200 levels" in str(error)
        else:
            assert 1 + count * levels <= NESTING
            assert encode_known({**message, "more": {"params": message["params"]}})
            assert decoder(encode_known(message)) == message
            assert decoder(encode(message, "s")) == message
            read += 1
    assert read
