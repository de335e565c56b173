"""Saves a link's session in its memory, with retries while the memory is not available.

It owns the one task that saves. If the memory already holds another session, that one is used, so that never two are in
use. No call waits for a memory without a limit.
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

RETRY_BASE = 0.2  # seconds before a failed save is tried again: longer than a short failover of a store
RETRY_CAP = 10.0  # seconds: with it, a thousand links that wait for one store call it at most a hundred times a second
SETTLE_SECONDS = 1.0  # an unsafe call waits for its session to be saved: a store that is up needs a hundredth
LOST_KEPT = 16  # ids of sessions lost while nothing could be saved; one link makes no more handshakes in an outage


class Saver:
    """The saver of one link.
    `describe` returns what to save of a generation; `fits` says whether the link could use a saved session instead.
    """

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
        """Set, and replaced by a new event, when an attempt has ended."""
        self._now = asyncio.Event()
        """Ends the pause before the next attempt."""
        self._failed_at = float("-inf")
        self._lost: deque[BackendSessionId | None] = deque(maxlen=LOST_KEPT)

    def use(self, memory: Memory) -> None:
        """Replace the memory."""
        self.memory = memory

    def on_superseded(self, superseded: Callable[[Generation], None]) -> None:
        """`superseded` is called with a generation that is given up for another link's saved session."""
        self._superseded = superseded

    def abandon(self) -> None:
        """Drop what belongs to a closed event loop."""
        self._task = self._wanted = None
        self._attempt, self._now = asyncio.Event(), asyncio.Event()

    def lost(self, session: BackendSessionId | None) -> None:
        """Ignore this session in the memory: it has ended."""
        self._lost.append(session)

    def soon(self, generation: Generation) -> None:
        """Save the state of this generation in the background."""
        if self.memory is None or not generation.savable:
            return
        self._wanted = generation
        if self._task is None:
            self._task = self._background.start(self._run(), "save")

    async def settle(self, generation: Generation) -> None:
        """Before an unsafe call in a session that is not saved: one attempt, within `SETTLE_SECONDS`."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._failed_at < SETTLE_SECONDS:
            return  # it was tried just now
        self.soon(generation)
        attempt = self._attempt
        self._now.set()
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await attempt.wait()
        except TimeoutError:
            self._failed_at = loop.time()

    async def flush(self, seconds: float) -> None:
        """Wait until the pending save is done, or one more attempt has failed."""
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
                    if failures == 1:  # once per outage
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
            return  # otherwise it has ended, which its next call will find out
        saved = kept.saved
        if saved is not None and not generation.unsaved and saved.session == generation.session:
            generation.merge_saved(saved.unreported_loss, saved.shared)
        description = self._describe(generation)
        await self.memory.save(description, kept.token)
        self.saved(generation, description)

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be saved."""
        return self._task is not None

    def saved(self, generation: Generation, saved: Saved) -> None:
        """Record that the memory has this generation's session."""
        generation.saved_as(saved.unreported_loss)
        self._lost.clear()

    def _is_anothers(self, kept: MemoryEntry, generation: Generation) -> bool:
        """Whether the memory holds a live session that another link began."""
        saved = kept.saved
        if saved is None or generation.wire.owns_server or saved.session == generation.session:
            return False
        if not generation.unsaved:
            return True
        return saved.session not in self._lost and self._fits(saved)
