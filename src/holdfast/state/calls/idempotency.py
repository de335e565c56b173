"""Answers of calls that may be repeated, stored in the session's record under the caller's idempotency key."""

import hashlib
import json
from typing import Any

from holdfast.core.models import ANONYMOUS, Principal
from holdfast.core.values import JSON
from holdfast.errors import Conflict, LimitReached, UsageError

ONCE = 64  # answers stored for one session
ONCE_BYTES = 128 * 1024  # of all of them together; a record holds little else besides the state


def digest(key: str, *parts: object) -> str:
    """A short name for a key of any length."""
    text = json.dumps([key, *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def key_name(key: str, shared_with: Principal | None) -> str:
    """The name under which an answer is stored. In a session that callers share, each has keys of its own."""
    if shared_with is None:
        return digest(key)
    if shared_with == ANONYMOUS:
        raise UsageError(
            "an idempotency key needs an authenticated caller here: all callers share this session, and another "
            "caller's answer under the same key would be given",
            remedy="call it without a key, or authenticate",
        )
    return digest(key, shared_with)


def kept(answered: dict[str, Any], once: dict[str, JSON], label: str, id: str) -> dict[str, Any]:
    """The answers to store: the newest, including the new ones, as many as fit."""
    if any(name in answered for name in once):
        raise Conflict(f"{label}: a call with this idempotency key was answered meanwhile", id=id)
    known = list({**answered, **once}.items())[-ONCE:]
    while len(known) > 1 and len(json.dumps(known)) > ONCE_BYTES:
        del known[0]
    size = len(json.dumps(known))
    if size > ONCE_BYTES:
        raise LimitReached(
            f"{label}: its answer of {size:,} bytes is too large to be stored for a repeated call",
            limit=ONCE_BYTES,
            actual=size,
            remedy="call it without an idempotency key, or return a smaller answer",
        )
    return dict(known)
