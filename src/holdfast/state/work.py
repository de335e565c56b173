"""What a call has in hand while middleware stands around it: sessions to be saved after it, and the request's scope.

It owns the two context variables. It refuses to save what nobody changed, and anything at all after an error.
"""

import copy
from contextvars import ContextVar
from typing import Any

from holdfast.core.values import JSON
from holdfast.state.identity import Found
from holdfast.state.session import Session


class Work:
    """The sessions that one call has taken, saved together with its result."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.taken: dict[str, Session[Any]] = {}
        self.loaded: dict[Found, Session[Any]] = {}
        """Sessions that were read before the call takes them."""

    def take(self, session: Session[Any]) -> Session[Any]:
        """The same session twice in one call is one."""
        known = self.taken.get(session.handle)
        if known is None:
            known = self.taken[session.handle] = session
            session.open_draft()
        return known

    async def save(self, label: str, once: dict[str, JSON] | None = None) -> None:
        for session in self.taken.values():
            await session.save(label, once)


class Scope:
    """The values of one request, of which a nested call gets copies."""

    def __init__(self, request: object, values: dict[object, Any]) -> None:
        self.request = request
        self.values = values

    def nested(self) -> "Scope":
        return Scope(self.request, {scope: copy.deepcopy(value) for scope, value in self.values.items()})


WORK: ContextVar[Work | None] = ContextVar("holdfast_work", default=None)
SCOPE: ContextVar[Scope | None] = ContextVar("holdfast_scope", default=None)
