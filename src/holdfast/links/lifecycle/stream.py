"""The server's own stream: when it is read, and by which of the links that share a session."""

import asyncio
from collections.abc import Callable

from holdfast.core.eras import Era
from holdfast.core.verdicts import Seen, Verdict
from holdfast.errors import HoldfastError
from holdfast.events import StreamDropped
from holdfast.links.background import BackgroundTasks
from holdfast.links.calls.inbound import Inbound
from holdfast.links.memory.session import SavedSession
from holdfast.links.reporter import LinkReporter
from holdfast.links.wires.base import Generation

OPEN_SECONDS = 1.0  # for which a call waits for the stream
CLAIM_SECONDS = 30.0  # after which a dead process's claim on the server's stream ends


class ServerStream:
    """Runs the one task that reads the stream.
    `current` returns the link's generation; `lost` is called when the session or the credentials of a generation are
    gone.
    """

    def __init__(
        self,
        wanted: bool,
        inbound: Inbound,
        background: BackgroundTasks,
        reporter: LinkReporter,
        saved: SavedSession,
        current: Callable[[], Generation | None],
        lost: Callable[[Generation, Seen, Verdict], bool],
    ) -> None:
        self._wanted = wanted
        self._inbound = inbound
        self._background = background
        self._reporter = reporter
        self._saved = saved
        self._current = current
        self._lost = lost
        self._task: asyncio.Task[None] | None = None
        self.has_listener = False
        """Somebody reads what comes on it: what a server sends while it is not open is lost."""
        self.opening: Generation | None = None
        """The generation whose stream may not be open yet. HTTP only."""

    def want(self) -> None:
        """Start reading the stream where `Options(stream=False)` had disabled it. 2025 only."""
        self._wanted = self.has_listener = True
        if (generation := self._current()) is not None:
            self.start(generation)

    def start(self, generation: Generation) -> None:
        """Start reading the stream, if the generation has one and it is enabled."""
        if self._task is not None and not self._task.done():
            return  # credentials were renewed; the stream continues
        if generation.wire.owns_server or (
            generation.era is Era.Y2025 and generation.session is not None and self._wanted
        ):
            self._task = self._background.start(self._listen(generation), "stream")
            self.opening = None if generation.wire.owns_server else generation

    def stop(self) -> None:
        """Stop reading: the generation has ended."""
        if self._task is not None:
            self._task.cancel()
            self._task = self.opening = None

    def forget(self) -> None:
        """Drop the task, which has ended."""
        self._task = self.opening = None

    async def wait_listening(self, seconds: float) -> None:
        """Wait until the stream is open or refused, or the time is up.
        Returns at once where there is no stream to read.
        """
        generation, task = self._current(), self._task
        if generation is None or task is None or generation.wire.owns_server:
            return
        opened = asyncio.ensure_future(generation.listening.wait())
        try:
            await asyncio.wait((opened, task), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        if self.opening is generation:
            self.opening = None  # only one wait: some servers send no headers before the first message

    async def before_questions(self, generation: Generation, until: float | None) -> None:
        """Wait for the stream before a call in which the server may ask something:
        while the stream is not open, servers drop questions or wait. Only the first calls wait.
        """
        if not generation.listening.is_set():
            # Half of the call's remaining time: the other half is for its answer.
            left = OPEN_SECONDS if until is None else (until - asyncio.get_running_loop().time()) / 2
            await self.wait_listening(min(OPEN_SECONDS, max(0.0, left)))
        elif self.opening is generation:
            self.opening = None

    async def _listen(self, generation: Generation) -> None:
        def lost(seen: Seen, verdict: Verdict) -> bool:
            return self._lost(generation, seen, verdict)

        def dropped(why: str, resumable: bool) -> None:
            self._reporter.event(StreamDropped, why=why, resumable=resumable)

        async def read() -> None:
            await generation.wire.listen(generation, self._inbound.receiver(generation), lost, dropped)

        memory = self._saved.memory
        if memory is None or generation.wire.owns_server:
            await read()
            return
        # If several links share the session, only the holder of the claim reads the stream.
        while True:
            reading: asyncio.Task[None] | None = None
            try:
                while await memory.claim_stream(CLAIM_SECONDS):
                    if reading is None:
                        reading = self._background.start(read(), "claimed stream")
                    await asyncio.wait((reading,), timeout=CLAIM_SECONDS / 3)
                    if reading.done():
                        return
                generation.listening.set()  # another process reads it and answers questions
            except HoldfastError as error:
                self._reporter.forgetting(str(error))
            finally:
                if reading is not None:
                    reading.cancel()
            await asyncio.sleep(CLAIM_SECONDS / 3)
