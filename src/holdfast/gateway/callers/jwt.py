"""Verifies JSON Web Tokens: signature by the issuer's keys, algorithm, issuer, audience, times, scopes, claims.

The algorithm comes from the file and the key from the issuer, never from the token: a token names at most which of its
issuer's keys signed it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import jwt
from jwt.exceptions import PyJWTError

from holdfast.gateway.callers.keysets import KeySet
from holdfast.gateway.callers.verified import BadToken, Verified, principal_of
from holdfast.gateway.config.callers import Jwt

LONGEST_TOKEN = 16_384  # bytes: more than issuers make, less than decoding costs much


class JwtVerifier:
    """Verifies the tokens of several issuers."""

    def __init__(self, issuers: Sequence[Jwt]) -> None:
        self._issuers = {each.issuer: (each, KeySet(each.issuer, each.jwks)) for each in issuers}

    async def verify(self, token: str) -> Verified | None:
        """None for a token that is no JWT of these issuers. Raises `BadToken` for one that is not good."""
        if len(token) > LONGEST_TOKEN or token.count(".") != 2:
            return None
        try:
            header = jwt.get_unverified_header(token)
            unverified = jwt.decode(token, options={"verify_signature": False})
        except (PyJWTError, ValueError, RecursionError):
            return None
        issuer = unverified.get("iss")
        found = self._issuers.get(issuer) if isinstance(issuer, str) else None
        if found is None:
            raise BadToken(f"its issuer {issuer!r:.100} is none of the file's")
        settings, keys = found
        if header.get("alg") not in settings.algorithms:
            raise BadToken(f"its algorithm {header.get('alg')!r:.20} is none of {', '.join(settings.algorithms)}")
        if "crit" in header:
            raise BadToken("it has critical headers, and none is understood")
        id = header.get("kid")
        key = await keys.key(id if isinstance(id, str) else None)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(settings.algorithms),
                audience=list(settings.audience),
                issuer=settings.issuer,
                leeway=settings.leeway,
                options={"require": ["exp", "iss", "aud", "sub"], "verify_iat": False},
            )
        except (PyJWTError, ValueError, TypeError) as error:
            raise BadToken(f"{type(error).__name__}: {error}"[:300]) from None
        return _verified(settings, claims)

    async def close(self) -> None:
        for _, keys in self._issuers.values():
            await keys.close()


def _verified(settings: Jwt, claims: Mapping[str, Any]) -> Verified:
    for name, wanted in settings.claims.items():
        has = claims.get(name)
        values = cast("list[Any]", has) if isinstance(has, list) else [has]
        if wanted not in values:
            raise BadToken(f"its claim {name!r} is not {wanted!r}")
    client = claims.get("client_id", claims.get("azp")) if settings.principal == "subject+client" else None
    if settings.principal == "subject+client" and not isinstance(client, str):
        raise BadToken("it names no client (client_id or azp)")
    principal = principal_of(settings.issuer, str(claims["sub"]), client)
    scopes = scopes_in(claims)
    lacks = frozenset(settings.scopes) - scopes
    return Verified(principal, float(claims["exp"]) + settings.leeway, scopes, lacks, claims)


def scopes_in(claims: Mapping[str, Any]) -> frozenset[str]:
    """The scopes of a token: `scope` as text, or `scp` as a list, which some issuers use."""
    found = claims.get("scope", claims.get("scp"))
    if isinstance(found, str):
        return frozenset(found.split())
    return frozenset(str(each) for each in cast("list[Any]", found)) if isinstance(found, list) else frozenset()
