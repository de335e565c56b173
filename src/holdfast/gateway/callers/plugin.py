"""A verifier of the operator's: any object with the SDK's `verify_token`, named as `package.module:object`."""

import logging
import time
from importlib import import_module
from typing import Any, Protocol, cast

from holdfast.errors import ConfigError
from holdfast.gateway.callers.verified import BadToken, Verified, principal_of

log = logging.getLogger("holdfast.gateway")

WITHOUT_EXPIRY = (
    60.0  # seconds for which a verdict counts on a token that names no end: then the verifier decides again
)


class TokenVerifier(Protocol):
    """What the SDK calls a `TokenVerifier`."""

    async def verify_token(self, token: str) -> Any: ...


class PluginVerifier:
    """Asks the operator's verifier."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._verifier = load_verifier(where)

    async def verify(self, token: str) -> Verified | None:
        """None for a token that it does not take. Raises `BadToken` if it fails, or names nobody."""
        try:
            found = await self._verifier.verify_token(token)
        except Exception as error:
            log.exception("auth.verifier %s raised", self._where)
            raise BadToken(f"the verifier raised {type(error).__name__}") from None
        if found is None:
            return None
        claims = cast("dict[str, Any]", found.claims or {})
        subject, issuer = found.subject or found.client_id, claims.get("iss")
        ends = found.expires_at
        if ends is not None and ends <= time.time():
            raise BadToken("it has expired")
        expires = time.time() + WITHOUT_EXPIRY if ends is None else float(ends)
        name = principal_of(str(issuer) if issuer is not None else self._where, str(subject or ""))
        return Verified(name, expires, frozenset(found.scopes or ()), claims=claims)

    async def close(self) -> None:
        """It belongs to its module."""


def load_verifier(where: str) -> TokenVerifier:
    """The object of that name."""
    module, _, name = where.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"auth.verifier {where!r} can't be imported: {error}", remedy="name an object as package.module:object"
        ) from None
    if isinstance(found, type) or not callable(getattr(found, "verify_token", None)):
        raise ConfigError(
            f"auth.verifier {where!r} has no method verify_token",
            remedy="name an instance of a TokenVerifier, not its class",
        )
    return found
