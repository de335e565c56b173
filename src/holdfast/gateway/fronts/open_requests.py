"""Requests that are being answered, by the token that let them in: they end when it is no longer valid.

It owns the record of who has what open. It refuses to judge tokens: `gateway/auth.py` does, again for every open
request when the configuration was read anew or a token has expired.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.core.models import Principal
from holdfast.gateway.auth import Authenticator
from holdfast.gateway.fronts.asgi import Request


class _Open(NamedTuple):
    principal: Principal
    authorization: str | None
    task: "asyncio.Task[object]"


class OpenRequests:
    """All of one front."""

    def __init__(self) -> None:
        self._open: dict[Request, _Open] = {}
        self._counts: dict[Principal, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def of(self, principal: Principal) -> int:
        return self._counts.get(principal, 0)

    @contextmanager
    def keep(self, request: Request, principal: Principal, authorization: str | None) -> Generator[None]:
        """Known as open inside the block, which the present task runs."""
        task = asyncio.current_task()
        assert task is not None
        self._open[request] = _Open(principal, authorization, task)
        self._counts[principal] = self.of(principal) + 1
        try:
            yield
        finally:
            del self._open[request]
            self._counts[principal] -= 1
            if not self._counts[principal]:
                del self._counts[principal]

    def end_refused(self, callers: Authenticator) -> int:
        """Cancel what was let in by a token that would be refused now, or that is another's now. Returns how many."""
        ended = 0
        for request, open in tuple(self._open.items()):
            if not request.revoked and callers.principal(open.authorization) != open.principal:
                request.revoked = True
                open.task.cancel()
                ended += 1
        return ended
