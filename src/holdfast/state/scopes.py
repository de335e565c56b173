"""The five scopes of a server's state, and one table of what survives what.

| scope | what it is | how a tool gets it |
|---|---|---|
| execution | one execution of a function | Python's local variables |
| request | one call, including middleware and nested calls | `RequestScope` |
| session | one caller's session | `Sessions` |
| server | one process | `ServerScope` |
| persistent | all callers, permanently | `Sessions(…, identity=[ForEveryone()], idle=None, max_age=None)` |

A nested call can't write into its caller's request. Request and server scope are not stored.
"""

import copy
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

from holdfast.errors import UsageError
from holdfast.events import ServerCounted, Sink
from holdfast.observers import deliver, is_observed
from holdfast.state.calls.request import SCOPE, Scope

T = TypeVar("T")

ENDS = ("request ends", "session ends", "server restarts", "other replica")
SURVIVES: dict[str, dict[str, bool]] = {
    "execution": dict(zip(ENDS, (False, False, False, False), strict=True)),
    "request": dict(zip(ENDS, (False, False, False, False), strict=True)),
    "session": dict(zip(ENDS, (True, False, True, True), strict=True)),
    "server": dict(zip(ENDS, (True, True, False, False), strict=True)),
    "persistent": dict(zip(ENDS, (True, True, True, True), strict=True)),
}


class RequestScope(Generic[T]):
    """A typed value for the duration of one request: `trace = RequestScope(Trace)`, then `trace.get()` in middleware
    and tools. `make` creates the value. `sessions.install(server)` begins and ends the scope.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def get(self) -> T:
        """This request's value, created at its first use."""
        values = _scope().values
        if self not in values:
            values[self] = self._make()
        return cast("T", values[self])

    def set(self, value: T) -> None:
        """Set the value until the request ends."""
        _scope().values[self] = value

    def __call__(self) -> T:
        """For `Depends(trace)` and `Resolve(trace)`."""
        return self.get()


class ServerScope(Generic[T]):
    """A typed value of this process: `figures = ServerScope(Figures)`. Tools in threads may use it as well.

    `make` creates the value; `on_event` gets a `ServerCounted` with the scope's `name` for each `count`.
    """

    def __init__(self, make: Callable[[], T], *, name: str = "server", on_event: Sink | None = None) -> None:
        self._value = make()
        self._lock = threading.RLock()
        self._name = name
        self._sink = on_event

    def get(self) -> T:
        """A copy of the current value."""
        with self._lock:
            return copy.deepcopy(self._value)

    @contextmanager
    def edit(self) -> Generator[T]:
        """Change the value inside the block, one thread at a time; after an error inside, nothing is changed."""
        with self._lock:
            draft = copy.deepcopy(self._value)
            yield draft
            self._value = draft

    def count(self, name: str, by: int = 1) -> int:
        """Add `by` to the integer field `name` and report the event. Returns the new number."""
        with self._lock:
            before: Any = getattr(self._value, name, None)
            if type(before) is not int:
                raise UsageError(f"{name!r} is not an integer field of {type(self._value).__name__}")
            setattr(self._value, name, before + by)
            after = before + by
        if is_observed(self._sink):
            deliver(ServerCounted(time.time(), self._name, name, after), self._sink)
        return after

    def __call__(self) -> "ServerScope[T]":
        """For `Depends(figures)` and `Resolve(figures)`."""
        return self


@contextmanager
def nested_scope(**arguments: Any) -> Generator[None]:
    """The context of a nested call, which gets a copy of the request's scope.
    FastMCP's nested calls get it by the middleware; use it yourself around `MCPServer.call_tool`. `arguments` are the
    nested call's.
    """
    token = SCOPE.set(_scope().nested(arguments))
    try:
        yield
    finally:
        SCOPE.reset(token)


def _scope() -> Scope:
    scope = SCOPE.get()
    if scope is None:
        raise UsageError(
            "no request scope was begun by middleware here",
            remedy="call sessions.install(server), with tools=False if it needs no tools",
        )
    return scope
