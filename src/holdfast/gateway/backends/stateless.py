"""The link that 2026 clients without a session share at one backend: pinned to 2026, where nothing is kept for anybody.

It owns that one link and what is known of the backend's 2026 side. It refuses to come up in 2025, where a session would
be everybody's.
"""

import time
from collections.abc import Callable

from holdfast.errors import Forbidden, Rejected, Unauthorized
from holdfast.gateway.backends.link import Back

ONLY_2025_SECONDS = 300.0  # for which a backend's refusal of 2026 is believed, before a call asks again


class Stateless:
    """Opened by the first call that wants it."""

    def __init__(self, make: Callable[[], Back]) -> None:
        self._make = make
        self.back: Back | None = None
        self._only_2025_until = float("-inf")

    async def get(self) -> Back | None:
        """The link, up; None where the backend does not offer 2026."""
        if self.back is None:
            if time.monotonic() < self._only_2025_until:
                return None
            self.back = self._make()
        back = self.back
        back.used = time.monotonic()
        if back.link.greeting is None:
            try:
                await back.link.open()
            except (Unauthorized, Forbidden):
                raise
            except Rejected:
                if self.back is back:
                    self._only_2025_until = time.monotonic() + ONLY_2025_SECONDS
                    await self.close("it does not offer 2026")
                return None
        return back

    async def close_idle(self, idle: float) -> None:
        back = self.back
        if back is not None and time.monotonic() - back.used > idle and not back.link.statistics().in_flight:
            await self.close("idle")

    async def close(self, reason: str) -> None:
        back, self.back = self.back, None
        if back is not None:
            await back.close(reason, end=True)
