"""Requests under way, by the token that let them in: they end when the token is no longer valid.

Tokens are checked by `auth.py`, again for every open request when the configuration was reloaded or a token expired.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.core.models import Principal
from holdfast.gateway.auth import Authenticator
from holdfast.gateway.fronts.http.request import Request


class _Open(NamedTuple):
    principal: Principal
    authorization: str | None
    task: "asyncio.Task[object]"


class OpenRequests:
    """The requests that a front is answering."""

    def __init__(self) -> None:
        self._open: dict[Request, _Open] = {}
        self._counts: dict[Principal, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def count(self, principal: Principal) -> int:
        """How many requests of a caller are open."""
        return self._counts.get(principal, 0)

    @contextmanager
    def keep(self, request: Request, principal: Principal, authorization: str | None) -> Generator[None]:
        """Count a request as open while the block lasts, which the current task runs."""
        task = asyncio.current_task()
        assert task is not None
        self._open[request] = _Open(principal, authorization, task)
        self._counts[principal] = self.count(principal) + 1
        try:
            yield
        finally:
            del self._open[request]
            self._counts[principal] -= 1
            if not self._counts[principal]:
                del self._counts[principal]

    def end_refused(self, authenticator: Authenticator) -> int:
        """Cancel requests whose token would be refused now, or belongs to another caller now. Returns how many."""
        ended = 0
        for request, open in tuple(self._open.items()):
            if not request.revoked and authenticator.principal(open.authorization) != open.principal:
                request.revoke()
                open.task.cancel()
                ended += 1
        return ended
