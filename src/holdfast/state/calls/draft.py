"""The draft of a session: the changes of one call so far, written once after the call by middleware."""

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from holdfast.core.models import Record
from holdfast.core.values import JSON
from holdfast.errors import Conflict
from holdfast.state import model
from holdfast.state.model import SessionState

S = TypeVar("S", bound=SessionState)
Base: TypeAlias = tuple[Record, S]
"""A record as it was read, from which a change is made."""


class Draft(Generic[S]):
    """A state to change, with the labels and notes of its changes. Open until it is saved or discarded."""

    def __init__(self, base: Base[S]) -> None:
        self.base = base
        self.state = base[1].model_copy(deep=True)
        self.notes: list[tuple[str, JSON]] = []
        self._labels: list[str] = []
        self._is_open = True

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to write."""
        return self._is_open and (bool(self.notes) or self.state != self.base[1])

    def copy(self) -> S:
        return self.state.model_copy(deep=True)

    def label(self, otherwise: str) -> str:
        """The label of the log entry that saving writes."""
        return "; ".join(self._labels) or otherwise

    def replace(self, state: S, label: str, *, over: S) -> None:
        """Accept an edited copy of `over`, if the draft is open and still has that state."""
        if not self._is_open or self.state is not over:
            raise Conflict(f"{label}: another edit in this call changed the state first", id=self.base[0].id)
        self.state, _ = model.checked(state, type(self.base[1]), label, self.base[0].id)
        self._labels.append(label)

    def note(self, label: str, data: JSON) -> None:
        """Add an entry of the log, written with the state."""
        self.notes.append((label, data))

    def snapshot(self) -> Callable[[], None]:
        """A function that restores the changes gathered so far."""
        state, labels, notes = self.copy(), list(self._labels), list(self.notes)

        def restore() -> None:
            self.state, self._labels, self.notes = state, labels, notes

        return restore

    def close(self) -> None:
        """Close the draft: an edit still in progress is rejected."""
        self._is_open = False
