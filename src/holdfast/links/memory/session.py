"""A link's session in its memory: loading and adopting it, sharing it with other links, saving it.

If another link has saved its session meanwhile, the saved one is used.
"""

import asyncio
from dataclasses import replace

from holdfast.core.eras import Era, Why
from holdfast.core.handshake import Saved
from holdfast.core.models import Principal
from holdfast.errors import Conflict, HoldfastError
from holdfast.links.background import BackgroundTasks
from holdfast.links.memory.saver import Saver
from holdfast.links.memory.store import Memory, MemoryEntry
from holdfast.links.reporter import LinkReporter
from holdfast.links.settings import CurrentSettings
from holdfast.links.wires.base import Generation, Resolved, Wire


class SavedSession:
    """The saved session of one link. Without a memory, nothing is loaded or saved."""

    def __init__(
        self, memory: Memory | None, settings: CurrentSettings, background: BackgroundTasks, reporter: LinkReporter
    ) -> None:
        self._settings = settings
        self._background = background
        self._touched = float("-inf")
        self._forgetting = reporter.forgetting
        self.saver = Saver(memory, background, reporter, self._describe, lambda saved: settings.now.fits(saved))

    @property
    def memory(self) -> Memory | None:
        return self.saver.memory

    async def take_up(
        self, number: int, old: Generation | None, wire: Wire, resolved: Resolved
    ) -> tuple[Generation | None, MemoryEntry | None]:
        """Load the saved session. Returns it if it can be used, and what is stored."""
        while True:
            kept = await self._load()
            adopted = self._adopt(kept, number, old, wire, resolved)
            if kept is None or adopted is None:
                return None, kept
            try:
                await self._share(adopted, kept)
            except Conflict:
                continue  # another link has just saved
            return adopted, kept

    async def save_new(self, generation: Generation, kept: MemoryEntry | None) -> bool:
        """Save a session that has just begun.
        Returns False if another link saved one first, which must then be used.
        """
        if self.memory is None or not generation.savable:
            return True
        generation.mark_unsaved()
        try:
            if kept is not None:
                saved = self._describe(generation)
                await self.memory.save(saved, kept.token)
                self.saver.saved(generation, saved)
        except Conflict:
            return False
        except HoldfastError as error:
            self._forgetting(str(error))
        return True

    def lost_by_others(self, kept: MemoryEntry | None, old: Generation | None, owns_server: bool) -> bool:
        """Whether state was lost that a new session does not have and that `old` does not record."""
        if kept is None:
            return False
        saved = kept.saved
        if saved is None or saved.principal != self._settings.now.principal:
            return kept.lost
        if kept.lost or saved.unreported_loss:
            return True
        if old is not None and old.session == saved.session:
            return False
        return saved.session is not None or (owns_server and saved.handshake.era is Era.Y2025)

    def was_shared(self, kept: MemoryEntry | None, old: Generation) -> bool:
        """Whether another link may have left state in the lost session: yes, unless the memory says no."""
        if old.session is None or old.unsaved or self.memory is None:
            return False
        saved = None if kept is None else kept.saved
        return kept is None or (saved is not None and saved.session == old.session and saved.shared)

    def join(self, kept: MemoryEntry | None) -> None:
        """Apply settings that other links gave the saved session to the next one, too."""
        settings = self._settings.now
        if kept is not None and kept.saved is not None and kept.saved.principal == settings.principal:
            self._settings.change(settings.joined(kept.saved))

    async def loss_was_reported(self, generation: Generation) -> bool:
        """Whether, according to the memory, another link has reported the loss before this session."""
        if self.memory is None or generation.unsaved or self.saver.is_busy:
            return False
        kept = await self._load()
        return kept is not None and kept.saved is not None and not kept.lost and not kept.saved.unreported_loss

    def keep_in(self, memory: Memory, principal: Principal, generation: Generation | None) -> None:
        """Save in this memory from now on, for this principal."""
        self.saver.use(memory)
        self._settings.change(replace(self._settings.now, principal=principal))
        if generation is not None:
            generation.mark_unsaved()
            self.saver.soon(generation)

    def touch_soon(self) -> None:
        """Note that the saved session is in use; the memory is updated every `touch_every` seconds."""
        if self.memory is None or (every := self.memory.touch_every) is None:
            return
        now = asyncio.get_running_loop().time()
        if now - self._touched >= every:
            self._touched = now
            self._background.start(self.touch(), "touch")

    async def touch(self) -> None:
        """Keep the saved session alive even without calls."""
        if self.memory is not None:
            try:
                await self.memory.touch()
            except HoldfastError as error:
                self._forgetting(str(error))

    async def forget(self) -> None:
        """Record that the session has ended."""
        if self.memory is not None:
            try:
                await self.memory.forget()
            except HoldfastError as error:
                self._forgetting(str(error))

    async def _load(self) -> MemoryEntry | None:
        if self.memory is None:
            return None
        try:
            kept = await self.memory.load()
        except HoldfastError as error:
            self._forgetting(str(error))
            return None
        if kept.unreadable is not None:
            self._forgetting(kept.unreadable)
        return kept

    async def _share(self, adopted: Generation, kept: MemoryEntry) -> None:
        """Record that others have used the session, for the case that the link that began it loses it."""
        if adopted.shared or adopted.session is None or self.memory is None or kept.saved is None:
            return
        if kept.token is None:
            return  # without compare-and-swap a newer session could be overwritten
        adopted.mark_shared()
        try:
            await self.memory.save(replace(kept.saved, shared=True), kept.token)
        except Conflict:
            raise
        except HoldfastError as error:
            self._forgetting(str(error))
            self.saver.soon(adopted)

    def _adopt(
        self, kept: MemoryEntry | None, number: int, old: Generation | None, wire: Wire, resolved: Resolved
    ) -> Generation | None:
        saved, settings = None if kept is None else kept.saved, self._settings.now
        if saved is None or wire.owns_server or not settings.fits(saved):
            return None
        handshake = saved.handshake
        chosen = settings.pinned is not None or saved.second_choice or handshake.era is settings.prefers
        if saved.session is None and not chosen:
            return None  # it holds no state, and the server may offer the preferred era now
        if old is not None and saved.session == old.session and handshake.era is old.era:
            return None
        adopted = Generation(
            number,
            handshake.era,
            handshake.version,
            handshake,
            wire,
            saved.session,
            Why.SAVED,
            adopted=True,
            keeps_state=saved.session is not None,
            answered_unsafe=saved.session is not None,
            to_restore=settings.missing_in(saved),
            unreported_loss=saved.unreported_loss,
            saved_loss=saved.unreported_loss,
            shared=saved.shared,
        )
        self._settings.change(settings.joined(saved))
        wire.apply_credentials(adopted, resolved)
        return adopted

    def _describe(self, generation: Generation) -> Saved:
        settings = self._settings.now
        return Saved(
            generation.session,
            generation.handshake,
            settings.ours,
            settings.principal,
            settings.log_level,
            settings.subscriptions,
            generation.unreported_loss,
            settings.pinned is None and generation.era is not settings.prefers,
            generation.shared,
        )
