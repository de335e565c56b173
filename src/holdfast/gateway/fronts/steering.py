"""Steering: a client that speaks both eras is offered 2025 alone where a backend keeps sessions, so that they hold.

A probe does not show whether its client speaks 2026 only: TypeScript's SDK sends the same bytes in its mode `auto` and
pinned. So clients that speak 2026 only are listed by their names.
"""

import fnmatch
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.eras import VERSIONS, Era
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.config.settings import Sessions

log = logging.getLogger("holdfast.gateway")

NAMES = 256  # names of clients that are logged as steered; later ones are not logged


class Steering:
    """Decides which clients are steered."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def refusal(
        self, settings: Sessions, backends: Iterable[Backend], info: Mapping[str, Any] | None, requested: str
    ) -> tuple[str, dict[str, Any]] | None:
        """Message and data of the error that answers a client's probe; None if the client may use 2026."""
        if not settings.steer or settings.handles or settings.header is not None:
            return None
        if not any(backend.keeps_sessions and backend.policy.reuse == "session" for backend in _deciding(backends)):
            return None
        given = (info or {}).get("name")
        name = given if isinstance(given, str) else ""
        if any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in settings.steer_except):
            return None
        if name not in self._logged and len(self._logged) < NAMES:
            self._logged.add(name)
            log.info("client %r is steered to 2025; if it speaks 2026 only, add it to sessions.steer_except", name[:80])
        message = (
            "Unsupported protocol version: sessions are kept here by the 2025 era; a client that speaks 2026 only must "
            "be listed in the gateway's setting sessions.steer_except by its clientInfo.name"
        )
        return message, {"supported": list(VERSIONS[Era.Y2025]), "requested": requested}


def _deciding(backends: Iterable[Backend]) -> list[Backend]:
    """The backends that decide whether sessions are kept here. One that is down, and of which nothing is known, does
    not take 2026 from the clients of the others; where there is no other, it counts as one that keeps sessions."""
    known: list[Backend] = []
    unknown: list[Backend] = []
    for backend in backends:
        is_unknown = backend.catalogue is None and backend.entry.server.era != "2025"
        (unknown if is_unknown and backend.health.state == "down" else known).append(backend)
    return known or unknown
