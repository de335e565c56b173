"""Whether one backend is up, as calls and checks have shown, and when it may be tried again.

It owns the error that a caller gets while the backend is down.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from holdfast.core.clock import Clock
from holdfast.core.models import Principal
from holdfast.core.retry import backoff
from holdfast.errors import CircuitOpen, HoldfastError, NoBackend
from holdfast.events import BackendChanged, BackendFailed, Event
from holdfast.gateway.failure_log import FailureLog

log = logging.getLogger("holdfast.gateway")

LONGEST_PAUSE = 60.0  # seconds between two tries to reach a backend that is down

State: TypeAlias = Literal["unknown", "up", "down"]


class BackendHealth:
    """The health of one backend. `emit` takes events; `on_change` is called when it goes up or down."""

    def __init__(
        self, name: str, clock: Clock, *, emit: Callable[[Event], None], on_change: Callable[[], None]
    ) -> None:
        self._name = name
        self._clock = clock
        self._emit = emit
        self._on_change = on_change
        self.state: State = "unknown"
        self.since = clock.now()
        self.why: str | None = None
        self.failures = FailureLog(f"backend {name!r}", name)
        self.next_try = 0.0
        self._tries = 0

    def __repr__(self) -> str:
        return f"<BackendHealth {self._name} {self.state}>"

    @property
    def resting(self) -> bool:
        """It is down, and the pause before the next try is not over."""
        return self.state == "down" and time.monotonic() < self.next_try

    def note(self, error: HoldfastError | None, session: str | None = None, *, caller: Principal | None = None) -> None:
        """Record that the backend was reached (`error=None`), for `caller` if there is one, or why it was not."""
        if error is None:
            self.failures.clear(caller)
            self._set("up")
            return
        self.failures.add(error)
        self._emit(BackendFailed(time.time(), self._name, session, error.what))
        if not self.resting and not isinstance(error, CircuitOpen):  # many calls may fail in one pause, or not be tried
            self._tries += 1
            self.next_try = time.monotonic() + backoff(self._tries, 0.5, base=0.5, cap=LONGEST_PAUSE)
        self._set("down", error.what)

    def note_refusal(self, error: HoldfastError, session: str | None, caller: Principal, *, shows_up: bool) -> None:
        """Record that the backend refused one caller, or failed at what that caller sent, which says nothing of others.
        `shows_up`: no check will find out that it is there, so the refusal counts as the sign of it."""
        self.failures.add_own(error, caller)
        self._emit(BackendFailed(time.time(), self._name, session, error.what))
        if shows_up:
            self._set("up")

    def end_pause(self) -> None:
        """Where no check can find out whether the backend is still down, the next call does, after the pause."""
        if self.state == "down" and not self.resting:
            self._set("unknown", self.why)

    def _set(self, state: State, why: str | None = None) -> None:
        before, self.state, self.why = self.state, state, why
        if state == "up":
            if self._tries:
                log.warning("backend %r is up again", self._name, extra={"backend": self._name})
            self._tries = 0
        if state != before:
            self.since = self._clock.now()
            self._on_change()
            self._emit(BackendChanged(time.time(), self._name, state, why))

    def unavailable(self, error: HoldfastError | None = None) -> NoBackend:
        """The error for a call that could not reach the backend."""
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        state = f"is down since {since}" if self.state == "down" else "could not be reached for this call"
        why = error.what if error is not None else self.why
        rest = error.retry_after if error is not None else None
        left = max(0.0, self.next_try - time.monotonic())
        if rest is not None:  # the time of an open circuit is more exact than the pause of the checks
            left = rest if isinstance(error, CircuitOpen) else max(left, rest)
        return NoBackend(
            f"backend {self._name!r} {state}" + (f": {why}" if why else ""),
            server=self._name,
            phase="call",
            retry_after=round(left, 1),
            remedy="nothing was executed; try again later",
        )
