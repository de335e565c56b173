"""One request in one generation: given its era's envelope, sent, and cancelled as its era prescribes.

It assigns request ids (strings with a random prefix, so that links that share a session never use the same one) and
progress tokens. It does not interpret the answer.
"""

import asyncio
import itertools
import secrets
from collections.abc import Mapping
from typing import Any

from holdfast.core.eras import Era, stamp_2026, unstamp
from holdfast.core.verdicts import Broke, Seen, judge
from holdfast.links.background import BackgroundTasks, CancelReason, cancelling
from holdfast.links.calls.errors import error_for
from holdfast.links.calls.handlers import CallHandlers, OnProgress, Params
from holdfast.links.calls.inbound import Inbound
from holdfast.links.lifecycle.phase import LinkPhase
from holdfast.links.limits import Limits
from holdfast.links.settings import CurrentSettings
from holdfast.links.trace import traced, traced_headers
from holdfast.links.wires.base import Generation, Message, Patience, Reply, Resumption

NO_HEADERS: Mapping[str, str] = {}
CANCELLED = CancelReason("the caller was cancelled")


class Exchanger:
    """One link's requests."""

    def __init__(
        self,
        name: str,
        settings: CurrentSettings,
        phase: LinkPhase,
        inbound: Inbound,
        background: BackgroundTasks,
        limits: Limits,
    ) -> None:
        self._name = name
        self._settings = settings
        self._phase = phase
        self._inbound = inbound
        self._background = background
        self._limits = limits
        self._prefix = f"{secrets.token_hex(4)}-"
        self._ids = itertools.count(1)
        self._cancellations: set[asyncio.Task[Reply]] = set()
        """Requests being sent, over wires that keep order."""

    def abandon(self) -> None:
        """Drop what belongs to a closed event loop."""
        self._cancellations.clear()

    def new_id(self) -> str:
        """An id for a request."""
        return f"{self._prefix}{next(self._ids)}"

    async def exchange(
        self,
        generation: Generation,
        method: str,
        params: Params,
        headers: Mapping[str, str],
        patience: Patience,
        on_progress: OnProgress | None = None,
        id: str | int | None = None,
        handlers: CallHandlers | None = None,
        resumption: Resumption | None = None,
    ) -> Reply:
        """Send a request. Raises only the caller's own cancellation, or an error about the request itself."""
        if self._cancellations:
            # The server reads in order: what the caller sends after it has given up a call must not overtake the call.
            left = None if patience.until is None else max(0.0, patience.until - asyncio.get_running_loop().time())
            await asyncio.wait(tuple(self._cancellations), timeout=left)
        if id is None:
            id = self.new_id()
        message = self._message(generation, id, method, params, on_progress is not None)
        self._inbound.begin(id, patience, on_progress)
        try:
            reply = await generation.wire.send(
                generation,
                message,
                traced_headers(headers),
                patience,
                self._inbound.receiver(generation, handlers, patience),
                resumption,
            )
        except asyncio.CancelledError as error:
            if cancelling():
                if resumption is None or generation.wire.owns_server:  # else it may be resumed
                    why = error.args[0] if error.args and isinstance(error.args[0], CancelReason) else CANCELLED
                    self._cancel(generation, id, why)
                raise
            # The wire was closed; the caller was not cancelled, so it must not see a CancelledError.
            return Reply(seen=Seen(era=generation.era, broke=Broke.AFTER_SEND), what="the exchange was torn down")
        finally:
            self._inbound.end(id, patience)
        if reply.seen is not None and reply.seen.broke is Broke.NO_ANSWER_IN_TIME:
            self._cancel(generation, id, "no answer in time")
        return reply

    async def send(
        self, generation: Generation, method: str, params: Params, timeout: float | None, phase: str
    ) -> dict[str, Any]:
        """Send a request of the link itself, in a generation that no call uses yet. It is not repeated."""
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        reply = await self.exchange(generation, method, params, NO_HEADERS, Patience(until, self._limits.silence))
        if reply.seen is not None:
            raise error_for(self._name, method, phase, judge(reply.seen), reply, 1)
        assert reply.message is not None
        return reply.message["result"]

    async def deliver(self, generation: Generation, message: Message) -> Reply:
        return await generation.wire.deliver(generation, message, self._limits.deliver)

    def _message(self, generation: Generation, id: str | int, method: str, params: Params, progress: bool) -> Message:
        if generation.era is Era.Y2026:
            settings = self._settings.now
            ours = settings.ours
            stamped: dict[str, Any] | None = stamp_2026(
                params, generation.version, ours.info, ours.capabilities, settings.log_level
            )
        else:
            plain = unstamp(params)
            stamped = dict(plain) if plain is not None else None
        if progress:
            stamped = stamped or {}
            stamped["_meta"] = {**(stamped.get("_meta") or {}), "progressToken": id}
        message: Message = {"jsonrpc": "2.0", "id": id, "method": method}
        carried = traced(stamped or {})
        if stamped is not None or carried:
            message["params"] = carried
        return message

    def _cancel(self, generation: Generation, id: str | int, reason: str) -> None:
        """Notify the server. Over HTTP in 2026, closing the answer's connection is the notification."""
        if self._phase.is_closing or (generation.era is Era.Y2026 and not generation.wire.owns_server):
            return
        params = {"requestId": id, "reason": reason}
        message: Message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        task = self._background.start(self.deliver(generation, message), f"cancel {self._name}", finish=True)
        if generation.wire.owns_server:  # HTTP keeps no order between requests
            self._cancellations.add(task)
            task.add_done_callback(self._cancellations.discard)
