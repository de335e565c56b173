"""Verdicts on tokens, kept by the token's hash until it expires, so that verifying costs once a token.

A request whose token has a verdict waits for nothing. Others wait for one verification of their token, however many
they are.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from holdfast.core.models import Principal
from holdfast.gateway.callers.verified import BadToken, Verified

log = logging.getLogger("holdfast.gateway")

KEPT = 20_000  # verdicts: some megabytes
UNDER_WAY = 1_000  # verifications at once


class Verifier(Protocol):
    """Verifies tokens of one kind."""

    async def verify(self, token: str) -> Verified | None:
        """None if it is none of this kind. Raises `BadToken`."""
        ...

    async def close(self) -> None: ...


class Verdicts:
    """Verified tokens of one gateway process."""

    def __init__(self, verifiers: Sequence[Verifier]) -> None:
        self._verifiers = verifiers
        self._known: OrderedDict[bytes, Verified] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[Verified | None]] = {}

    def known(self, token: str) -> Verified | None:
        """The verdict on a token that was verified and has not expired."""
        key = _key(token)
        verdict = self._known.get(key)
        if verdict is None:
            return None
        if verdict.expires <= time.time():
            del self._known[key]
            return None
        return verdict

    async def verified(self, token: str) -> Verified | None:
        """The verdict on any token; None if it is not good."""
        known = self.known(token)
        if known is not None or not self._verifiers:
            return known
        key = _key(token)
        task = self._under_way.get(key)
        if task is None:
            if len(self._under_way) >= UNDER_WAY:
                return None
            task = self._under_way[key] = asyncio.get_running_loop().create_task(self._verify(key, token))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def _verify(self, key: bytes, token: str) -> Verified | None:
        for verifier in self._verifiers:
            try:
                found = await verifier.verify(token)
            except BadToken as bad:
                log.info("a token was refused: %s", bad)
                return None
            if found is not None and found.expires > time.time():
                self._known[key] = found
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
                return found
        return None

    def has(self, principal: Principal) -> bool:
        """Has a caller a token that is good now?"""
        now = time.time()
        return any(each.principal == principal and each.expires > now for each in self._known.values())

    def expired_between(self, start: float, end: float) -> bool:
        """Has any token expired in that time?"""
        return any(start <= each.expires <= end for each in self._known.values())

    async def close(self) -> None:
        for task in tuple(self._under_way.values()):
            task.cancel()
        for verifier in self._verifiers:
            await verifier.close()


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
