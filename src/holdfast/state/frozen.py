"""States that can't be changed: what a tool that only reads its session is given."""

import copy
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from pydantic import BaseModel

from holdfast.errors import UsageError
from holdfast.state.model import FROZEN, PLAIN, SessionState

S = TypeVar("S", bound=SessionState)


READS_ONLY = "this tool only reads its session, and what it would change is not kept"
WRITE_INSTEAD = "declare the tool with `writes` instead of `reads`"


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(READS_ONLY, remedy=WRITE_INSTEAD)


def _without(kind: type, *changing: str) -> Callable[[Any], Any]:
    """A subclass of a container whose changing methods are refused; copies of it are plain."""

    def reduced(self: Any, _: object) -> tuple[type, tuple[Any]]:
        return kind, (kind(self),)

    methods = {**dict.fromkeys(changing, _refuse), "__reduce_ex__": reduced}
    return cast("Callable[[Any], Any]", type(kind.__name__, (kind,), methods))


_LIST = _without(
    list,
    *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
)
_DICT = _without(dict, "clear", "pop", "popitem", "setdefault", "update", "__setitem__", "__delitem__", "__ior__")
_SET = _without(
    set,
    *("add", "clear", "discard", "pop", "remove", "update"),
    *("difference_update", "intersection_update", "symmetric_difference_update"),
    *("__iand__", "__ior__", "__isub__", "__ixor__"),
)


def frozen(state: S) -> S:
    """A copy that raises when it, or a list, dictionary, set or model inside, is changed."""
    copied = state.model_copy()
    _freeze_fields(copied)
    return copied


def _freeze_fields(model: BaseModel) -> None:
    values = cast("dict[str, Any]", model.__dict__)
    for name, value in list(values.items()):
        values[name] = _frozen(value)
    if isinstance(model, SessionState):
        values[FROZEN] = True


def _frozen(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, BaseModel):
        copied = value.model_copy()
        _freeze_fields(copied)
        return copied
    if type(value) is list:
        return _LIST([_frozen(each) for each in cast("list[Any]", value)])
    if type(value) is dict:
        return _DICT({name: _frozen(each) for name, each in cast("dict[Any, Any]", value).items()})
    if type(value) is set:
        return _SET(cast("set[Any]", value))
    if type(value) is tuple:
        return tuple(_frozen(each) for each in cast("tuple[Any, ...]", value))
    return copy.deepcopy(value)  # of a type that may change in silence: then it differs from what was read
