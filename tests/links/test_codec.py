"""Messages to bytes and back, for those who use them in Python."""

import pytest

from holdfast.errors import UsageError
from holdfast.links.codec import decode, encode, encode_known


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
