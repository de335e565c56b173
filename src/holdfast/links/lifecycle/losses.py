"""Losses of session state that are still to be reported to callers: for the link, and for each sharer."""

from holdfast.links.memory.session import SavedSession
from holdfast.links.sharers import Sharers
from holdfast.links.wires.base import Generation, Loss


class Losses:
    """The losses still to be reported.
    With `confirm`, a loss stays pending until `reported` is called; otherwise raising it is the report.
    """

    def __init__(self, saved: SavedSession, confirm: bool) -> None:
        self.pending: Loss | None = None
        """The loss that the next unsafe call raises, or None."""
        self.sharers = Sharers()
        """The users of the link, to each of whom a loss is reported."""
        self.latest: Generation | None = None
        """The latest generation, whether or not it is lost; None before the first, and once the link is closed."""
        self._saved = saved
        self._confirm = confirm

    @property
    def holds_state(self) -> bool:
        """Whether an unsafe call may have left state in the session, or an earlier loss is still to be reported."""
        return self.pending is not None or (self.latest is not None and self.latest.held_state)

    def follow(self, generation: Generation | None) -> None:
        """Record the generation that begins; None if there is none any more."""
        self.latest = generation

    def add(self, loss: Loss) -> None:
        """Record that a session is gone with its state."""
        self.pending = loss
        self.sharers.lost(loss)

    def keep(self) -> None:
        """Record that an earlier loss is still to be reported, now to every sharer."""
        self.add(self.pending or Loss())

    async def find(self, generation: Generation) -> Loss | None:
        """The loss to report to an unsafe call. Where links share a session, one report is for all of them."""
        loss = self.pending
        if loss is None or not self._confirm or not await self._saved.loss_was_reported(generation):
            return self.pending
        if self.pending is loss:
            self.settle()
            generation.loss_settled()
        return self.pending

    def raised(self) -> None:
        """The loss is being raised by an unsafe call."""
        if not self._confirm and self.pending is not None:
            self.reported(self.pending)

    def reported(self, loss: Loss) -> None:
        """Confirm that a caller has received the loss;
        see `Options.confirm_losses`. This is stored in the saved session, too.
        """
        if self.pending is not loss:
            return
        self.settle()
        if self.latest is not None and self.latest.unreported_loss:
            self.latest.loss_pending(False)
            self._saved.saver.soon(self.latest)

    def settle(self) -> None:
        """Record that the link's loss was reported, here or by another link."""
        self.pending = None

    def restored(self) -> None:
        """Clear all losses: the state was restored."""
        self.pending = None
        self.sharers.restored()
