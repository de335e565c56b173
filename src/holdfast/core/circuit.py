"""A circuit breaker: after too many failures in a row, calls to a server are rejected for a while.

Its states are those of `lifecycle.CIRCUIT`. It keeps the count and the times; the current time is an argument. Failures
close together count once: fifty calls that were interrupted by one restart, and their replays, count as a few failures,
not as a hundred.
"""

from dataclasses import dataclass

from holdfast.core.lifecycle import CIRCUIT, CircuitEvent, CircuitState

THRESHOLD = 8  # failures in a row
SPACING = 0.25  # seconds between two failures that count: in all about two seconds, longer than most restarts take
REST = 1.0  # seconds until the first trial call; each failed trial doubles it
REST_CAP = 5.0  # seconds: the longest time before a server that is back gets a trial call or a check


@dataclass
class Circuit:
    """The circuit of one server, shared by all links to it. A threshold of 0 disables it."""

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
    """The number of calls answered so far. A call that got no answer compares it to see whether others did."""

    def refusal(self, now: float) -> float | None:
        """None if a call may be sent now, else the seconds until one may. Half open allows one trial at a time."""
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
        """Record that the server answered, with a result or an error."""
        self.answers += 1
        if self.failures == 0 and self.state is CircuitState.CLOSED:
            return
        self._step(CircuitEvent.SUCCEEDED)
        if self.state is CircuitState.CLOSED:
            self.failures, self.opens, self.trial_since = 0, 0, None

    def failed(self, started: float, now: float) -> bool:
        """Record that an attempt begun at `started` got no answer. Returns True if that opened the circuit."""
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
        """Record that a trial ended without a result because its caller was cancelled."""
        self.trial_since = None

    def _span(self) -> float:
        return min(REST_CAP, self.rest * 2 ** min(self.opens - 1, 10))

    def _step(self, event: CircuitEvent) -> None:
        self.state = CIRCUIT.next(self.state, event)
