"""How long operations of a store take, reported as events while somebody observes it."""

import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from holdfast.events import StoreAnswered

OPERATIONS = (
    "get", "get_all", "commit", "commit_all", "touch", "end", "log", "claim", "begin_turn", "begin_turns", "renew",
    "release", "scan", "count", "reap", "publish",
)  # fmt: skip

T = TypeVar("T")


def timed(
    store: str, name: str, operation: Callable[..., Awaitable[T]], report: Callable[[StoreAnswered], None]
) -> Any:
    """An operation that reports how long it took."""

    @wraps(operation)
    async def answered(*args: Any, **kwargs: Any) -> T:
        at, began = time.time(), time.perf_counter()
        error: str | None = None
        try:
            return await operation(*args, **kwargs)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            report(StoreAnswered(at, store, name, time.perf_counter() - began, error))

    return answered
