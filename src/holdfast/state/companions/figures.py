"""Statistics of a server's companions: steps, iterations, refusals by phase, time by phase, converged work.

Each process writes a record of its own, at most every five seconds; a process that is killed loses what it counted
since then.
"""

import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import cast

from holdfast.core.models import Record
from holdfast.core.values import JSON, members
from holdfast.errors import HoldfastError
from holdfast.stores.contract import Store

FIGURES = "state-figures"
FLUSH_SECONDS = 5.0
IDLE = 30 * 86_400.0


@dataclass(slots=True)
class Figures:
    """The counts."""

    steps: int = 0
    iterations: int = 0
    converged: int = 0
    refusals: dict[str, int] = field(default_factory=dict[str, int])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, other: JSON) -> None:
        """The counts of another process."""
        given = members(other)
        for name in ("steps", "iterations", "converged"):
            value = given.get(name)
            setattr(self, name, getattr(self, name) + (value if isinstance(value, int) else 0))
        for phase, count in members(given.get("refusals")).items():
            self.refusals[phase] = self.refusals.get(phase, 0) + (count if isinstance(count, int) else 0)
        for phase, spent in members(given.get("seconds")).items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + (spent if isinstance(spent, (int, float)) else 0.0)


class Counting:
    """The statistics of one kind of companion in this process."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.figures = Figures()
        self._name = f"{kind}/{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._flushed = float("-inf")
        self._changed = False

    def refused(self, phase: str) -> None:
        self.figures.refusals[phase] = self.figures.refusals.get(phase, 0) + 1
        self._changed = True

    def stepped(self, phase: str, iterations: int, converged: bool, seconds: float | None) -> None:
        figures = self.figures
        figures.steps += 1
        figures.iterations += iterations
        figures.converged += converged
        if seconds is not None:
            figures.seconds[phase] = figures.seconds.get(phase, 0.0) + max(0.0, seconds)
        self._changed = True

    @property
    def due(self) -> bool:
        return self._changed and time.monotonic() - self._flushed > FLUSH_SECONDS

    async def flush(self, store: Store) -> None:
        """Write them to the store, where `holdfast state stats` adds them up."""
        if not self._changed:
            return
        self._flushed = time.monotonic()
        with suppress(HoldfastError):  # another time
            record = await store.get(FIGURES, self._name)
            data = cast("JSON", {"kind": self.kind, **asdict(self.figures)})
            await store.commit(
                Record(FIGURES, self._name, data=data, idle=IDLE), expect=0 if record is None else record.rev
            )
            self._changed = False


async def totals(store: Store) -> dict[str, Figures]:
    """The statistics of all processes, by kind of companion."""
    found: dict[str, Figures] = {}
    after: str | None = None
    while True:
        page = await store.scan(kind=FIGURES, after=after)
        for record in page.records:
            found.setdefault(str(members(record.data).get("kind")), Figures()).add(record.data)
        after = page.next
        if after is None:
            return found
