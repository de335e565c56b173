"""The fixture of each test of the suite: an open store, a clock that it can set, and names that no other test uses."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.core.clock import Clock, ManualClock
from holdfast.core.models import Principal, Record
from holdfast.core.values import JSON
from holdfast.stores.contract import Store

DEADLINE = 60.0  # seconds for one test; none should need a tenth of it

_S = TypeVar("_S", bound="Contract")


class Contract:
    """The base class of each part. `open` is called once per test, and again for a second handle on the same data."""

    def open(self, clock: Clock) -> AbstractAsyncContextManager[Store]:
        raise NotImplementedError(f"{type(self).__name__} must define how to open its store: def open(self, clock)")


@dataclass
class Given:
    """A store at the start of a test."""

    store: Store
    clock: ManualClock
    again: Callable[[], AbstractAsyncContextManager[Store]]
    """Another handle on the same data, as another process would have it."""
    kind: str = field(default_factory=lambda: f"suite-{secrets.token_hex(6)}")

    async def create(
        self,
        id: str = "a",
        data: JSON = None,
        *,
        principal: str = "alice",
        idle: float | None = None,
        max_age: float | None = None,
        entries: tuple[JSON, ...] = (),
    ) -> Record:
        record = Record(self.kind, id, Principal(principal), data, idle=idle, max_age=max_age)
        return await self.store.commit(record, expect=0, entries=entries)

    async def get(self, id: str = "a", *, dead: bool = False) -> Record:
        record = await self.store.get(self.kind, id, dead=dead)
        assert record is not None, f"{self.kind}/{id} is absent"
        return record


def contract(promise: str) -> Callable[[Callable[[_S, Given], Awaitable[None]]], Callable[[_S], None]]:
    """Turn an async method into a pytest method. `promise` is the entry of tests/requirements.toml that it checks."""

    def wrap(test: Callable[[_S, Given], Awaitable[None]]) -> Callable[[_S], None]:
        def run(self: _S) -> None:
            async def main() -> None:
                clock = ManualClock()
                async with asyncio.timeout(DEADLINE), self.open(clock) as store:
                    await test(self, Given(store, clock, lambda: self.open(clock)))

            asyncio.run(main())

        # Not functools.wraps: pytest would unwrap it and treat `given` as a fixture.
        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__dict__["promise"] = promise
        return run

    return wrap


async def refused(kind: type[BaseException], call: Awaitable[object]) -> Any:
    """Return the error that the call raised, which must be of this kind."""
    try:
        result = await call
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, but the call returned {result!r}")
