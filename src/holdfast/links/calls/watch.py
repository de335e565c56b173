"""A watch: a server's change notifications, in either era, as long as the link lives.

It uses `subscriptions/listen` in 2026, and the server's own stream with `resources/subscribe` in 2025, and subscribes
again after every interruption. It then notifies that everything watched may have changed.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any, cast

from holdfast.core.eras import Era
from holdfast.core.retry import backoff
from holdfast.core.values import members
from holdfast.core.verdicts import Seen, Verdict, judge
from holdfast.errors import ErrorAnswer, HoldfastError, OutcomeUnknown, StartTimeout, Unavailable
from holdfast.events import StreamDropped
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.errors import error_for
from holdfast.links.calls.exchange import NO_HEADERS, Exchanger
from holdfast.links.calls.inbound import Inbound
from holdfast.links.lifecycle.lifecycle import LinkLifecycle
from holdfast.links.limits import Limits
from holdfast.links.reporter import LinkReporter
from holdfast.links.wires.base import Generation, Patience, Reply

GAP = "holdfast/gap"
"""The key in `_meta` of a notification that stands for everything that was missed."""
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
        lifecycle: LinkLifecycle,
        exchanger: Exchanger,
        inbound: Inbound,
        reporter: LinkReporter,
        limits: Limits,
        kinds: Iterable[str],
        uris: Iterable[str],
        id: str,
        partial: bool = False,
    ) -> None:
        self._lifecycle = lifecycle
        self._exchanger = exchanger
        self._inbound = inbound
        self._reporter = reporter
        self._limits = limits
        self._kinds = tuple(kinds)
        self._uris = tuple(uris)
        self._id = id
        self._partial = partial
        self.agreed: tuple[str, ...] = self._uris
        """The URIs that the server agreed to in the latest subscription."""
        self._turns = 0
        self._watched: Generation | None = None
        self._last: HoldfastError | None = None
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    def start(self, background: BackgroundTasks) -> None:
        """Start watching; `started` is set once the server has agreed."""
        self._task = background.start(self.run(), "watch")

    def close(self) -> None:
        """Stop watching. A 2026 server notices that its stream closes; a 2025 one keeps its subscriptions."""
        if self._task is not None:
            self._task.cancel()

    @property
    def is_over(self) -> bool:
        """It was closed, or its link was, or the server has refused it."""
        return self._task is None or self._task.done()

    async def wait_over(self) -> None:
        """Until it is over."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def run(self) -> None:
        """Watch until cancelled, refused, or not agreed to within `Limits.start`."""
        failures = 0
        now = asyncio.get_running_loop().time
        since = now()
        limit = since + self._limits.start
        try:
            while True:
                try:
                    generation = await self._lifecycle.ready("watch", None, None if self.started.done() else since)
                    if await self._once(generation, limit):
                        failures = 0
                        continue
                    failures += 1
                except HoldfastError as error:
                    if self._last is None or not isinstance(error, StartTimeout):  # else the earlier error says why
                        self._last = error
                    refused = not isinstance(error, Unavailable | OutcomeUnknown)
                    if not self.started.done() and refused:
                        self.started.set_exception(error)
                        return
                    failures += 1
                    self._reporter.event(StreamDropped, why=error.what, resumable=False)
                if not self.started.done() and now() >= limit:
                    self.started.set_exception(self._last or self._late())
                    return
                wait = backoff(max(1, failures), random.random(), base=self._limits.stream_retry, cap=LONGEST_PAUSE)
                await asyncio.sleep(wait if self.started.done() else min(wait, max(0.0, limit - now())))
        finally:
            if not self.started.done():
                self.started.cancel()

    def _late(self) -> StartTimeout:
        return StartTimeout(
            f"watch: {self._reporter.server!r} did not agree within {self._limits.start:g} s",
            server=self._reporter.server,
            phase="watch",
        )

    async def _once(self, generation: Generation, limit: float) -> bool:
        """Watch in one generation until it ends. Returns True if the watch had begun and may be repeated at once."""
        if generation.era is Era.Y2026:
            began = await self._listen(generation, limit)
            await asyncio.sleep(0)
            return began and self._lifecycle.generation is not generation
        changed = self._lifecycle.changed
        if generation is not self._watched:  # else only its credentials are new
            if not await self._subscribe_all(generation, limit):
                return False
            self._watched = generation
            self._began()
        await changed.wait()
        return True

    def _began(self) -> None:
        """The subscription is active, for the first time or again;
        in the latter case anything may have changed meanwhile.
        """
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

    async def _listen(self, generation: Generation, limit: float) -> bool:
        """Run one `subscriptions/listen` until it ends. Returns True if it had been acknowledged."""
        wanted: dict[str, Any] = dict.fromkeys(self._kinds, True)
        if self._uris:
            wanted["resourceSubscriptions"] = list(self._uris)
        id, began = f"{self._id}-{self._turns}-{random.getrandbits(32):x}", False
        now = asyncio.get_running_loop().time()
        patience = Patience(limit if not self.started.done() else now + self._limits.start, None)

        def acknowledged(params: Mapping[str, Any]) -> None:
            nonlocal began
            began = True
            given = members(params.get("notifications")).get("resourceSubscriptions")
            if isinstance(given, list):
                named = {uri for uri in cast("list[object]", given) if isinstance(uri, str)}
                self.agreed = tuple(uri for uri in self._uris if uri in named)
            patience.lift()  # from now on it may be silent for days
            self._began()

        with self._inbound.acknowledging(id, acknowledged, patience):
            reply = await self._exchanger.exchange(
                generation, "subscriptions/listen", {"notifications": wanted}, NO_HEADERS, patience, id=id
            )
        why = reply.what if reply.seen is not None else "the server ended the subscription"
        if reply.seen is not None:
            self._judged(generation, reply, reply.seen, "subscriptions/listen")
        self._reporter.event(StreamDropped, why=why, resumable=False)
        return began

    def _judged(self, generation: Generation, reply: Reply, seen: Seen, method: str) -> None:
        """Recover where possible; raise permanent errors, and any error before the server has agreed."""
        verdict = judge(seen)
        if self._lifecycle.recover_from(generation, seen, verdict):
            return
        error = error_for(self._reporter.server, method, "watch", verdict, reply, 1)
        if verdict in (Verdict.ANSWER, Verdict.REJECTED, Verdict.AUTH_NEEDED) or not self.started.done():
            raise error

    async def _subscribe_all(self, generation: Generation, limit: float) -> bool:
        agreed: list[str] = []
        refused: ErrorAnswer | None = None
        for uri in self._uris:
            try:
                if not await self._subscribe(generation, uri, limit):
                    return False
            except ErrorAnswer as error:
                if not self._partial:
                    raise
                refused = error
            else:
                agreed.append(uri)
        self.agreed = tuple(agreed)
        if refused is not None and not agreed:
            raise refused
        return True

    async def _subscribe(self, generation: Generation, uri: str, limit: float) -> bool:
        until = asyncio.get_running_loop().time() + self._limits.handshake
        if not self.started.done():
            until = min(until, limit)
        reply = await self._exchanger.exchange(
            generation, "resources/subscribe", {"uri": uri}, NO_HEADERS, Patience(until, self._limits.handshake)
        )
        if reply.seen is not None:
            self._judged(generation, reply, reply.seen, "resources/subscribe")
            return False
        return True
