"""A small HTTP/1.1 client for links.

It keeps connections for reuse. It never writes to a kept connection whose other end has already closed, so such a
request counts as not sent.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping

from holdfast.links.target import HttpTarget
from holdfast.links.wires.http.connection import Body, Connection
from holdfast.links.wires.http.failures import Broken
from holdfast.links.wires.http.opening import Opening
from holdfast.links.wires.http.response import Response
from holdfast.links.wires.http.route import Route
from holdfast.links.wires.http.tunnel import refused

KEEP_ALIVE = 60.0  # seconds for which an idle connection is kept; servers close theirs after five to seventy-five


class Pool:
    """Connections by route.
    Their number is not limited: a call must not wait for a connection held by a call that waits for it.
    """

    def __init__(self, connect_seconds: float, tls: ssl.SSLContext | None) -> None:
        self._connect_seconds = connect_seconds
        self._tls = tls
        self._idle: dict[tuple[object, ...], list[Connection]] = {}
        self._all: set[Connection] = set()
        self._pruning: asyncio.TimerHandle | None = None
        self.closed = False

    async def request(self, verb: str, route: Route, headers: Mapping[str, str], body: Body | None) -> Response:
        """Send one request; returns when the answer's head has arrived. Headers are encoded as Latin-1."""
        if self.closed:
            raise Broken("the link is closed")
        lines = [f"{verb} {route.begin}"]
        lines.extend(f"{name}: {value}\r\n" for name, value in headers.items())
        lines.append(f"content-length: {len(body.value)}\r\n\r\n" if body is not None else "\r\n")
        head = "".join(lines).encode("latin-1", "strict")
        breaks = route.lines + len(headers) + 1 + (body is not None)
        if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
            raise ValueError("a header has a line break or a NUL")
        connection = self._take(route.key)
        if connection is None:
            connection = await self._open(route)
        response = await connection.exchange(head, body)
        if response.status == 407 and route.proxy is not None and not route.tunnel:
            response.close()
            raise refused(route.proxy, 407, "Proxy Authentication Required")
        return response

    def _take(self, key: tuple[object, ...]) -> Connection | None:
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()
            if time.monotonic() - connection.idle_since < KEEP_ALIVE and not connection.stale:
                return connection
            connection.close()
        return None

    async def _open(self, route: Route) -> Connection:
        opening = Opening(route, self._tls, lambda: Connection(self, route))
        connection = await opening.open(self._connect_seconds)
        if self.closed:
            connection.close()
            raise Broken("the link is closed")
        self._all.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Take back a connection that can be used again."""
        if self.closed:
            connection.close()
            return
        self._idle.setdefault(connection.key, []).append(connection)
        if self._pruning is None:
            self._pruning = asyncio.get_running_loop().call_later(KEEP_ALIVE, self._prune)

    def _prune(self) -> None:
        """Close connections that have been idle for too long, even if no further request comes."""
        self._pruning = None
        oldest = time.monotonic() - KEEP_ALIVE
        for idle in self._idle.values():
            while idle and idle[0].idle_since <= oldest:
                idle.pop(0).close()
        if any(self._idle.values()) and not self.closed:
            self._pruning = asyncio.get_running_loop().call_later(KEEP_ALIVE / 4, self._prune)

    def forget(self, connection: Connection) -> None:
        """Remove a connection that can't be used any more."""
        self._all.discard(connection)
        idle = self._idle.get(connection.key)
        if idle and connection in idle:
            idle.remove(connection)

    async def close(self) -> None:
        self.closed = True
        if self._pruning is not None:
            self._pruning.cancel()
        for connection in tuple(self._all):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # sockets are closed in the event loop's next iteration


class SharedPool:
    """A pool shared by many links to one server. Whoever created it closes it, after those links."""

    def __init__(self, target: HttpTarget, name: str, connect_seconds: float) -> None:
        self._target = target
        self._name = name
        self._connect_seconds = connect_seconds
        self._pool: Pool | None = None

    def get(self) -> Pool:
        if self._pool is None or self._pool.closed:
            tls = self._target.tls
            self._pool = Pool(self._connect_seconds, tls.context(self._name) if tls is not None else None)
        return self._pool

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
