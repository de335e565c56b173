"""Who calls, and from where: static tokens, and the `Host` and `Origin` of a request.

A wrong token is answered like a missing one. Web pages of other sites are refused.
"""

import hashlib
import hmac
import ipaddress
import math
import secrets
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from holdfast.core.models import ANONYMOUS, Principal
from holdfast.errors import ConfigError
from holdfast.gateway.callers.metadata import ResourceMetadata
from holdfast.gateway.callers.verdicts import Verdicts, Verifier
from holdfast.gateway.callers.verified import Verified
from holdfast.gateway.config.callers import Auth, Jwt
from holdfast.gateway.config.settings import Listen, Settings

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def new_token() -> tuple[str, str]:
    """A new token, and its hash for the file."""
    token = f"hft_{secrets.token_urlsafe(32)}"
    return token, hash_of(token)


def hash_of(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()}"


def is_loopback(host: str) -> bool:
    if host in _LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(settings: Settings, insecure: bool) -> None:
    """Refuse to listen beyond this machine without auth, where everyone who reaches the port would be served."""
    if settings.auth == "none" and not is_loopback(settings.listen.host) and not insecure:
        raise ConfigError(
            f"listen.host {settings.listen.host!r} is not loopback, and there is no auth",
            remedy="add auth.tokens (`holdfast token new`), listen on 127.0.0.1, or give --insecure if something else "
            "guards the port",
        )
    _check_metrics(settings)


def _check_metrics(settings: Settings) -> None:
    """Refuse to show metrics beyond this machine to everyone."""
    metrics = settings.observe.metrics
    if metrics is None or metrics.token is not None:
        return
    where, host = "listen.host", settings.listen.host
    if metrics.port is not None:
        where, host = "observe.metrics.host", metrics.host
    if not is_loopback(host):
        raise ConfigError(
            f"{where} {host!r} is not loopback, and observe.metrics has no token",
            remedy="set observe.metrics.token (`holdfast token new` prints one with its hash), or give metrics a port "
            "on 127.0.0.1 with observe.metrics.port",
        )


def check_tokens(settings: Settings) -> None:
    """Refuse tokens that have all expired, with which no caller could be served."""
    auth = settings.auth
    tokens = auth.tokens if isinstance(auth, Auth) and not auth.jwt and auth.verifier is None else ()
    if tokens and all(token.expires is not None and token.expires.timestamp() <= time.time() for token in tokens):
        raise ConfigError(
            "every token in auth.tokens has expired, so no caller would be served",
            remedy="add one from `holdfast token new`, or give one of them a later `expires`",
        )


class Authenticator:
    """The callers, hosts and origins that a configuration lets in."""

    def __init__(self, auth: "Auth | str", listen: Listen, before: "Authenticator | None" = None) -> None:
        """`before` is the one of the configuration before this: what it knows of tokens counts if issuers are the
        same."""
        tokens = auth.tokens if isinstance(auth, Auth) else ()
        self.others = (auth.jwt, auth.verifier) if isinstance(auth, Auth) else ((), None)
        """Who else verifies tokens, as the file says."""
        shared = before is not None and before.others == self.others
        self.verdicts = before.verdicts if before is not None and shared else Verdicts(_verifiers(*self.others))
        scopes = sorted({scope for issuer in self.others[0] for scope in issuer.scopes})
        resource, issuers = (auth.resource, auth.issuers) if isinstance(auth, Auth) else (None, ())
        self.metadata = ResourceMetadata(resource, listen.path, issuers, scopes)
        self._open = not isinstance(auth, Auth)
        self._principals = {token.hash: Principal(token.principal) for token in tokens}
        self._expires = {token.hash: token.expires.timestamp() for token in tokens if token.expires is not None}
        self._hosts = frozenset(host.lower() for host in listen.hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in listen.origins)
        self._any_host = not is_loopback(listen.host) and not listen.hosts
        self._good_hosts: set[str] = set()

    def principal(self, authorization: str | None) -> Principal | None:
        """The caller whose token this is; None if there is none."""
        if self._open:
            return ANONYMOUS
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        presented = hash_of(token.strip())
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, presented):
                return principal if time.time() < self._expires.get(known, math.inf) else None
        verified = self.verdicts.known(token.strip())
        return verified.principal if verified is not None and not verified.lacks else None

    async def verified(self, authorization: str | None) -> Verified | None:
        """The caller whose token others have issued; None if it is not good."""
        scheme, _, token = (authorization or "").partition(" ")
        return await self.verdicts.verified(token.strip()) if scheme.lower() == "bearer" and token else None

    def lets_in(self, principal: Principal) -> bool:
        """Has this caller a token that is good now?"""
        now = time.time()
        if self.verdicts.has(principal):
            return True
        return self._open or any(
            known == principal and now < self._expires.get(hash, math.inf) for hash, known in self._principals.items()
        )

    def expired_between(self, start: float, end: float) -> bool:
        """Has any token expired in that time?"""
        moments = self._expires.values()
        return any(start <= moment <= end for moment in moments) or self.verdicts.expired_between(start, end)

    def host_is_fine(self, host: str | None) -> bool:
        """Is this `Host` served? A web page that resolves its own name to our address must not reach us under it."""
        if self._any_host or (host is not None and host in self._good_hosts):
            return True
        if host is None:
            return False
        name = _host_of(host)
        fine = name is not None and (is_loopback(name) or name in self._hosts or host.lower() in self._hosts)
        if fine and len(self._good_hosts) < 100:
            self._good_hosts.add(host)
        return fine

    def origin_is_fine(self, origin: str | None) -> bool:
        """May a web page of this origin call?"""
        if origin is None or origin.lower() in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            return parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")
        except ValueError:
            return False


def _verifiers(issuers: Sequence[Jwt], verifier: str | None) -> list[Verifier]:
    found: list[Verifier] = []
    if issuers:
        from holdfast.gateway.callers.jwt import JwtVerifier  # PyJWT is read only where it is used

        found.append(JwtVerifier(issuers))
    if verifier is not None:
        from holdfast.gateway.callers.plugin import PluginVerifier

        found.append(PluginVerifier(verifier))
    return found


def _host_of(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
