"""Answers of calls that may be repeated, kept in the session's record under the caller's idempotency key."""

import hashlib
import json
from typing import Any

from holdfast.core.models import ANONYMOUS, Principal
from holdfast.core.values import JSON
from holdfast.errors import Conflict, LimitReached, UsageError

ONCE = 64  # answers kept of one session
ONCE_BYTES = 128 * 1024  # of them together: a record holds little more than that and the state


def digest(key: str, *parts: object) -> str:
    """A key of any length as a short name."""
    text = json.dumps([key, *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def key_name(key: str, shared_with: Principal | None) -> str:
    """The name under which an answer is kept. In a session that callers share, each has keys of its own."""
    if shared_with is None:
        return digest(key)
    if shared_with == ANONYMOUS:
        raise UsageError(
            "an idempotency key needs an authenticated caller here: this session is everyone's, and another "
            "caller's answer under the same key would be given",
            remedy="call it without a key, or authenticate",
        )
    return digest(key, shared_with)


def kept(answered: dict[str, Any], once: dict[str, JSON], label: str, id: str) -> dict[str, Any]:
    """The answers to keep, with the new ones: the newest, as many as there is room for."""
    if any(name in answered for name in once):
        raise Conflict(f"{label}: a call with this idempotency key was answered meanwhile", id=id)
    known = list({**answered, **once}.items())[-ONCE:]
    while len(known) > 1 and len(json.dumps(known)) > ONCE_BYTES:
        del known[0]
    size = len(json.dumps(known))
    if size > ONCE_BYTES:
        raise LimitReached(
            f"{label}: its answer of {size:,} bytes is too large to be kept for a repeated call",
            limit=ONCE_BYTES,
            actual=size,
            remedy="call it without an idempotency key, or answer less",
        )
    return dict(known)
