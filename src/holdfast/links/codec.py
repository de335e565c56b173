"""Messages to bytes and back, without loss: big integers stay integers, and what is not JSON raises.

Why not orjson: it turns big integers into floats and NaN into null, silently. What is only passed on is read by
`decode_exactly`, digit for digit.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.core import exact
from holdfast.errors import UsageError

Decode: TypeAlias = Callable[[bytes | bytearray], Any]

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)


def encode(message: Mapping[str, Any], server: str) -> bytes:
    """The message as UTF-8 JSON, or `UsageError` that says which value is not JSON."""
    try:
        return exact.encode(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the parameters of {message.get('method')!r} for {server!r} are not JSON: {error}"[:400],
            server=server,
            remedy="give str, int, float, bool, None, list and dict only",
        ) from error


def encode_known(message: Mapping[str, Any], server: str = "the other side") -> bytes:
    """The same, five times as fast, for what was decoded here or made by us: it must be JSON already."""
    try:
        return to_json(message)
    except PydanticSerializationError:  # an exact number, a lone surrogate, very deep nesting
        return encode(message, server)


def decode(data: bytes | bytearray) -> Any:
    """The value; ValueError if it is not JSON, has a number that no float holds (`1e400`), or is nested deeper than
    `exact.NESTING`, which is pydantic's limit. A lone surrogate, half a character, becomes U+FFFD."""
    try:
        return _from_json(data)
    except ValueError:
        whole, found = _ESCAPE.subn(_whole, data)
        if not found or whole == data:
            raise
    return _from_json(whole)


def _from_json(data: bytes | bytearray) -> Any:
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        if str(error).startswith("recursion limit exceeded"):
            raise ValueError(exact.TOO_DEEP) from None
        raise
    if _holds_infinity(value):
        raise ValueError("it has a number that no float holds, like 1e400")
    return value


def _holds_infinity(value: object) -> bool:
    """The parser refuses the names, and still makes infinity of `1e400`."""
    waiting: list[Iterable[Any]] = [(value,)]
    while waiting:
        for each in waiting.pop():
            kind = type(each)  # pyright: ignore[reportUnknownVariableType]
            if kind is dict:
                waiting.append(each.values())
            elif kind is list:
                waiting.append(each)
            elif kind is float and not math.isfinite(each):
                return True
    return False


def _whole(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def weight(value: Any) -> int:
    """About how many bytes a decoded value takes, in a time that goes with it."""
    total, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        total += 64
        if isinstance(each, str):
            total += len(each)
        elif isinstance(each, dict):
            known = cast("dict[str, Any]", each)
            waiting.extend(known)
            waiting.extend(known.values())
        elif isinstance(each, list):
            waiting.extend(cast("list[Any]", each))
    return total


decode_exactly: Decode = exact.decode
"""The value of a message that is passed on: numbers keep their text, strings their lone surrogates."""
