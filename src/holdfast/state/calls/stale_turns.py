"""Turns and leases of dead processes that would last too long because the store's clock was set back.

A claim says when it ends by the store's clock. If that clock is set back by an hour while the holder dies, the claim
would stand for an hour more. A holder that lives renews its claim. One that does not do so for longer than it lasts,
by this process's own monotonic clock, is dead, and its claim is released. Turns last equally long in all processes; the
owner of a lease's claim says how long that one does.
"""

import math
import secrets
import time
from collections.abc import Collection
from contextlib import suppress

from holdfast.core.records import Key
from holdfast.errors import HoldfastError
from holdfast.stores.contract import Store

TURN = "turn-"
"""What the owner of a turn's claim begins with."""
LEASE = "lease-"
"""What the owner of a lease's claim begins with; its time to live in milliseconds follows."""
PATIENCE = 1.5  # of a turn's time to live; a holder renews at a third of it
_MOST = 1_000

_seen: dict[tuple[str, Key], tuple[int, float, float]] = {}
"""By store and name: token and end of a claim that lasts too long, and when it was seen first."""


def lease_owner(ttl: float) -> str:
    """The owner of the claim of another lease of so many seconds."""
    return f"{LEASE}{math.ceil(ttl * 1000)}-{secrets.token_hex(8)}"


def _lasts(owner: str, ttl: float) -> float | None:
    """How many seconds the claim of this owner lasts unless it is renewed; `ttl`, if it is a turn."""
    if owner.startswith(TURN):
        return ttl
    milliseconds = owner.removeprefix(LEASE).partition("-")[0] if owner.startswith(LEASE) else ""
    return int(milliseconds) / 1000 if milliseconds.isdecimal() else None


def lasts_too_long(retry_after: float | None, ttl: float) -> bool:
    """Whether a claim ends later than any turn that was renewed just now, if turns last `ttl` seconds."""
    return retry_after is not None and retry_after > ttl * PATIENCE


async def release_stale(store: Store, keys: Collection[Key], ttl: float) -> bool:
    """Release the turns and leases on these names that nobody renewed since they were first seen, long ago enough."""
    released = False
    for key in keys:
        with suppress(HoldfastError):
            claim = await store.holder(*key)
            lasts = _lasts(claim.owner, ttl) if claim is not None else None
            if claim is None or lasts is None:
                continue
            place, now = (store.url, key), time.monotonic()
            token, expires, since = _seen.get(place, (0, 0.0, now))
            if (token, expires) != (claim.token, claim.expires):
                if len(_seen) >= _MOST:
                    _seen.clear()
                _seen[place] = claim.token, claim.expires, now
            elif now - since > lasts * PATIENCE:
                del _seen[place]
                released |= await store.release(claim)
    return released
