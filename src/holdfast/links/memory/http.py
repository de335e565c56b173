"""A memory that is a small JSON document at a URL, read and written with GET and PUT, with ETags where available.

Without ETags the last save wins. There are no claims, so every link opens the server's stream, and the server's 409
decides which one reads it.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from holdfast.core.handshake import Saved, legal_session_id
from holdfast.errors import ConfigError, Conflict, StoreDown
from holdfast.links.codec import decode, encode
from holdfast.links.memory.store import MemoryEntry, bare
from holdfast.links.target import Headers, Resolvable, check_headers, check_url, public_url

if TYPE_CHECKING:
    from holdfast.links.wires.http.pool import Pool

SECONDS = 10.0  # for one GET or PUT: a memory that is slower than a handshake is useless
DOCUMENT_BYTES = 256 * 1024  # enough for a handshake with long instructions; a larger document is not ours


class HttpMemory:
    """`HttpMemory("https://state.example/links/{run}/{server}", run="r1", server="github")`.

    `headers` may be an async callable: it is called before each request.
    """

    def __init__(
        self,
        template: str,
        *,
        headers: Headers | Resolvable | None = None,
        seconds: float = SECONDS,
        **names: str,
    ) -> None:
        try:
            url = template.format_map({name: quote(value, safe="") for name, value in names.items()})
        except (KeyError, ValueError, IndexError) as error:
            raise ConfigError(
                f"the URL template {public_url(template)!r} can't be filled: {error}",
                remedy=f"it may use {', '.join('{' + name + '}' for name in names) or 'no names'}",
            ) from None
        self._url = check_url(url)
        self._headers = headers if callable(headers) else dict(check_headers(headers or {}))
        self._seconds = seconds
        self._pool: Pool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tag: str | None = None

    async def load(self) -> MemoryEntry:
        status, tag, body = await self._do("GET", None, {})
        self._tag = tag
        if status in (404, 410):
            return MemoryEntry(None, "")
        if status != 200:
            raise self._down(f"GET answered {status}")
        if body is None:
            what = f"the document at {public_url(self._url)} is over {DOCUMENT_BYTES} bytes and will be replaced"
            return MemoryEntry(None, tag, lost=True, unreadable=what)
        try:
            document = decode(body) if body.strip() else None
            if document is None:  # an ended session on a server that does not delete
                return MemoryEntry(None, tag)
            if isinstance(document, str) and legal_session_id(document):
                return MemoryEntry(bare(document), tag)
            return MemoryEntry(Saved.from_json(document), tag)
        except ValueError as error:
            what = f"the document at {public_url(self._url)} is not a saved session and will be replaced: {error}"
            return MemoryEntry(None, tag, lost=True, unreadable=what[:300])

    async def save(self, saved: Saved, token: object) -> object:
        self._tag = await self._put(encode(saved.to_json(), public_url(self._url)), token)
        return self._tag

    async def _put(self, body: bytes, token: object) -> str | None:
        condition = {"if-none-match": "*"} if token == "" else {"if-match": token} if isinstance(token, str) else {}
        status, tag, _ = await self._do("PUT", body, condition)
        if status in (409, 412):
            raise Conflict(f"another link saved {public_url(self._url)} first", store=public_url(self._url))
        if not 200 <= status < 300:
            raise self._down(f"PUT answered {status}")
        return tag

    async def forget(self) -> None:
        condition = {"if-match": self._tag} if self._tag else {}
        status, _, _ = await self._do("DELETE", None, condition)
        if status in (409, 412):
            return  # another link has saved its session there
        if status >= 500 and status != 501:
            raise self._down(f"DELETE answered {status}")
        if status >= 400 and status not in (404, 410):
            with suppress(Conflict):
                await self._put(b"null", self._tag)

    @property
    def touch_every(self) -> float | None:
        return None

    async def touch(self) -> None:
        pass

    async def claim_stream(self, seconds: float) -> bool:
        return True

    async def release_stream(self) -> None:
        pass

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _do(
        self, verb: str, body: bytes | None, extra: Mapping[str, str]
    ) -> tuple[int, str | None, bytes | None]:
        """Status, ETag and body; None for a body that is too large."""
        from holdfast.links.wires.http.connection import Body  # the HTTP client loads at the first use
        from holdfast.links.wires.http.failures import FAILURES, describe
        from holdfast.links.wires.http.pool import Pool
        from holdfast.links.wires.http.route import Route

        own = check_headers(await self._headers()) if callable(self._headers) else self._headers
        headers = {**own, **extra, "accept": "application/json", "accept-encoding": "identity"}
        if body is not None:
            headers["content-type"] = "application/json"
        loop = asyncio.get_running_loop()
        if self._pool is None or self._loop is not loop:  # the pool of a closed event loop can't be used
            self._pool, self._loop = Pool(self._seconds, None), loop
        try:
            async with asyncio.timeout(self._seconds):
                request = self._pool.request(verb, Route.to(self._url), headers, None if body is None else Body(body))
                async with await request as response:
                    raw = await response.read_up_to(DOCUMENT_BYTES)
        except FAILURES as error:
            raise self._down(describe(error)) from error
        tag = response.headers.get("etag")
        # A weak tag can't be used for a conditional write, so it counts as none.
        strong = None if tag is None or tag.startswith("W/") else tag
        return response.status, strong, None if len(raw) > DOCUMENT_BYTES else raw

    def _down(self, why: str) -> StoreDown:
        return StoreDown(f"the memory at {public_url(self._url)} failed: {why}"[:300], store=public_url(self._url))
