"""The state of one link, on the table LINK of `core/lifecycle.py`."""

from holdfast.core.lifecycle import LINK, LinkEvent, LinkState


class LinkPhase:
    """The state of a link, moved by events of the table only."""

    __slots__ = ("closings", "state")

    def __init__(self) -> None:
        self.state: LinkState = LINK.initial
        self.closings = 0
        """How often closing began: a call that sees another number was overtaken by a close."""

    @property
    def is_closed(self) -> bool:
        return self.state in (LinkState.CLOSED, LinkState.RETIRED)

    @property
    def is_closing(self) -> bool:
        return self.state in (LinkState.CLOSING, LinkState.RETIRING)

    @property
    def is_retired(self) -> bool:
        """Closed, or to be closed, for good: it can't be opened again."""
        return self.state in (LinkState.RETIRED, LinkState.RETIRING)

    def step(self, event: LinkEvent) -> None:
        """Go on by the table; `IllegalTransition` if it has no such step."""
        self.state = LINK.next(self.state, event)
        if event is LinkEvent.CLOSE:
            self.closings += 1
