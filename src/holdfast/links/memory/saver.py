"""Saving a link's session in its memory, also when the memory is away for a while.

It owns the one task that saves, and its retries. If the memory already holds another session, that one stands, so that
two are never in use. No call waits for a memory without a bound.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable

from holdfast.core.handshake import Saved
from holdfast.core.models import BackendSessionId
from holdfast.core.retry import backoff
from holdfast.errors import Conflict
from holdfast.links.background import BackgroundTasks
from holdfast.links.memory.store import Memory, MemoryEntry
from holdfast.links.reporter import LinkReporter
from holdfast.links.wires.base import Generation

RETRY_BASE = 0.2  # seconds before a failed save is tried again: longer than a store's failover hiccup needs
RETRY_CAP = 10.0  # seconds: a thousand links that wait for one store ask it a hundred times a second at most
SETTLE_SECONDS = 1.0  # that an unsafe call waits for its session to be saved: a store that is up needs a hundredth
LOST_KEPT = 16  # ids of sessions lost while nothing could be saved; one link handshakes no more often in an outage


class Saver:
    """One link's saving. `describe` makes what is saved of a generation; `fits` says whether the link could use what
    is saved instead."""

    def __init__(
        self,
        memory: Memory | None,
        background: BackgroundTasks,
        reporter: LinkReporter,
        describe: Callable[[Generation], Saved],
        fits: Callable[[Saved], bool],
    ) -> None:
        self.memory = memory
        self._superseded: Callable[[Generation], None] = lambda _: None
        self._background = background
        self._reporter = reporter
        self._describe = describe
        self._fits = fits
        self._wanted: Generation | None = None
        self._task: asyncio.Task[None] | None = None
        self._attempt = asyncio.Event()
        """Set, and replaced by a new one, when an attempt has ended."""
        self._now = asyncio.Event()
        """Cuts the pause before the next attempt short."""
        self._failed_at = float("-inf")
        self._lost: deque[BackendSessionId | None] = deque(maxlen=LOST_KEPT)

    def use(self, memory: Memory) -> None:
        """Save there from now on."""
        self.memory = memory

    def on_superseded(self, superseded: Callable[[Generation], None]) -> None:
        """`superseded` takes a generation that is given up for another link's, which is saved."""
        self._superseded = superseded

    def abandon(self) -> None:
        """Its event loop is closed."""
        self._task = self._wanted = None
        self._attempt, self._now = asyncio.Event(), asyncio.Event()

    def lost(self, session: BackendSessionId | None) -> None:
        """This session is over, whatever the memory says."""
        self._lost.append(session)

    def soon(self, generation: Generation) -> None:
        """Save what is known of this generation, in the background."""
        if self.memory is None or not generation.savable:
            return
        self._wanted = generation
        if self._task is None:
            self._task = self._background.start(self._run(), "save")

    async def settle(self, generation: Generation) -> None:
        """Before an unsafe call in a session that is not saved: one attempt, within `SETTLE_SECONDS`."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._failed_at < SETTLE_SECONDS:
            return  # it was tried this moment
        self.soon(generation)
        attempt = self._attempt
        self._now.set()
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await attempt.wait()
        except TimeoutError:
            self._failed_at = loop.time()

    async def flush(self, seconds: float) -> None:
        """Wait for what is being saved: until it is, or one attempt more has failed."""
        if self._task is None:
            return
        attempt = self._attempt
        self._now.set()
        ended = asyncio.ensure_future(attempt.wait())
        await asyncio.wait((self._task, ended), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()

    async def _run(self) -> None:
        failures = 0
        try:
            while (generation := self._wanted) is not None:
                self._wanted = None
                try:
                    await self._save(generation)
                    failures = 0
                except Conflict:
                    self._wanted = self._wanted or generation
                    failures += 1
                except Exception as error:  # a user's memory may raise anything
                    self._wanted = self._wanted or generation
                    failures += 1
                    self._failed_at = asyncio.get_running_loop().time()
                    if failures == 1:  # once an outage
                        self._reporter.forgetting(f"{str(error) or repr(error)}; tried again until it is saved"[:500])
                self._attempt.set()
                self._attempt = asyncio.Event()
                if failures:
                    await self._pause(backoff(failures, random.random(), base=RETRY_BASE, cap=RETRY_CAP))
                if self._wanted is not None and self._wanted.lost:
                    self._wanted = None  # its successor is saved when it begins
        finally:
            self._task = None

    async def _pause(self, seconds: float) -> None:
        self._now.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._now.wait()
        except TimeoutError:
            return

    async def _save(self, generation: Generation) -> None:
        assert self.memory is not None
        kept = await self.memory.load()
        if self._is_anothers(kept, generation):
            if generation.unsaved:
                self._superseded(generation)
            return  # else it is over, and its next call finds that out
        saved = kept.saved
        if saved is not None and not generation.unsaved and saved.session == generation.session:
            generation.merge_saved(saved.unreported_loss, saved.shared)
        description = self._describe(generation)
        await self.memory.save(description, kept.token)
        self.saved(generation, description)

    @property
    def is_busy(self) -> bool:
        """True while the memory lacks something."""
        return self._task is not None

    def saved(self, generation: Generation, saved: Saved) -> None:
        """The memory has this generation's session."""
        generation.saved_as(saved.unreported_loss)
        self._lost.clear()

    def _is_anothers(self, kept: MemoryEntry, generation: Generation) -> bool:
        """True if the memory holds a live session that another link began."""
        saved = kept.saved
        if saved is None or generation.wire.owns_server or saved.session == generation.session:
            return False
        if not generation.unsaved:
            return True
        return saved.session not in self._lost and self._fits(saved)
