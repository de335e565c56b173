"""The public keys of an issuer: from a file or a URL, read again when a token names a key that is not known.

Reading has a deadline, and is done once however many requests wait for it. An issuer that is down for a while changes
nothing for tokens whose keys are known.
"""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any, cast

from jwt import PyJWK
from jwt.exceptions import PyJWTError

from holdfast.gateway.callers.fetching import FetchFailed, fetch_json
from holdfast.gateway.callers.verified import BadToken

log = logging.getLogger("holdfast.gateway")

WAIT_SECONDS = 0.8  # that a request waits for keys: its answer comes within a second in any case
MAX_AGE = 600.0  # seconds after which known keys are read again, beside requests
PAUSE = 10.0  # seconds between two readings: tokens with made-up keys must not make us a load on the issuer
KEYS = 100  # of one issuer
_PATHS = ("/.well-known/openid-configuration", "/.well-known/oauth-authorization-server")


class KeySet:
    """The keys of one issuer. `jwks` is a URL or a path; None: the issuer's metadata names it."""

    def __init__(self, issuer: str, jwks: str | None) -> None:
        self._issuer = issuer
        self._jwks = jwks
        self._keys: dict[str | None, PyJWK] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._failing = False

    async def key(self, id: str | None) -> PyJWK:
        """The key of this id; without an id, the only key. Raises `BadToken`."""
        known = self._known(id)
        if known is not None:
            if time.monotonic() - self._read_at > MAX_AGE:
                self._read_soon()
            return known
        if time.monotonic() - self._read_at > PAUSE:
            reading = self._read_soon()
            await asyncio.wait((reading,), timeout=WAIT_SECONDS)
            known = self._known(id)
        if known is None:
            raise BadToken(f"no key {id!r:.60} of {self._issuer} is known")
        return known

    def _known(self, id: str | None) -> PyJWK | None:
        if id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(id)

    def _read_soon(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="read keys")
            self._reading.add_done_callback(lambda _: setattr(self, "_reading", None))
        return self._reading

    async def _read(self) -> None:
        try:
            document = await self._document()
        except (FetchFailed, OSError, ValueError) as error:
            self._read_at = time.monotonic()
            if not self._failing:
                self._failing = True
                log.warning("the keys of %s can't be read: %s", self._issuer, error)
            return
        found: dict[str | None, PyJWK] = {}
        keys = cast("dict[str, Any]", document).get("keys") if isinstance(document, dict) else None
        for each in cast("list[Any]", keys if isinstance(keys, list) else [])[:KEYS]:
            if isinstance(each, dict) and (key := _key_of(cast("dict[str, Any]", each))) is not None:
                found[key.key_id] = key
        self._keys, self._read_at = found, time.monotonic()
        if self._failing or not found:
            log.warning("%d keys of %s were read", len(found), self._issuer)
        self._failing = False

    async def _document(self) -> object:
        if self._jwks is not None and "://" not in self._jwks:
            return json.loads(await asyncio.to_thread(Path(self._jwks).read_text))
        return await fetch_json(self._jwks or await self._discovered())

    async def _discovered(self) -> str:
        failed: FetchFailed | None = None
        for path in _PATHS:
            try:
                found = await fetch_json(self._issuer.rstrip("/") + path)
            except FetchFailed as error:
                failed = failed or error
                continue
            metadata = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
            url = metadata.get("jwks_uri")
            if metadata.get("issuer") != self._issuer:
                raise FetchFailed(f"its metadata is that of another issuer, {metadata.get('issuer')!r:.100}")
            if isinstance(url, str):
                return url
        raise failed or FetchFailed("its metadata names no jwks_uri")

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))


def _key_of(raw: dict[str, Any]) -> PyJWK | None:
    """A public key for signatures; others are left out. A secret one among them would be the issuer's mistake."""
    if raw.get("use") not in (None, "sig") or raw.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    try:
        return PyJWK.from_dict(raw)
    except (PyJWTError, ValueError, TypeError):
        return None
