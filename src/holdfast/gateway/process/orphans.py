"""The duty of process 1: reap processes whose parents have ended. In a container no other process does.

A child that this process itself waits for is not reaped: its status has been fetched long before the second check.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS = 5.0  # between two checks: asyncio and the warden fetch the status of their own children in milliseconds
_PROC = Path("/proc")


class Orphans:
    """The orphans that became children of this process."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    async def watch(self) -> None:
        """Reap for as long as the process runs."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.reap()

    def reap(self) -> int:
        """Reap the zombies that were there at the last check, too. Returns how many."""
        zombies = _zombies_of(os.getpid())
        due = zombies & self._seen
        for pid in due:
            with suppress(ChildProcessError):  # the code that started it has fetched its status after all
                os.waitpid(pid, os.WNOHANG)
        self._seen = zombies - due
        return len(due)


def _zombies_of(parent: int) -> set[int]:
    pids: set[int] = set()
    for place in _PROC.iterdir() if _PROC.is_dir() else ():
        if not place.name.isdigit():
            continue
        try:
            # pid (name) state parent …; a name may hold spaces and parentheses.
            state, of = (place / "stat").read_text("latin-1").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):  # it ended meanwhile
            continue
        if state == "Z" and int(of) == parent:
            pids.add(int(place.name))
    return pids
