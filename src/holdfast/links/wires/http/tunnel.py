"""CONNECT: the request to a proxy to carry bytes to the server, and its answer."""

import asyncio
import re
from typing import cast

from holdfast.links.wires.http.failures import NotHttp, ProxyFailed
from holdfast.links.wires.http.route import Proxy, bracketed

HEAD_BYTES = 16 * 1024  # of a proxy's answer: a status and a few headers

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]{0,200})[^\r\n]*)?\r\n")


class Tunnel(asyncio.Protocol):
    """A connection to a proxy until the proxy has answered CONNECT."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = bytearray()
        self._size = 0
        self._transport: asyncio.Transport | None = None

    async def connect(self, host: str, port: int) -> None:
        """Request a tunnel to host and port. Raises `ProxyFailed` if the proxy refuses."""
        place = f"{bracketed(host)}:{port}"
        lines = [f"CONNECT {place} HTTP/1.1", f"host: {place}"]
        if self._proxy.authorization is not None:
            lines.append(f"proxy-authorization: {self._proxy.authorization}")
        assert self._transport is not None
        self._transport.write("".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii"))
        await self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answered.done():
            return  # a refusal's body
        self._received += data
        self._size += len(data)
        try:
            complete = self._read()
        except (ProxyFailed, NotHttp) as error:
            self._fail(error)
            return
        if complete:
            self._answered.set_result(None)

    def _read(self) -> bool:
        """Whether the proxy has agreed."""
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            status = _STATUS.match(bytes(self._received[: end + 4]))
            if status is None:
                break
            del self._received[: end + 4]
            number = int(status[1])
            if number >= 200:
                if not 200 <= number < 300:
                    raise refused(self._proxy, number, (status[2] or b"").decode("latin-1"))
                if self._received:  # a TLS server waits for the client: these bytes are the proxy's, or an attacker's
                    raise NotHttp(f"the proxy {self._proxy} sent more than its answer to CONNECT")
                return True
        if self._size > HEAD_BYTES:
            raise NotHttp(f"the proxy {self._proxy} sent over {HEAD_BYTES} bytes of headers to CONNECT")
        if bytes(self._received[:5]) != b"HTTP/"[: len(self._received)] or b"\r\n\r\n" in self._received:
            raise NotHttp(f"the answer of the proxy {self._proxy} to CONNECT is not HTTP")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            why = f": {exc}" if exc else ""
            self._fail(ProxyFailed(f"the proxy {self._proxy} closed the connection before it answered CONNECT{why}"))

    def _fail(self, error: Exception) -> None:
        self._answered.set_exception(error)
        self._answered.exception()  # the caller may be gone


def refused(proxy: Proxy, status: int, reason: str = "") -> ProxyFailed:
    """The error for a refusal by the proxy."""
    hint = "; give user and password in the proxy's URL: http://user:password@host:port" if status == 407 else ""
    shown = " ".join(f"{status} {reason}".split())
    return ProxyFailed(f"the proxy {proxy} refused: {shown}{hint}")
