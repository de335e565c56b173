"""One session of the SDK between its own era and the server's.

It owns which era the session is of, and what the session gets of the server's notifications and questions.
"""

from collections.abc import Callable
from typing import Any

from holdfast.core.eras import Era
from holdfast.links.calls.handlers import OnNotification, OnRequest, Params
from holdfast.links.crossing.request import SessionRequest
from holdfast.links.crossing.session_2025 import OF_2025_SESSIONS, ParamHeaders, Session2025
from holdfast.links.crossing.session_2026 import Session2026
from holdfast.links.link import Link


class Crossing:
    """One session's. `learn` takes results of `tools/list`, `forget` the methods of notifications."""

    def __init__(
        self,
        link: Link,
        learn: Callable[[dict[str, Any]], None],
        forget: Callable[[str], None],
        param_headers: ParamHeaders,
    ) -> None:
        self.era: Era | None = None
        """The session's, once it has shown which."""
        self._link = link
        self._forget = forget
        self._deliver: OnNotification | None = None
        self._ask: OnRequest | None = None
        self._of_2025 = Session2025(link, learn, param_headers)
        self._of_2026 = Session2026(link)

    def attach(self, deliver: OnNotification, ask: OnRequest) -> None:
        """From now on, the session gets the server's notifications by `deliver` and its questions by `ask`."""
        self._deliver = self._of_2026.deliver = self._of_2026.listens.deliver = deliver
        self._ask = self._of_2025.on_question = ask
        self._of_2025.changes.is_open = True
        self._link.inbound.handle(self._on_request, self._on_notification)

    async def detach(self) -> None:
        """The session has ended: nothing of it stays."""
        self._link.inbound.handle(None, None)
        self._deliver = self._of_2026.deliver = self._of_2026.listens.deliver = None
        self._ask = self._of_2025.on_question = None
        self._of_2025.changes.close()
        await self._of_2026.parked.close()

    async def began(self, era: Era) -> None:
        """The session has made its handshake, in this era."""
        self.era = era
        if era is Era.Y2025:
            await self._of_2025.changes.start()

    def is_needed(self, is_2026: bool) -> bool:
        """Is a request of the session of another era than the server, or may it be?"""
        if is_2026 and self.era is None:
            self.era = Era.Y2026
        return is_2026 is not (self._link.era is Era.Y2026)

    async def request(self, request: SessionRequest) -> dict[str, Any]:
        """Answer a request of the session that `is_needed` named."""
        if self._link.era is Era.Y2026:
            return await self._of_2025.request(request)
        return await self._of_2026.request(request)

    async def crossed(self, request: SessionRequest, result: dict[str, Any]) -> dict[str, Any]:
        """A result that came from a server which has changed its era during the request."""
        if self._link.era is not Era.Y2026:
            return result
        if result.get("resultType") == "input_required":  # nothing was executed yet
            return await self.request(request)
        return self._of_2025.result(request.method, result)

    def has_notification(self, method: str) -> bool:
        """May a notification of the session be sent to the server?"""
        return not (self._link.era is Era.Y2026 and method in OF_2025_SESSIONS)

    def answered(self, method: str, params: Params) -> None:
        """A 2025 server has answered a request of a 2025 session."""
        if method in ("resources/subscribe", "resources/unsubscribe"):
            self._of_2025.changes.subscribed(method, (params or {}).get("uri"))

    def _on_notification(self, method: str, params: Params) -> None:
        self._forget(method)
        if self._deliver is None:
            return
        if self.era is Era.Y2026 and self._link.era is Era.Y2025:
            self._of_2026.take(method, params)
        elif self.era is Era.Y2025 and self._link.era is Era.Y2026:
            if (crossed := self._of_2025.notification(method, params)) is not None:
                self._deliver(*crossed)
        else:
            self._deliver(method, params)

    async def _on_request(self, method: str, params: Params, id: str | int) -> dict[str, Any]:
        if self.era is Era.Y2026:
            return await self._of_2026.ask(method, params)
        assert self._ask is not None
        return await self._ask(method, params, id)
