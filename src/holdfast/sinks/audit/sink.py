"""The sink that writes the audit trail, in a thread of its own.

A full disk is logged once. What could not be written is either dropped, counted, and told by a line of the trail itself
(`audit_gap`), or kept and tried again, while the gateway takes no calls (`when_full="block"`).
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from holdfast.events import Event
from holdfast.sinks.audit.chain import Chain
from holdfast.sinks.audit.entries import Entries, Entry
from holdfast.sinks.audit.verify import END
from holdfast.sinks.background import CLOSE_SECONDS, Background
from holdfast.sinks.shown import in_utc
from holdfast.version import __version__

log = logging.getLogger("holdfast.audit")

WhenFull: TypeAlias = Literal["block", "drop"]
QUEUED = 4_000  # events: of a few seconds, and with long values 64 MiB
AT_ONCE = 40  # lines written together: with long values they must fit into one commit of a store
RETRY_SECONDS = 0.5  # between two tries to write where a full disk blocks


class AuditWriter(Protocol):
    """Where lines go. Its methods are called in one thread."""

    def write(self, lines: bytes) -> None:
        """Write lines, all or none. Raises if that is not possible."""
        ...

    def close(self) -> None: ...


class AuditSink:
    """Writes one chain of lines."""

    name = "audit"

    def __init__(self, writer: AuditWriter, entries: Entries, *, when_full: WhenFull = "drop") -> None:
        self._writer = writer
        self._entries = entries
        self._blocks = when_full == "block"
        self._chain = Chain()
        self._closing = threading.Event()
        self._failing = False
        self._lost = 0
        """Events that were taken from the queue and could not be written."""
        self._reported = 0
        """Of those that were dropped, the ones that a line of the trail reports."""
        self._queue: Background[Event] = Background(
            "audit trail", self._work, most=QUEUED, at_once=AT_ONCE, drops=not self._blocks
        )

    @property
    def dropped(self) -> int:
        """Events that are not in the trail, because the queue was full or nothing could be written."""
        return self._queue.dropped + self._lost

    @property
    def is_crowded(self) -> bool:
        """Should no call begin for now, so that none goes unwritten?"""
        return self._blocks and self._queue.is_crowded

    def __call__(self, event: Event) -> None:
        if self._entries.takes(event):
            self._queue.put(event)

    def close(self) -> None:
        """Write what is queued, and the end of the chain."""
        timer = threading.Timer(CLOSE_SECONDS / 2, self._closing.set)  # a disk that stays full must not hold up the end
        timer.daemon = True
        timer.start()
        self._queue.close()
        timer.cancel()
        timer.join()
        self._closing.set()
        if self._chain.is_begun:
            self._write([{"at": in_utc(time.time()), "type": END}])
        self._writer.close()

    def _work(self, events: Sequence[Event]) -> None:
        if not self._write([self._entries.entry(event) for event in events]):
            self._lost += len(events)

    def _write(self, entries: Sequence[Entry]) -> bool:
        while True:
            mark, gap = self._chain.mark(), self.dropped - self._reported
            try:
                self._writer.write(b"".join(self._chain.line(entry) for entry in self._with_own(entries, gap)))
            except Exception as error:
                self._chain.back_to(mark)
                self._failed(error)
                if not self._blocks or self._closing.wait(RETRY_SECONDS):
                    return False
            else:
                self._reported += gap
                if self._failing:
                    self._failing = False
                    log.warning("the audit trail is written again")
                return True

    def _with_own(self, entries: Sequence[Entry], gap: int) -> list[Entry]:
        """The entries, behind what the trail reports of itself."""
        own: list[Entry] = []
        if not self._chain.is_begun:
            own.append({"at": in_utc(time.time()), "type": "audit_began", "version": __version__})
        if gap:
            own.append({"at": in_utc(time.time()), "type": "audit_gap", "dropped": gap})
        return [*own, *entries]

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            then = "calls wait until it can" if self._blocks else "what happens meanwhile is counted, not written"
            log.error("the audit trail can't be written (%s): %s", error, then)
