"""How many connections clients may hold. A new one replaces the one that has waited longest for a request.

A connection is refused only if every other one is being answered. When a connection is too slow, `uvicorn_protocol.py`
decides.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from holdfast.gateway.config.settings import ClientLimits

try:
    import resource
except ImportError:  # Windows has no such limit to ask for
    resource = None

LOOK_SOON = 0.05  # seconds until a check when much was written that a client has not taken
SHARE_OF_ONE = 4  # connections of one caller that take nothing may leave this part of `clients.total_bytes` unread
STALLED = 1.0  # seconds in which a client has read nothing
LOOK_SECONDS = 1.0  # between two checks, at most; a quarter of the shortest deadline, at least
FILES_FOR_CLIENTS = 3, 4  # of the files that the process may open: the rest is for the store, servers and programs


class Connection(Protocol):
    """What this module uses of a connection."""

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def owner(self) -> str | None:
        """The principal of its last request."""
        ...

    @property
    def taken_at(self) -> float:
        """When its client last took something, or had nothing to take."""
        ...

    def look(self, now: float) -> int:
        """Close it if the client is too slow. Returns the bytes that the client has not taken yet."""
        ...

    def cut(self, why: str) -> None:
        """Close it at once, whatever is on its way."""
        ...


class Connections:
    """All connections of one gateway."""

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self._all: dict[Connection, None] = {}
        self._waiting: dict[Connection, None] = {}
        """Connections without a request under way, the longest waiting first."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._all))

    def __repr__(self) -> str:
        return f"<Connections {len(self._all)} of {self.cap}, {len(self._waiting)} waiting>"

    @property
    def cap(self) -> int:
        return most_connections(self.limits)

    def limit_by(self, limits: ClientLimits) -> None:
        """Apply other settings, from the next check on."""
        self.limits = limits

    def add(self, connection: Connection) -> bool:
        """Count a new connection, and cut the one that has waited longest if there are too many. False: no place."""
        while len(self._all) >= self.cap:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.cut("a new connection needed its place")
        self._all[connection] = self._waiting[connection] = None
        if self._timer is None:
            self._look_later()
        return True

    def remove(self, connection: Connection) -> None:
        self._all.pop(connection, None)
        self._waiting.pop(connection, None)
        if not self._all and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def answers(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def waits(self, connection: Connection) -> None:
        if connection in self._all:
            self._waiting[connection] = None

    def look_soon(self) -> None:
        """Check soon: much was written to a client that takes it slowly."""
        if self._timer is not None and self._timer.when() - asyncio.get_running_loop().time() > LOOK_SOON:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(LOOK_SOON, self._look)

    def _look_later(self) -> None:
        limits = self.limits
        every = min(LOOK_SECONDS, limits.head / 4, limits.body / 4, limits.write / 4)
        self._timer = asyncio.get_running_loop().call_later(every, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        unsent = {connection: connection.look(now) for connection in tuple(self._all)}
        total, most = sum(unsent.values()), self.limits.total_bytes
        stalled: Counter[str | None] = Counter()
        for connection, size in unsent.items():
            if size and now - connection.taken_at >= STALLED:
                stalled[connection.owner] += size
        for connection in sorted(unsent, key=lambda each: -unsent[each]):
            size, owner = unsent[connection], connection.owner
            too_much = stalled[owner] > most // SHARE_OF_ONE and now - connection.taken_at >= STALLED
            if total > most or too_much:
                total -= size
                stalled[owner] -= size if too_much else 0
                connection.cut("clients leave more unread than clients.total_bytes, or than one caller's share of it")
            elif total <= most and not stalled:
                break
        self._timer = None
        if self._all:
            self._look_later()


def most_connections(limits: ClientLimits, files: Callable[[], int | None] | None = None) -> int:
    """The connections that settings and the limit of open files allow."""
    most_files = (files or _files)()
    if most_files is None:
        return limits.connections
    part, whole = FILES_FOR_CLIENTS
    return max(1, min(limits.connections, most_files * part // whole))


def most_of_one_caller(limits: ClientLimits) -> int:
    """The connections that one caller may have open; at least half are left for others."""
    return min(limits.per_principal, max(1, most_connections(limits) // 2))


def _files() -> int | None:
    if resource is None:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft
