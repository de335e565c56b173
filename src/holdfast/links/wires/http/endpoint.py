"""One HTTP endpoint: requests, redirects within its origin, and reading of answers that are not results.

It converts refusals and broken exchanges into `Seen`. Of JSON-RPC it knows only the error object.
"""

import email.utils
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import urljoin

from holdfast.core.verdicts import Broke, Seen, VerdictRule
from holdfast.links.codec import Decode, decode, decode_exactly, encode, encode_known
from holdfast.links.limits import Limits, too_large
from holdfast.links.target import HttpTarget, public_url
from holdfast.links.wires.base import Generation, Message, Reply, Resolved
from holdfast.links.wires.http.connection import Body
from holdfast.links.wires.http.failures import Broken, describe, where_it_broke
from holdfast.links.wires.http.pool import Pool, SharedPool
from holdfast.links.wires.http.response import Response
from holdfast.links.wires.http.route import Route, proxy_for

FOREIGN_BODY = 16 * 1024  # bytes read of a body that is not a result: enough for an error object or a page's title
LONGEST_RETRY_AFTER = 86_400.0  # seconds: a longer delay than a day is not about load
REDIRECTS = 3  # within the server's own origin: a missing slash, a moved path


class Endpoint:
    """The HTTP endpoint of one link."""

    def __init__(
        self,
        name: str,
        target: HttpTarget,
        limits: Limits,
        verdict_rules: Sequence[VerdictRule],
        shared: SharedPool | None = None,
        known_json: bool = False,
    ) -> None:
        self.name = name
        self.verdict_rules = verdict_rules
        self.limits = limits
        self._target = target
        self._shared = shared
        self.known_json = known_json
        self.decode: Decode = decode_exactly if known_json else decode
        self._pool: Pool | None = None
        self._route: Route | None = None
        self._proxy: str | None = None

    async def open(self, resolved: Resolved) -> None:
        assert resolved.url is not None
        self._proxy = proxy_for(resolved.url, self._target.proxy)
        self._route = Route.to(resolved.url, self._proxy)
        if self._shared is not None:
            self._pool = self._shared.get()
            return
        tls = self._target.tls.context(self.name) if self._target.tls is not None else None
        self._pool = Pool(self.limits.connect, tls)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and self._shared is None:
            await pool.close()

    def encode(self, message: Message) -> bytes:
        body = encode_known(message, self.name) if self.known_json else encode(message, self.name)
        if len(body) > self.limits.message_bytes:
            raise too_large(len(body), self.limits.message_bytes, self.name)
        return body

    async def request(self, verb: str, headers: Mapping[str, str], body: Body | None) -> Response:
        """Send one request, following redirects within the server's origin."""
        route = self._route
        for turn in range(REDIRECTS + 1):
            pool = self._pool
            if pool is None or route is None:
                break
            response = await pool.request(verb, route, headers, body)
            if response.status not in (307, 308) or turn == REDIRECTS:
                return response
            try:
                there = Route.to(urljoin(route.url, response.headers.get("location", "")), self._proxy)
            except (ValueError, KeyError):
                return response  # redirected without a location, or to a URL that is not HTTP
            if there == route or there.origin != route.origin:  # another origin must not get our credentials
                return response
            response.release()
            if response.status == 308 or there.url.rstrip("/") == route.url.rstrip("/"):
                self._route = there  # moved permanently, or a missing slash that would redirect every request
            route = there
        raise Broken("the link is closed")

    async def read_status(self, response: Response, generation: Generation) -> Reply:
        """Read an answer of which only the status matters, or one that is not a success."""
        if 200 <= response.status < 300:
            size = 0
            async for chunk in response.iter_any():
                size += len(chunk)
                if size > FOREIGN_BODY:
                    response.close()
                    break
            return Reply(session=response.headers.get("mcp-session-id"))
        return await self.read_refusal(response, generation)

    async def read_refusal(self, response: Response, generation: Generation, id: object = None) -> Reply:
        """Read an answer that is not a success:
        its status, headers and body. If the body is the result of the request with this id, it is returned as such.
        """
        status = response.status
        raw = b""
        async for chunk in response.iter_any():
            raw += chunk
            if len(raw) > FOREIGN_BODY:
                break
        if id is not None and (answer := _result_of(raw, id, self.decode)) is not None:
            return Reply(answer, session=response.headers.get("mcp-session-id"))
        code, text, data = _error_of(raw, self.decode)
        where = Broke.REDIRECTED if 300 <= status < 400 else Broke.NOWHERE
        if where is Broke.REDIRECTED:
            text = f"redirected ({status}) to {_place(response.headers.get('location'))}"
        seen = Seen(
            era=generation.era,
            session_sent=generation.session is not None,
            broke=where,
            status=status,
            code=code,
            text=text,
            retry_after=_retry_after(response.headers.get("retry-after")),
            data=data,
            challenge=response.headers.get("www-authenticate"),
        )
        return Reply(seen=seen, what=f"HTTP {status}{f': {text}' if text else ''}")


def _place(location: str | None) -> str:
    """The target of a redirect, without the query, which may contain a token."""
    if not location:
        return "nowhere"
    return public_url(location)[:200] if "://" in location else re.split(r"[?#;@]", location)[0][:200]


def failed(generation: Generation, error: BaseException, sent: bool, answering: bool) -> Reply:
    """The reply for an exchange that ended with an exception."""
    broke = where_it_broke(error, sent, answering)
    seen = Seen(era=generation.era, session_sent=generation.session is not None, broke=broke)
    return Reply(seen=seen, what=describe(error))


def _result_of(raw: bytes, id: object, decode: Decode) -> Message | None:
    try:
        message = decode(raw)
    except ValueError:
        return None
    known = cast("Message", message) if isinstance(message, dict) else {}
    return known if known.get("id") == id and isinstance(known.get("result"), dict) else None


def _error_of(raw: bytes, decode: Decode) -> tuple[int | None, str, object]:
    """Code, message and data of a JSON-RPC error; or None and the beginning of the text."""
    try:
        message = decode(raw)
    except ValueError:
        message = None
    error = cast("dict[str, Any]", message).get("error") if isinstance(message, dict) else None
    if isinstance(error, dict):
        known = cast("dict[str, Any]", error)
        code = known.get("code")
        if isinstance(code, int):
            return code, str(known.get("message", "")), known.get("data")
    text = " ".join(raw[:300].decode("utf-8", "replace").split())
    return None, text, None


def _retry_after(value: str | None) -> float | None:
    """The seconds of a Retry-After header, given as a number or a date."""
    if value is None:
        return None
    try:
        seconds = float(value)
        return min(max(0.0, seconds), LONGEST_RETRY_AFTER) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        return min(max(0.0, seconds), LONGEST_RETRY_AFTER)
    except (ValueError, OverflowError, TypeError):
        return None
