"""The duty of process 1: to reap processes that others left behind. In a container nobody else does.

It owns the look at our own zombies. It refuses to reap one that somebody here still waits for: whoever does has fetched
its status long before the second look.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS = 5.0  # between two looks: asyncio and the warden fetch the status of their own children in milliseconds
_PROC = Path("/proc")


class Orphans:
    """Of this process."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.reap()

    def reap(self) -> int:
        """Reap the zombies that were there the last time, too. Returns how many."""
        zombies = _zombies_of(os.getpid())
        due = zombies & self._seen
        for pid in due:
            with suppress(ChildProcessError):  # its parent code came for it after all
                os.waitpid(pid, os.WNOHANG)
        self._seen = zombies - due
        return len(due)


def _zombies_of(parent: int) -> set[int]:
    found: set[int] = set()
    for place in _PROC.iterdir() if _PROC.is_dir() else ():
        if not place.name.isdigit():
            continue
        try:
            # pid (name) state parent …; a name may hold spaces and parentheses.
            state, of = (place / "stat").read_text("latin-1").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):  # it ended while we looked
            continue
        if state == "Z" and int(of) == parent:
            found.add(int(place.name))
    return found
