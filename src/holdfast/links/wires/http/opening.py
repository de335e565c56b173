"""Opening a connection: TCP, a proxy's tunnel, TLS."""

import asyncio
import ssl
from collections.abc import Callable
from functools import cache

from holdfast.links.wires.http.connection import Connection
from holdfast.links.wires.http.failures import PLAIN, Broken, ProxyFailed, describe
from holdfast.links.wires.http.route import Proxy, Route
from holdfast.links.wires.http.tunnel import Tunnel


class Opening:
    """One attempt to open a connection along a route."""

    def __init__(self, route: Route, tls: ssl.SSLContext | None, make: Callable[[], Connection]) -> None:
        self._route = route
        self._own_tls = tls
        self._make = make
        self._waits_for = "connection"
        self._secures = False
        """The TLS handshake with the server is under way."""

    async def open(self, seconds: float) -> Connection:
        """Open the connection. On an error, nothing was sent to the server."""
        try:
            async with asyncio.timeout(seconds):
                proxy = self._route.proxy
                return await (self._direct() if proxy is None else self._through(proxy))
        except TimeoutError as error:
            hint = f"; {PLAIN}" if self._secures else ""
            raise TimeoutError(f"no {self._waits_for} within {seconds:g} s{hint}") from error
        except (ConnectionResetError, ConnectionAbortedError) as error:
            if not self._secures:
                raise
            raise Broken(f"the server closed the connection during the TLS handshake; {PLAIN}") from error

    async def _direct(self) -> Connection:
        route, tls = self._route, None
        if route.scheme == "https":
            tls = self._expect_tls()
        _, connection = await asyncio.get_running_loop().create_connection(
            self._make, route.host, route.port, ssl=tls, server_hostname=route.host if tls else None
        )
        return connection

    async def _through(self, proxy: Proxy) -> Connection:
        loop = asyncio.get_running_loop()
        self._waits_for = f"connection to the proxy {proxy}"
        tls = self._tls() if proxy.scheme == "https" else None
        make = (lambda: Tunnel(proxy)) if self._route.tunnel else self._make
        try:
            transport, protocol = await loop.create_connection(
                make, proxy.host, proxy.port, ssl=tls, server_hostname=proxy.host if tls else None
            )
        except OSError as error:
            raise ProxyFailed(f"the proxy {proxy} could not be reached: {describe(error)}") from error
        if not isinstance(protocol, Tunnel):
            return protocol
        try:
            self._waits_for = f"answer to CONNECT from the proxy {proxy}"
            await protocol.connect(self._route.host, self._route.port)
            connection, tls = self._make(), self._expect_tls()
            secure = await loop.start_tls(transport, connection, tls, server_hostname=self._route.host)
            if secure is None:
                raise Broken("the server closed the connection during the TLS handshake")
            connection.connection_made(secure)
        except BaseException:
            transport.abort()
            raise
        return connection

    def _expect_tls(self) -> ssl.SSLContext:
        self._waits_for, self._secures = "TLS", True
        return self._tls()

    def _tls(self) -> ssl.SSLContext:
        return self._own_tls or _default_tls()


@cache
def _default_tls() -> ssl.SSLContext:
    """The default SSL context, created once: creating one takes 20 ms and 700 KB."""
    return ssl.create_default_context()
