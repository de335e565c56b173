"""Short tracebacks for failed calls: the author's own line, one of Holdfast, and the error.

The traceback is cut at the public methods; causes keep theirs.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from holdfast.errors import HoldfastError

P = ParamSpec("P")
R = TypeVar("R")


def shortened(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """A decorator that removes Holdfast's inner frames from the traceback of an error."""

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(*args, **kwargs)
        except HoldfastError as error:
            raise error.with_traceback(None)  # noqa: B904 - it is the same error

    return call
