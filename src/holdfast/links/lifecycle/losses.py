"""Lost sessions that kept something, until callers know of it: for the link, and for each sharer."""

from holdfast.links.sharers import Sharers
from holdfast.links.wires.base import Loss


class Losses:
    """What is still to be reported."""

    def __init__(self) -> None:
        self.pending: Loss | None = None
        """The loss that the next unsafe call raises."""
        self.sharers = Sharers()

    def add(self, loss: Loss) -> None:
        """A session is gone with what it kept."""
        self.pending = loss
        self.sharers.lost(loss)

    def keep(self) -> None:
        """A loss from before this session is still to be reported, now to every sharer."""
        self.add(self.pending or Loss())

    def reported(self) -> None:
        """A caller knows."""
        self.pending = None

    def restored(self) -> None:
        """Nothing is missing any more."""
        self.pending = None
        self.sharers.restored()
