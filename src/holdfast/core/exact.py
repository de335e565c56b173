"""JSON that is only passed on: decoded and encoded again without losing a digit.

It preserves numbers whose text a Python number would change (`1e400`, `1.50`, `-0`), and lone surrogates, which are
legal as escapes. It rejects what is not JSON, what is nested deeper than the encoders here can write, and an object
with a duplicate key, because two readers may use different values.
"""

import json
import math
import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, cast

NESTING = 200  # levels of a value: as many as pydantic, and so every Python SDK, reads; they can also be written
TOO_DEEP = f"it is nested deeper than {NESTING} levels"
KEY_SHOWN, PLACE_SHOWN = 40, 120  # characters of a key, and of the path to a key, in an error text
_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|(NaN|-?Infinity)')
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|([\[\]{}])')
_MAX_DIGITS = 4_000  # Python reads no integer of more than 4,300 digits, and slowly before that
_MARK = secrets.token_hex(16)  # put around a number's text while the encoder treats it as a string
_BEGIN, _END = f'"{_MARK}', f'{_MARK}"'


class Number:
    """A number as its text.
    It is not a `float`, so that code that does not know it fails instead of changing the number.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return type(other) is Number and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __float__(self) -> float:
        return float(self.text)


def _float(text: str) -> float | Number:
    value = float(text)
    # Every encoder writes the shortest digits that read back as the same number; only exponents are written
    # differently.
    return value if repr(value) == text and "e" not in text else Number(text)


def _int(text: str) -> int | Number:
    return Number(text) if text == "-0" or len(text) > _MAX_DIGITS else int(text)


class _ConstantError(ValueError):
    """NaN or an infinity, which Python's decoder would accept."""


def _no_constant(name: str) -> NoReturn:
    raise _ConstantError


class _KeyTwiceError(ValueError):
    """An object has a duplicate key."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _KeyTwiceError
    return made


class _Twice:
    """Stands in place of an object that has a duplicate key."""

    def __init__(self, key: str) -> None:
        self.key = key


def _object_or_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Twice:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _Twice(key)
        seen.add(key)
    return dict(pairs)


# A hook for integers costs a call for each of them, so it is used only where one may need its text.
_scan = json.JSONDecoder(parse_float=_float, parse_constant=_no_constant, object_pairs_hook=_object).raw_decode
_scan_integers = json.JSONDecoder(
    parse_float=_float, parse_int=_int, parse_constant=_no_constant, object_pairs_hook=_object
).raw_decode
_scan_for_twice = json.JSONDecoder(parse_float=str, parse_int=str, object_pairs_hook=_object_or_twice).raw_decode


def decode(data: bytes | bytearray) -> Any:
    """Decode a value. Raises ValueError if it is not JSON, is nested deeper than `NESTING`, or has a duplicate key."""
    text = data.decode().lstrip(" \t\r\n")
    try:
        if b"-0" in data:
            value, end = _scan_integers(text)
        else:
            try:
                value, end = _scan(text)
            except (json.JSONDecodeError, _KeyTwiceError, _ConstantError):
                raise
            except ValueError:  # an integer of thousands of digits
                value, end = _scan_integers(text)
    except RecursionError:
        raise ValueError(_too_deep(text)) from None
    except _ConstantError:
        name, place = next((name, at) for name, at in _outside_strings(_CONSTANT, text))
        raise ValueError(f"{name} at character {place} is not JSON") from None
    except _KeyTwiceError:
        raise ValueError(f"the key {_place_of_twice(text)} occurs twice") from None
    if end != len(text) and text[end:].strip(" \t\r\n"):
        raise ValueError(f"something follows the value at character {end}")
    # The count alone shows for most values that they are flat enough, in a hundredth of the time of decoding them.
    if data.count(b"[") + data.count(b"{") > NESTING and _is_too_deep(value):
        raise ValueError(_too_deep(text))
    return value


def _outside_strings(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, int]]:
    """What a pattern finds outside the strings of a value, and where. A second pass, for the error text only."""
    return ((each[1], each.start()) for each in pattern.finditer(text) if each[1] is not None)


def _too_deep(text: str) -> str:
    depth = 0
    for bracket, place in _outside_strings(_BRACKET, text):
        depth += 1 if bracket in "[{" else -1
        if depth > NESTING:
            return f"{TOO_DEEP} from character {place} on"
    return TOO_DEEP


def _place_of_twice(text: str) -> str:
    """The path to a duplicate key. A second pass, for the error text only."""
    waiting: list[tuple[Any, Any, object]] = [(_scan_for_twice(text)[0], None, "")]  # a value, what it is in, its key
    while waiting:
        place = waiting.pop()
        value = place[0]
        if type(value) is _Twice:
            keys: list[str] = [value.key]
            while place[1] is not None:
                keys.append(str(place[2]))
                place = place[1]
            return repr(".".join(key[:KEY_SHOWN] for key in reversed(keys)))[-PLACE_SHOWN:]
        if type(value) is dict:
            waiting.extend((each, place, key) for key, each in cast("dict[str, Any]", value).items())
        elif type(value) is list:
            waiting.extend((each, place, index) for index, each in enumerate(cast("list[Any]", value)))
    raise AssertionError("the decoder found one")


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(NESTING):
        level = [each for outer in level for each in _inner(outer) if type(each) is dict or type(each) is list]
        if not level:
            return False
    return True


def _inner(value: Any) -> Iterable[Any]:
    if type(value) is dict:
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if type(value) is list else ()


def _marked(value: object) -> str:
    if type(value) is Number:
        return f"{_MARK}{value.text}{_MARK}"
    raise TypeError(f"{type(value).__name__} is not JSON")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_marked).encode


def encode(value: object) -> bytes:
    """Encode a value as UTF-8 JSON. Raises TypeError, ValueError or RecursionError for what is not JSON."""
    text = _encode(value)
    if _BEGIN in text:
        text = text.replace(_BEGIN, "").replace(_END, "")
    return text.encode("utf-8", "backslashreplace")  # writes a lone surrogate as its JSON escape


def plain(value: Any) -> Any:
    """The value with Python numbers and whole characters, for code that stores, compares or shows it."""
    if type(value) is Number:
        nearest = float(value)
        return nearest if math.isfinite(nearest) else None
    if type(value) is str:
        return value if is_unicode(value) else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if type(value) is dict:
        return {plain(key): plain(item) for key, item in cast("dict[str, Any]", value).items()}
    if type(value) is list:
        return [plain(item) for item in cast("list[Any]", value)]
    return value


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogate, which UTF-8 can't encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
