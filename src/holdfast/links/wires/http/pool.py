"""Connections to one server, and the reading of what went wrong with one. The door to aiohttp, which knows proxies.

It owns TLS, the choice between our own client and aiohttp's, and the translation of exceptions into where an exchange
broke. It refuses to write on a pooled socket whose other end has already closed: such a request was never sent.
"""

import asyncio
import os
import select
import socket
import ssl
import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection

from holdfast.core.outcome import Broke
from holdfast.errors import ConfigError
from holdfast.links.target import HttpTarget
from holdfast.links.wires.http.client import PLAIN, Body, NotHttp, Pool, Response

KEEP_ALIVE = 60.0  # seconds an idle connection is kept; servers close theirs after five to seventy-five
LARGE_BODY = 1024 * 1024  # bytes from which aiohttp warns about a body that is given whole


class _Payload(aiohttp.BytesPayload):
    """A body for aiohttp that tells the link's own when it goes out."""

    def __init__(self, body: Body) -> None:
        self._body = body
        if len(body.value) < LARGE_BODY:
            super().__init__(body.value, content_type="application/json")
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it is in memory either way
            super().__init__(body.value, content_type="application/json")

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._body.sent = True
        await super().write_with_length(writer, content_length)


class Connector(aiohttp.TCPConnector):
    """A pool that looks at a used socket before it gives it out again."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)  # pyright: ignore[reportUnknownMemberType]
        self._used: WeakSet[object] = WeakSet()

    async def connect(self, req: ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is not None and protocol not in self._used:
                self._used.add(protocol)
                return connection
            if not _readable(connection):
                return connection
            # An idle server has nothing to say, so this is its end of the connection closing. The loop, blocked for
            # longer than the server's keep-alive, has just not read it yet.
            connection.close()


def _readable(connection: Connection) -> bool:
    transport = connection.transport
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None:
        return transport is None
    number = socket.fileno()
    if number < 0:
        return True
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([number], [], [], 0)[0])


def open_pool(connect_seconds: float, tls: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """A pool for one link. No cookies (a session is not a browser), no redirects, no limit on parallel connections:
    a call that waits for our answer to a server's question must never wait for a connection that it blocks itself."""
    connector = Connector(
        limit=0,
        keepalive_timeout=KEEP_ALIVE,
        ssl=tls if tls is not None else True,
        use_dns_cache=True,
        ttl_dns_cache=10,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
        skip_auto_headers=("Content-Type",),
        max_field_size=64 * 1024,
    )


Answer: TypeAlias = aiohttp.ClientResponse | Response


class HttpPool:
    """The connections of a link, or of several. Our own client; where a proxy stands between, aiohttp's."""

    def __init__(self, connect_seconds: float, tls: ssl.SSLContext | None) -> None:
        self._connect = connect_seconds
        self._tls = tls
        self._own = Pool(connect_seconds, tls)
        self._proxied: aiohttp.ClientSession | None = None

    @property
    def closed(self) -> bool:
        return self._own.closed

    async def request(
        self, verb: str, url: str, headers: Mapping[str, str], body: Body | None, proxy: str | None
    ) -> Answer:
        if proxy is None:
            return await self._own.request(verb, url, headers, body)
        if self._proxied is None:
            self._proxied = open_pool(self._connect, self._tls)
        data = None if body is None else _Payload(body)
        # Ours writes characters as bytes of Latin-1, aiohttp as UTF-8: an event id keeps its bytes this way.
        headers = {
            name: value if value.isascii() else value.encode("latin-1").decode("utf-8", "replace")
            for name, value in headers.items()
        }
        return await self._proxied.request(verb, url, data=data, headers=headers, allow_redirects=False, proxy=proxy)

    async def close(self) -> None:
        await self._own.close()
        proxied, self._proxied = self._proxied, None
        if proxied is not None:
            await proxied.close()


class SharedPool:
    """Connections that many links to one server use together. Whoever made it closes it, after those links."""

    def __init__(self, target: HttpTarget, name: str, connect_seconds: float) -> None:
        self._target = target
        self._name = name
        self._connect = connect_seconds
        self._pool: HttpPool | None = None

    def get(self) -> HttpPool:
        if self._pool is None or self._pool.closed:
            tls = self._target.tls
            self._pool = HttpPool(self._connect, tls.context(self._name) if tls is not None else None)
        return self._pool

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()


def proxy_for(url: str, setting: str | None) -> str | None:
    """The proxy to use: as set, else the environment's variables, `NO_PROXY` included."""
    if setting is not None:
        if setting and urlsplit(setting).scheme not in ("http", "https"):
            raise ConfigError("proxy= is not an http:// or https:// URL", phase="resolve")
        return setting or None
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy is None or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def where_it_broke(error: BaseException, body_sent: bool, answering: bool) -> Broke:
    """Where an exchange broke, from the exception and from how far it had come."""
    if not body_sent:
        return Broke.CONNECT
    if isinstance(error, TimeoutError):
        return Broke.NO_ANSWER_IN_TIME
    if isinstance(error, aiohttp.ClientResponseError | NotHttp):
        return Broke.NOT_AN_ANSWER  # bytes that are not HTTP
    return Broke.IN_ANSWER if answering else Broke.AFTER_SEND


def describe(error: BaseException) -> str:
    """A driver's exception in a few words, without the request."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error}"[:300]
    if isinstance(error, ssl.SSLError):
        return _describe_tls(error)[:300]
    within: object = getattr(error, "os_error", None)  # of aiohttp, where there is a proxy
    if isinstance(within, ssl.SSLError):
        return _describe_tls(within)[:300]
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the server's certificate is not trusted: {error.certificate_error}"[:300]
    if isinstance(error, socket.gaierror):
        return f"the host name does not resolve: {error}"[:300]
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the host name does not resolve: {error.os_error}"[:300]
    if isinstance(error, aiohttp.ClientConnectorError):
        return (error.os_error.strerror or str(error.os_error))[:300]
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy refused: {error.status} {error.message}"[:300]
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection"
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "no answer in time" if isinstance(error, aiohttp.ClientError) else str(error) or "no answer in time"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    if isinstance(error, aiohttp.InvalidURL):
        return "the URL is malformed"  # its own words are the whole of it
    return (str(error) or type(error).__name__)[:300]


_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"})


def _describe_tls(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    return (
        f"what answered is not TLS ({reason}): {PLAIN}" if reason in _NOT_TLS else f"the TLS handshake failed: {reason}"
    )


FAILURES: tuple[type[BaseException], ...] = (aiohttp.ClientError, OSError, TimeoutError, ValueError, RuntimeError)
"""What a request can raise. RuntimeError and ValueError: a closed pool, a header that aiohttp refuses."""


def same_origin(url: str, location: str) -> bool:
    """May a redirect be followed without telling credentials to somebody else?"""
    here, there = urlsplit(url), urlsplit(location)
    return (here.scheme, here.netloc) == (there.scheme, there.netloc)


def header(headers: Mapping[str, str], name: str) -> str:
    """A header without parameters, in lower case."""
    return headers.get(name, "").partition(";")[0].strip().lower()
