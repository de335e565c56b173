"""JSON that survives the round trip through a store. Anything else is rejected with its path.

Rejected are values that would come back as something else: tuples, subclasses, dates, NaN, keys that are not text.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn, TypeAlias, cast

from holdfast.core.exact import Number, is_unicode
from holdfast.errors import UnstorableValue

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_DEPTH = 100  # far beyond real state, well below the recursion limit of any JSON parser
MAX_INT_BITS = 14_000  # about 4,200 digits: Python itself refuses to read more than 4,300

_LEAVES = frozenset((str, bool, type(None)))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Created once: json.dumps and json.loads with settings create a new one for each call.
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False)


def encode(value: object, path: str = "data") -> bytes:
    """Encode a value as UTF-8 JSON.
    Raises `UnstorableValue` with the path of the first part that would not come back equal.
    """
    if not _is_plain(value, MAX_DEPTH):
        _refuse(value, path)
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 can't encode
        _refuse(value, path)


def decode(body: bytes) -> JSON:
    """Decode what `encode` returned. Raises ValueError for anything that `encode` could not have written."""
    text = body.decode()
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"something follows at {end}")
    return cast("JSON", value)


def _is_plain(value: object, depth: int) -> bool:
    """The fast check of every write; scalars in containers are checked without a call."""
    kind = type(value)
    if kind is dict and depth:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str or not (type(item) in _LEAVES or _is_plain(item, depth - 1)):
                return False
        return True
    if kind is list and depth:
        for item in cast("list[object]", value):  # noqa: SIM110  # all() with a generator takes twice as long
            if not (type(item) in _LEAVES or _is_plain(item, depth - 1)):
                return False
        return True
    if kind is int:
        return cast("int", value).bit_length() <= MAX_INT_BITS
    if kind is float:
        return math.isfinite(cast("float", value))
    return kind in _LEAVES


def _refuse(value: object, path: str) -> NoReturn:
    """Walk the value again to find the place and the reason."""
    where, why = next(_faults(value, path, MAX_DEPTH))
    raise UnstorableValue(f"{where}: {why}", path=where, remedy="store plain JSON values only")


def _faults(value: object, path: str, depth: int) -> Iterator[tuple[str, str]]:
    kind = type(value)
    if kind is str:
        if not is_unicode(cast("str", value)):
            yield path, "text with a lone surrogate"
    elif kind is int:
        if cast("int", value).bit_length() > MAX_INT_BITS:
            yield path, f"an integer of more than {MAX_INT_BITS} bits"
    elif kind is float:
        if not math.isfinite(cast("float", value)):
            yield path, repr(value)
    elif kind in (dict, list) and depth == 0:
        yield path, f"nested deeper than {MAX_DEPTH} levels, or within itself"
    elif kind is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                yield f"{path}[{key!r}]", f"a key of type {type(key).__name__}"
            elif not is_unicode(key):
                yield f"{path}[{key!r}]", "a key with a lone surrogate"
            yield from _faults(item, f"{path}.{key}", depth - 1)
    elif kind is list:
        for index, item in enumerate(cast("list[object]", value)):
            yield from _faults(item, f"{path}[{index}]", depth - 1)
    elif kind is Number:
        yield path, f"the number {value!r:.40} can't be stored exactly"
    elif kind not in _LEAVES:
        yield path, kind.__name__


def members(value: object) -> dict[str, Any]:
    """The value if it is a JSON object, else an empty one. For data from outside."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
