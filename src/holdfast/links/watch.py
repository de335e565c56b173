"""A watch: a server's change notifications, in either era, for as long as the link lives.

It owns listening again: in 2026 `subscriptions/listen`, in 2025 the server's own stream and `resources/subscribe`. It
refuses to be silent about a gap: after every new beginning it says that whatever is watched may have changed.
"""

import asyncio
import random
from collections.abc import Iterable
from typing import Any

from holdfast.core.eras import Era
from holdfast.core.events import StreamDropped
from holdfast.core.lifecycle import LinkEvent
from holdfast.core.outcome import Verdict, judge
from holdfast.core.retry import backoff
from holdfast.errors import HoldfastError
from holdfast.links.exchange import NO_HEADERS, Exchanger
from holdfast.links.failures import error_for
from holdfast.links.inbound import Inbound
from holdfast.links.limits import Limits
from holdfast.links.machine import Machine
from holdfast.links.telling import Telling
from holdfast.links.wire import Generation, Patience, Reply

GAP = "holdfast/gap"
"""In `_meta` of a notification that stands for whatever was missed."""
LONGEST_PAUSE = 30.0  # seconds between two tries

_KINDS = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}


class Watch:
    """Notifications go to the link's `on_notification`. Ends with `close()`, or with the link."""

    def __init__(
        self,
        machine: Machine,
        exchanger: Exchanger,
        inbound: Inbound,
        telling: Telling,
        limits: Limits,
        kinds: Iterable[str],
        uris: Iterable[str],
        id: str,
    ) -> None:
        self._machine = machine
        self._exchanger = exchanger
        self._inbound = inbound
        self._telling = telling
        self._limits = limits
        self._kinds = tuple(kinds)
        self._uris = tuple(uris)
        self._id = id
        self._turns = 0
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Stop watching. Closing the stream tells a 2026 server; a 2025 one keeps its subscriptions until told."""
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Until cancelled, or refused at the first try."""
        failures = 0
        try:
            while True:
                try:
                    generation = await self._machine.ready("watch", None)
                    changed = self._machine.changed
                    if generation.era is Era.Y2026:
                        failures = 0 if await self._listen(generation) else failures + 1
                    else:
                        await self._subscribe(generation)
                        self._began()
                        failures = 0
                        await changed.wait()
                        continue
                except HoldfastError as error:
                    if not self.started.done():
                        self.started.set_exception(error)
                        return
                    failures += 1
                    self._telling.event(StreamDropped, why=error.what, resumable=False)
                wait = backoff(max(1, failures), random.random(), base=self._limits.stream_retry, cap=LONGEST_PAUSE)
                await asyncio.sleep(wait)
        finally:
            if not self.started.done():
                self.started.cancel()

    def _began(self) -> None:
        """Listening, for the first time or again; then anything may have changed meanwhile."""
        self._turns += 1
        if not self.started.done():
            self.started.set_result(None)
        if self._turns == 1:
            return
        meta: dict[str, Any] = {"_meta": {GAP: True}}
        for kind in self._kinds:
            self._inbound.hand_on(_KINDS[kind], meta)
        for uri in self._uris:
            self._inbound.hand_on("notifications/resources/updated", {"uri": uri, **meta})

    async def _listen(self, generation: Generation) -> bool:
        """One `subscriptions/listen`, until it ends. True if it had been acknowledged."""
        wanted: dict[str, Any] = dict.fromkeys(self._kinds, True)
        if self._uris:
            wanted["resourceSubscriptions"] = list(self._uris)
        id, began = f"{self._id}-{self._turns}-{random.getrandbits(32):x}", False

        def acknowledged() -> None:
            nonlocal began
            began = True
            self._began()

        self._inbound.acknowledged[id] = acknowledged
        try:
            reply = await self._exchanger.exchange(
                generation, "subscriptions/listen", {"notifications": wanted}, NO_HEADERS, Patience(None, None), id=id
            )
        finally:
            self._inbound.acknowledged.pop(id, None)
        self._ended(generation, reply)
        return began

    def _ended(self, generation: Generation, reply: Reply) -> None:
        if reply.seen is None:
            self._telling.event(StreamDropped, why="the server ended the subscription", resumable=False)
            return
        verdict = judge(reply.seen)
        if verdict is Verdict.SESSION_LOST:
            self._machine.lose(generation, LinkEvent.SESSION_LOST)
        elif verdict in (Verdict.ANSWER, Verdict.REJECTED, Verdict.AUTH_NEEDED):
            raise error_for(self._telling.server, "subscriptions/listen", "watch", verdict, reply, 1)
        self._telling.event(StreamDropped, why=reply.what, resumable=False)

    async def _subscribe(self, generation: Generation) -> None:
        for uri in self._uris:
            await self._exchanger.send(generation, "resources/subscribe", {"uri": uri}, self._limits.greet, "watch")
