"""The argument of the reseed hook: the replaced session, and calls into the new one before all others.

A call that fails here fails the hook; there is no recovery in it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Send: TypeAlias = Callable[[str, Mapping[str, Any] | None, float | None], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class ReseedContext:
    """`kept_state`: the lost session had answered an unsafe call."""

    server: str
    old_session: str | None
    new_session: str | None
    generation: int
    kept_state: bool
    _send: Send = field(repr=False)

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send a request in the new session, before all other calls."""
        return await self._send(method, params, timeout)
