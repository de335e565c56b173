"""The link that 2026 clients without a session share at one backend: pinned to 2026, where a server keeps nothing.

It owns that one link and what is known of the backend's 2026 side. It does not come up in 2025, where all clients would
share one session.
"""

import time
from collections.abc import Callable

from holdfast.errors import Forbidden, Rejected, Unauthorized
from holdfast.gateway.backends.links.link import BackendLink

ONLY_2025_SECONDS = 300.0  # for which a backend's refusal of 2026 is believed, before a call asks again


class Stateless:
    """The stateless link of one backend, opened by the first call that needs it."""

    def __init__(self, make: Callable[[], BackendLink]) -> None:
        self._make = make
        self.backend_link: BackendLink | None = None
        self._only_2025_until = float("-inf")
        self.is_kept = False
        """Clients follow over it what this server announces."""

    async def get(self) -> BackendLink | None:
        """The link, up; None where the backend does not offer 2026."""
        if self.backend_link is None:
            if time.monotonic() < self._only_2025_until:
                return None
            self.backend_link = self._make()
        backend_link = self.backend_link
        backend_link.mark_used()
        if backend_link.link.handshake is None:
            try:
                await backend_link.link.open()
            except (Unauthorized, Forbidden):
                raise
            except Rejected:
                if self.backend_link is backend_link:
                    self._only_2025_until = time.monotonic() + ONLY_2025_SECONDS
                    await self.close("it does not offer 2026")
                return None
        return backend_link

    async def close_idle(self, idle: float) -> None:
        backend_link = self.backend_link
        if (
            backend_link is not None
            and not self.is_kept
            and time.monotonic() - backend_link.used > idle
            and not backend_link.link.statistics().in_flight
        ):
            await self.close("idle")

    async def close(self, reason: str) -> None:
        backend_link, self.backend_link = self.backend_link, None
        if backend_link is not None:
            await backend_link.close(reason, end=True)
