"""The draft of a session: what one call has changed so far, written once when the call ends."""

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from holdfast.core.models import Record
from holdfast.core.values import JSON
from holdfast.errors import Conflict
from holdfast.state import model
from holdfast.state.model import SessionState
from holdfast.state.storage.history import Move

S = TypeVar("S", bound=SessionState)
Base: TypeAlias = tuple[Record, S]
"""A record as it was read, from which a change is made."""


class Draft(Generic[S]):
    """A state to change, with the labels and notes of its changes. Open until it is saved or discarded."""

    def __init__(self, base: Base[S]) -> None:
        self.base = base
        self.state = model.copy_of_read(base[1])
        self.notes: list[tuple[str, JSON]] = []
        self.move: Move | None = None
        """The undo, redo or restore of this call."""
        self._labels: list[str] = []
        self._is_open = True

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to write."""
        return self._is_open and (bool(self.notes) or self.move is not None or self.state != self.base[1])

    def copy(self) -> S:
        return self.state.model_copy(deep=True)

    def label(self, otherwise: str) -> str:
        """The label of the log entry that saving writes."""
        return "; ".join(self._labels) or otherwise

    def replace(self, state: S, label: str, *, over: S) -> None:
        """Take an edited copy of `over`, if the draft is open and still equal to that."""
        if not self._is_open or self.state != over:
            raise Conflict(f"{label}: another edit of this call was faster", id=self.base[0].id)
        checked, _ = model.checked(state, type(self.base[1]), label, self.base[0].id)
        model.become(self.state, checked)  # a tool may have it at hand
        self._labels.append(label)

    def move_to(self, move: Move, state: S) -> None:
        """Go to another revision, whose state this is."""
        self.replace(state, move.label, over=self.copy())
        self.move = move

    def note(self, label: str, data: JSON) -> None:
        """Add an entry of the log, written with the state."""
        self.notes.append((label, data))

    def snapshot(self) -> Callable[[], None]:
        """A function that puts back what was gathered so far."""
        state, labels, notes, move = self.copy(), list(self._labels), list(self.notes), self.move

        def restore() -> None:
            model.become(self.state, state.model_copy(deep=True))
            self._labels, self.notes, self.move = list(labels), list(notes), move
            self._is_open = True  # what has ended the session is taken back

        return restore

    def close(self) -> None:
        """Close the draft: an edit still in progress is rejected."""
        self._is_open = False
