"""Small JSON documents of an issuer, read with a deadline and a bound."""

import asyncio
import json

from holdfast.errors import ConfigError
from holdfast.links.target import check_url, public_url

SECONDS = 5.0
DOCUMENT_BYTES = 256 * 1024


class FetchFailed(Exception):
    """A document could not be read; the text says why, for the operator's log."""


async def fetch_json(url: str, *, body: bytes | None = None, authorization: str | None = None) -> object:
    """The document at a URL; with a body, what a form that is posted there is answered."""
    from holdfast.links.wires.http.connection import Body  # the HTTP client loads at the first use
    from holdfast.links.wires.http.failures import FAILURES, describe
    from holdfast.links.wires.http.pool import Pool
    from holdfast.links.wires.http.route import Route

    headers = {"accept": "application/json", "accept-encoding": "identity"}
    if body is not None:
        headers["content-type"] = "application/x-www-form-urlencoded"
    if authorization is not None:
        headers["authorization"] = authorization
    pool = Pool(SECONDS, None)
    try:
        async with asyncio.timeout(SECONDS):
            verb, sent = ("GET", None) if body is None else ("POST", Body(body))
            async with await pool.request(verb, Route.to(check_url(url)), headers, sent) as response:
                raw = await response.read_up_to(DOCUMENT_BYTES)
    except ConfigError as error:
        raise FetchFailed(error.what) from error
    except FAILURES as error:
        raise FetchFailed(f"{public_url(url)}: {describe(error)}") from error
    finally:
        await pool.close()
    if response.status != 200:
        raise FetchFailed(f"{public_url(url)} answered {response.status}")
    if len(raw) > DOCUMENT_BYTES:
        raise FetchFailed(f"{public_url(url)} answered more than {DOCUMENT_BYTES} bytes")
    try:
        return json.loads(raw)
    except ValueError:
        raise FetchFailed(f"{public_url(url)} did not answer with JSON") from None
