"""The state of one link, on the table LINK of `core/lifecycle.py`."""

from holdfast.core.lifecycle import LINK, LinkEvent, LinkState


class LinkPhase:
    """The state of a link, changed only by events of the table."""

    __slots__ = ("closings", "state")

    def __init__(self) -> None:
        self.state: LinkState = LINK.initial
        self.closings = 0
        """The number of times closing began: a call that sees it change was interrupted by a close."""

    @property
    def is_closed(self) -> bool:
        return self.state in (LinkState.CLOSED, LinkState.RETIRED)

    @property
    def is_closing(self) -> bool:
        return self.state in (LinkState.CLOSING, LinkState.RETIRING)

    @property
    def is_retired(self) -> bool:
        """Whether the link is, or is being, closed permanently."""
        return self.state in (LinkState.RETIRED, LinkState.RETIRING)

    def step(self, event: LinkEvent) -> None:
        """Apply an event. Raises `IllegalTransition` if the table does not allow it."""
        self.state = LINK.next(self.state, event)
        if event is LinkEvent.CLOSE:
            self.closings += 1
