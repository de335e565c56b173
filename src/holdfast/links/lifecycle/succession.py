"""The transition from a lost session to the next one: what is restored, what is lost, and how that is reported.

Pending losses are kept in `losses.py`.
"""

import asyncio
from typing import Any

from holdfast.core.eras import Era
from holdfast.errors import HoldfastError
from holdfast.events import LinkSessionReplaced
from holdfast.links.background import cancelling
from holdfast.links.calls.exchange import Exchanger
from holdfast.links.calls.handlers import Params
from holdfast.links.lifecycle.losses import Losses
from holdfast.links.lifecycle.reseed import ReseedContext
from holdfast.links.lifecycle.startup import Startup
from holdfast.links.memory.session import SavedSession
from holdfast.links.options import Options
from holdfast.links.reporter import LinkReporter, shown_session
from holdfast.links.settings import CurrentSettings
from holdfast.links.wires.base import Generation, Loss


class Succession:
    """The work between a handshake and the first call in its session."""

    def __init__(
        self,
        options: Options,
        startup: Startup,
        saved: SavedSession,
        exchanger: Exchanger,
        reporter: LinkReporter,
        settings: CurrentSettings,
        losses: Losses,
    ) -> None:
        self._options = options
        self._startup = startup
        self._saved = saved
        self._exchanger = exchanger
        self._reporter = reporter
        self._settings = settings
        self._losses = losses

    async def settle_in(self, old: Generation | None, new: Generation) -> None:
        """Restore the settings of the lost session, call the reseed hook, and report what is lost."""
        self._expect_session(new)
        await self._restore(new)
        elsewhere = new.adopted and self._options.confirm_losses
        if old is not None and old.keeps_state and not old.unsaved and elsewhere:
            self._replaced_elsewhere(old, new)
        elif (old is not None and old.keeps_state) or (new.unreported_loss and not new.adopted):
            await self._replaced(old, new)
        elif new.unreported_loss:  # it was logged by an earlier link or another process
            self._losses.keep()
        if not self._options.stateful:
            self._losses.restored()
        pending = self._losses.pending is not None
        if new.unreported_loss is not pending:
            new.loss_pending(pending)
            self._saved.saver.soon(new)

    def _expect_session(self, generation: Generation) -> None:
        """Warn, once per server, that it keeps no state, unless the options say that none is expected."""
        options, peer = self._options, self._startup.peer
        expected = options.pinned is None and options.prefer is None and options.stateful
        if (
            expected
            and generation.era is Era.Y2026
            and self._settings.now.prefers is Era.Y2025
            and peer.first_without_session()
        ):
            self._reporter.no_session(generation.why)

    async def _restore(self, generation: Generation) -> None:
        if generation.era is Era.Y2026:
            return  # the log level is sent with each request, and a watch subscribes again itself
        requests = generation.to_restore
        if not generation.adopted:
            requests += self._settings.now.for_new(generation.handshake)
        for method, params in requests:
            try:
                await self._exchanger.send(generation, method, params, self._options.limits.handshake, "handshake")
            except HoldfastError as error:
                self._reporter.strayed(f"not restored in the new session: {error.what}")

    def _replaced_elsewhere(self, old: Generation, new: Generation) -> None:
        """Another link has replaced the lost session for all that share it.
        The saved session says whether a loss is still to be reported.
        """
        self._report_replacement(
            f"{shown_session(old.session)} was replaced by {shown_session(new.session)}, which another process began",
            old.session,
            new,
            new.unreported_loss,
            False,
        )
        old.loss_reported_elsewhere(not new.unreported_loss)
        if new.unreported_loss:
            self._losses.add(Loss(old.session, old.number))
        else:
            self._losses.settle()

    async def _replaced(self, old: Generation | None, new: Generation) -> None:
        """Record and report that a session with state, of this link or an earlier one, has ended."""
        before, kept = (None, True) if old is None else (old.session, old.answered_unsafe)
        reseeded = await self._reseed(before, new, kept)
        if old is not None:
            old.mark_reseeded(reseeded)
        gone = "; its state is gone" if kept and not reseeded else ""
        self._report_replacement(
            f"{shown_session(before)} was replaced by {shown_session(new.session)}{gone}",
            before,
            new,
            kept,
            reseeded,
        )
        if reseeded:
            self._losses.restored()
        elif kept:
            self._losses.add(Loss(before, 0 if old is None else old.number))
        elif new.unreported_loss:
            self._losses.keep()

    async def _reseed(self, before: str | None, new: Generation, kept: bool) -> bool:
        """Call the hook. Returns whether it restored what was lost."""
        if self._options.reseed is None:
            return False

        async def send(method: str, params: Params, timeout: float | None) -> dict[str, Any]:
            return await self._exchanger.send(new, method, params, timeout, "reseed")

        hook = ReseedContext(self._startup.name, before, new.session, new.number, kept, send)
        try:
            return bool(await self._options.reseed(hook))
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelling():
                raise  # otherwise something that the hook awaited was cancelled
            self._reporter.strayed(f"the reseed hook raised {error!r:.300}")
            return False

    def _report_replacement(self, what: str, old: str | None, new: Generation, kept: bool, reseeded: bool) -> None:
        self._reporter.counted("replacements")
        self._reporter.warn(what)
        self._reporter.event(
            LinkSessionReplaced,
            old=old,
            new=new.session,
            generation=new.number,
            kept_state=kept,
            reseeded=reseeded,
        )
