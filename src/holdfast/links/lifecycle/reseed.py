"""A replaced session, as the hook sees it that may put back what was lost. It owns calls into the new session alone.

Everybody else's calls wait meanwhile. It refuses recovery of its own: a call that fails here fails the hook.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Send: TypeAlias = Callable[[str, Mapping[str, Any] | None, float | None], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Reseeding:
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
        """A call in the new session, ahead of everybody else's."""
        return await self._send(method, params, timeout)
