"""Lost sessions that kept something, until callers know of it: for the link, and for each sharer."""

from holdfast.links.memory.session import SavedSession
from holdfast.links.sharers import Sharers
from holdfast.links.wires.base import Generation, Loss


class Losses:
    """What is still to be reported. `confirm`: a loss stays pending until `reported` is called; else raising it is the
    report."""

    def __init__(self, saved: SavedSession, confirm: bool) -> None:
        self.pending: Loss | None = None
        """The loss that the next unsafe call raises."""
        self.sharers = Sharers()
        """The users of the link, to each of whom a loss is reported."""
        self.latest: Generation | None = None
        """The latest generation, whether or not it is lost; None before the first, and once the link is closed."""
        self._saved = saved
        self._confirm = confirm

    @property
    def holds_state(self) -> bool:
        """Has an unsafe call left something in the session, or is a loss before it still to be reported?"""
        return self.pending is not None or (self.latest is not None and self.latest.held_state)

    def follow(self, generation: Generation | None) -> None:
        """A generation begins; None: there is none any more."""
        self.latest = generation

    def add(self, loss: Loss) -> None:
        """A session is gone with what it kept."""
        self.pending = loss
        self.sharers.lost(loss)

    def keep(self) -> None:
        """A loss from before this session is still to be reported, now to every sharer."""
        self.add(self.pending or Loss())

    async def find(self, generation: Generation) -> Loss | None:
        """A loss to report to an unsafe call. Where links share a session, one report is for all of them."""
        loss = self.pending
        if loss is None or not self._confirm or not await self._saved.loss_was_reported(generation):
            return self.pending
        if self.pending is loss:
            self.settle()
            generation.loss_settled()
        return self.pending

    def raised(self) -> None:
        """An unsafe call raises the loss."""
        if not self._confirm and self.pending is not None:
            self.reported(self.pending)

    def reported(self, loss: Loss) -> None:
        """A caller knows of the loss; see `Options.confirm_losses`. That is part of the saved session, too."""
        if self.pending is not loss:
            return
        self.settle()
        if self.latest is not None and self.latest.unreported_loss:
            self.latest.loss_pending(False)
            self._saved.saver.soon(self.latest)

    def settle(self) -> None:
        """The link's loss was reported, here or by another link."""
        self.pending = None

    def restored(self) -> None:
        """Nothing is missing any more."""
        self.pending = None
        self.sharers.restored()
