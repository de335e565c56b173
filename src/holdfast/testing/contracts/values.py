"""Values: what is stored comes back equal; what would not is rejected with its path."""

import datetime
import decimal
import enum
import math
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from holdfast.core.models import Record
from holdfast.errors import LimitReached, UnstorableValue
from holdfast.testing.contracts.given import Contract, Given, contract, refused


class _Colour(enum.StrEnum):
    RED = "red"


class _Point(NamedTuple):
    x: int


@dataclass
class _Box:
    x: int


LOSSLESS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**53 + 1,
    2**64,
    -(2**200),
    10**1000,
    0.0,
    -0.0,
    0.1,
    1e-320,
    1.7976931348623157e308,
    "",
    "\x00\x01\x1f\x7f",
    "ä 日本 😀 \u2028 \ufeff \U0010ffff",
    '"\\/\b\f\n\r\t',
    [],
    {},
    [[], {}, [[]], {"": {}}],
    {"": 1, " ": 2, "a.b": 3, "a[0]": 4, "😀": 5, "\x00": 6},
    {"z": 1, "a": 2},
    [1, 1.0, True, "1", None],
    {"deep": [[[[[[[[[[{"x": [1, {"y": None}]}]]]]]]]]]]},
)

_HERE = datetime.datetime(2026, 1, 1)
UNSTORABLE: tuple[tuple[Any, str, str], ...] = (
    ({"items": [0, 1, 2, {"when": _HERE}]}, "data.items[3].when", "datetime"),
    ((1, 2), "data", "tuple"),
    ({"a": {1, 2}}, "data.a", "set"),
    ([b"bytes"], "data[0]", "bytes"),
    ({"a": {1: "x"}}, "data.a[1]", "int"),
    ([math.nan], "data[0]", "nan"),
    ([math.inf], "data[0]", "inf"),
    ([decimal.Decimal("1.5")], "data[0]", "Decimal"),
    ([uuid.UUID(int=0)], "data[0]", "UUID"),
    ([_Colour.RED], "data[0]", "_Colour"),
    ([_Point(1)], "data[0]", "_Point"),
    ([_Box(1)], "data[0]", "_Box"),
    ({"a": object()}, "data.a", "object"),
    ("\ud83d\ude00", "data", "surrogate"),
    ({"\ud800": 1}, "data['\\ud800']", "surrogate"),
    (1 << 20_000, "data", "bits"),
)


class ValueContract(Contract):
    @contract("store.values")
    async def test_json_comes_back_equal_in_type_and_value(self, given: Given) -> None:
        for index, value in enumerate(LOSSLESS):
            await given.create(str(index), data=value, entries=(value,))
            assert _same(value, (await given.get(str(index))).data), value
            assert _same(value, (await given.store.log(given.kind, str(index)))[0].data), value

    @contract("store.values")
    async def test_anything_else_is_refused_with_its_path(self, given: Given) -> None:
        for value, path, why in UNSTORABLE:
            error = await refused(UnstorableValue, given.create(data=value))
            assert (error.path, why in str(error)) == (path, True), (error.path, str(error))
        cycle: list[Any] = []
        cycle.append(cycle)
        error = await refused(UnstorableValue, given.create(data=cycle))
        assert "nested" in str(error)
        error = await refused(UnstorableValue, given.create(entries=("fine", _HERE)))  # type: ignore[arg-type]
        assert error.path == "entries[1]"
        assert await given.store.get(given.kind, "a") is None

    @contract("store.size")
    async def test_a_record_over_the_limit_is_refused_and_the_old_one_stays(self, given: Given) -> None:
        record = await given.create(data="small")
        error = await refused(LimitReached, given.store.commit(record.with_data("x" * (1024 * 1024)), expect=1))
        assert error.limit == 1024 * 1024 < error.actual
        await refused(LimitReached, given.store.commit(record, expect=1, entries=["x" * (1024 * 1024)]))
        assert await given.get() == record
        almost = await given.store.commit(record.with_data("x" * (1024 * 1024 - 2)), expect=1)
        assert await given.get() == almost

    @contract("store.bad-names")
    async def test_names_with_control_characters_or_too_long_are_refused(self, given: Given) -> None:
        bad: Any
        for bad in ("", "a\nb", "a\x00", "\x7f", "\x85", "x" * 513, "\ud800", 7, None):
            for make in (
                lambda bad=bad: given.store.get(given.kind, bad),
                lambda bad=bad: given.store.get(bad, "a"),
                lambda bad=bad: given.store.end(given.kind, bad),
                lambda bad=bad: given.store.touch(given.kind, bad),
                lambda bad=bad: given.store.log(given.kind, bad),
                lambda bad=bad: given.store.holder(given.kind, bad),
                lambda bad=bad: given.store.claim(given.kind, bad, owner="me", ttl=1),
                lambda bad=bad: given.store.claim(given.kind, "a", owner=bad, ttl=1),
                lambda bad=bad: given.store.publish(bad, None),
            ):
                await refused(UnstorableValue, make())
            try:
                Record(given.kind, bad)  # type: ignore[arg-type]
            except UnstorableValue as error:
                assert error.path == "id"
            else:
                raise AssertionError(f"a record with the id {bad!r}")


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal, including the types of all parts: 1 is not True, and -0.0 is not 0.0."""
    kind = cast("object", type(a))  # as an object, or the type checker would narrow `a` to an unknown container
    if kind is not type(b):
        return False
    if kind is dict:
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if kind is list:
        return len(a) == len(b) and all(map(_same, a, b))
    if kind is float:
        return a.hex() == b.hex()
    return a == b
