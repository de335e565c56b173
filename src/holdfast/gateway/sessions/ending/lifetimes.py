"""How long sessions live: the decision that one is over, by its own times or by those of its record.

It owns the difference between the store's clock and this process's: only the store says when a record expires.
"""

from holdfast.core.clock import Clock
from holdfast.core.models import Record
from holdfast.gateway.backends.links.memories import GRACE
from holdfast.gateway.config.settings import Sessions as Settings


def is_over(settings: Settings, idle: float, age: float) -> bool:
    """Is a session over that was not used for `idle` seconds, and began `age` seconds ago?"""
    return idle > settings.idle or age > settings.max_age


class Usage:
    """When one session began, was used, and was touched in the store, by the gateway's monotonic clock."""

    __slots__ = ("begun", "touched", "used")

    def __init__(self, now: float) -> None:
        self.begun = self.used = self.touched = now

    def restore(self, now: float, idle: float, age: float) -> None:
        """The times of a session that was taken from the store."""
        self.used, self.begun, self.touched = now - idle, now - age, float("-inf")

    def mark_used(self, now: float) -> None:
        self.used = now

    def take_touch(self, now: float, every: float) -> bool:
        """Must the session be touched in the store? Then it counts as touched."""
        if now - self.touched <= every:
            return False
        self.touched = now
        return True


class Lifetimes:
    """The lifetimes of one gateway's sessions."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._offset = 0.0
        """The store's time less ours."""

    def configure(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def spans(self) -> tuple[float, float]:
        """`idle` and `max_age` of a record. It outlives its session a little: the process that ends the session must
        still read what to end at the servers."""
        return self._settings.idle + GRACE, self._settings.max_age + GRACE

    @property
    def touch_every(self) -> float:
        """Seconds between two touches of a session in use."""
        return self._settings.idle / 10

    def learn(self, record: Record) -> None:
        """A record that the store has written just now."""
        self._offset = record.touched - self._clock.now()

    def ages(self, record: Record) -> tuple[float, float]:
        """Seconds since a record was touched, and since it was created."""
        now = self._clock.now() + self._offset
        return max(0.0, now - record.touched), max(0.0, now - record.created)

    def is_record_over(self, record: Record) -> bool:
        return is_over(self._settings, *self.ages(record))

    def is_over(self, usage: Usage, *, in_use: bool) -> bool:
        """Is a live session over? While it is in use, it is not idle."""
        now = self._clock.monotonic()
        return is_over(self._settings, 0.0 if in_use else now - usage.used, now - usage.begun)
