"""Steering: a client that speaks both eras is offered 2025 alone where a backend keeps sessions, so that they hold.

Nothing in a probe tells such a client from one that speaks 2026 only: TypeScript's SDK sends the same bytes in its mode
`auto` and pinned. So those that speak 2026 only are known by their names.
"""

import fnmatch
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.eras import VERSIONS, Era
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.config.settings import Sessions

log = logging.getLogger("holdfast.gateway")

NAMES = 256  # of clients that were logged as steered; beyond that none is logged


class Steering:
    """Who is steered, by the settings and backends of the moment."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def refusal(
        self, settings: Sessions, backends: Iterable[Backend], info: Mapping[str, Any] | None, requested: str
    ) -> tuple[str, dict[str, Any]] | None:
        """Message and data of the -32022 that a client gets for its probe; None: it is told that we speak 2026."""
        if not settings.steer or settings.handles or settings.header is not None:
            return None
        if not any(backend.keeps_sessions and backend.policy.reuse == "session" for backend in backends):
            return None
        given = (info or {}).get("name")
        name = given if isinstance(given, str) else ""
        if any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in settings.steer_except):
            return None
        if name not in self._logged and len(self._logged) < NAMES:
            self._logged.add(name)
            log.info("client %r is steered to 2025; if it speaks 2026 only, see sessions.steer_except", name[:80])
        message = (
            "Unsupported protocol version: sessions are kept here by the 2025 era; a client that speaks 2026 only must "
            "be listed in the gateway's setting sessions.steer_except by its clientInfo.name"
        )
        return message, {"supported": list(VERSIONS[Era.Y2025]), "requested": requested}
