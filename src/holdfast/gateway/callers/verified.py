"""A token that was verified: whose it is, what it allows, and until when."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.models import MAX_NAME, Principal


@dataclass(frozen=True, slots=True)
class Verified:
    """A token that is good."""

    principal: Principal
    expires: float
    """Seconds since 1970."""
    scopes: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    """Scopes that the file wants and it has not."""
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


class BadToken(Exception):
    """A token that is not good. The text is for the operator's log; the caller reads nothing of it."""


def principal_of(issuer: str, subject: str, client: str | None = None) -> Principal:
    """The name of a caller: who it is at which issuer, and with `client` also by which client it comes.

    Refreshing a token changes none of it. The issuer is one of the file, which has no `|`, so two callers never have
    one name.
    """
    name = "|".join((subject, client, issuer) if client is not None else (subject, issuer))
    if not subject or len(name) > MAX_NAME or not name.isprintable() or "|" in subject or "|" in (client or ""):
        raise BadToken("its subject can't be the name of a caller")
    return Principal(name)
