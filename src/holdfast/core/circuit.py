"""A circuit: after too many failures in a row, calls to a server are held back. Runs on `lifecycle.CIRCUIT`.

It keeps the count and the times; the current time is an argument. Failures close together count once: fifty calls that
one restart cut, and their replays, are few failures, not a hundred.
"""

from dataclasses import dataclass

from holdfast.core.lifecycle import CIRCUIT, CircuitEvent, CircuitState

THRESHOLD = 8  # failures in a row
SPACING = 0.25  # seconds between two that count: with the threshold, two seconds, in which most restarts are over
REST = 1.0  # seconds until the first trial, doubled by each failed trial
REST_CAP = 5.0  # seconds: a server that is back should not wait longer for its first call, nor for a check


@dataclass
class Circuit:
    """The state of one server's circuit, shared by all links to it. A threshold of 0 never opens it."""

    threshold: int = THRESHOLD
    rest: float = REST
    spacing: float = SPACING
    state: CircuitState = CircuitState.CLOSED
    failures: int = 0
    opened_at: float = 0.0
    opens: int = 0
    last_failure: float = float("-inf")
    trial_since: float | None = None
    answers: int = 0
    """How many calls were answered so far, to see whether others were while one was not."""

    def refusal(self, now: float) -> float | None:
        """None if a call may go out now, else the seconds until one may. In half open, one trial at a time."""
        if self.state is CircuitState.CLOSED:
            return None
        if self.state is CircuitState.OPEN:
            left = self.opened_at + self._span() - now
            if left > 0:
                return left
            self._step(CircuitEvent.RESTED)
            self.trial_since = None
        if self.trial_since is not None and now - self.trial_since < REST_CAP:
            return self.rest
        self.trial_since = now
        return None

    def succeeded(self) -> None:
        """The server answered, whatever it said."""
        self.answers += 1
        if self.failures == 0 and self.state is CircuitState.CLOSED:
            return
        self._step(CircuitEvent.SUCCEEDED)
        if self.state is CircuitState.CLOSED:
            self.failures, self.opens, self.trial_since = 0, 0, None

    def failed(self, started: float, now: float) -> bool:
        """An attempt that began at `started` got no answer. True if that opened the circuit."""
        if started <= self.last_failure or now - self.last_failure < self.spacing:
            return False
        self.last_failure = now
        self.failures += 1
        before = self.state
        too_often = 0 < self.threshold <= self.failures
        event = CircuitEvent.FAILED_TOO_OFTEN if too_often else CircuitEvent.FAILED
        self._step(event)
        if self.state is CircuitState.OPEN and before is not CircuitState.OPEN:
            self.opened_at, self.trial_since = now, None
            self.opens += 1
            return True
        return False

    def gave_up(self) -> None:
        """A trial ended without a result, because its caller was cancelled."""
        self.trial_since = None

    def _span(self) -> float:
        return min(REST_CAP, self.rest * 2 ** min(self.opens - 1, 10))

    def _step(self, event: CircuitEvent) -> None:
        self.state = CIRCUIT.next(self.state, event)
