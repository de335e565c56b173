"""Who calls, and from where: static tokens, the `Host` and the `Origin` of a request.

It owns the answer to "whose request is this?". It refuses a wrong token like none at all, and a web page of a stranger.
"""

import hashlib
import hmac
import ipaddress
import math
import secrets
import time
from urllib.parse import urlsplit

from holdfast.core.models import ANONYMOUS, Principal
from holdfast.errors import ConfigError
from holdfast.gateway.config.settings import Auth, Listen, Settings

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def new_token() -> tuple[str, str]:
    """A token and its hash for the file."""
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
    """Without auth, anybody who reaches the port is served: so only this machine may reach it."""
    if settings.auth == "none" and not is_loopback(settings.listen.host) and not insecure:
        raise ConfigError(
            f"listen.host {settings.listen.host!r} is not loopback, and there is no auth",
            remedy="add auth.tokens (`holdfast token new`), listen on 127.0.0.1, or say --insecure if others guard it",
        )


class Authenticator:
    """The callers that a configuration knows."""

    def __init__(self, auth: "Auth | str", listen: Listen) -> None:
        tokens = auth.tokens if isinstance(auth, Auth) else ()
        self._open = not isinstance(auth, Auth)
        self._principals = {token.hash: Principal(token.principal) for token in tokens}
        self._expires = {token.hash: token.expires.timestamp() for token in tokens if token.expires is not None}
        self._hosts = frozenset(host.lower() for host in listen.hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in listen.origins)
        self._any_host = not is_loopback(listen.host) and not listen.hosts
        self._good_hosts: set[str] = set()

    def principal(self, authorization: str | None) -> Principal | None:
        """Whose token this is; None for nobody's."""
        if self._open:
            return ANONYMOUS
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        presented = hash_of(token.strip())
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, presented):
                return principal if time.time() < self._expires.get(known, math.inf) else None
        return None

    def expired_between(self, start: float, end: float) -> bool:
        """Has a token expired in that time?"""
        return any(start <= moment <= end for moment in self._expires.values())

    def host_is_fine(self, host: str | None) -> bool:
        """A page that resolves its own name to our address must not reach us under that name."""
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
        if origin is None or origin.lower() in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            return parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")
        except ValueError:
            return False


def _host_of(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
