"""A session in the current call: its record, and the changes that are not yet saved."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from holdfast.core.models import Principal
from holdfast.core.records import Key
from holdfast.errors import UsageError
from holdfast.state.calls.draft import Draft
from holdfast.state.calls.results import Keyed
from holdfast.state.frozen import READS_ONLY, WRITE_INSTEAD
from holdfast.state.model import SessionState
from holdfast.state.storage.session_record import SessionRecord
from holdfast.state.tool_errors import showing, shown

S = TypeVar("S", bound=SessionState)


class SessionInCall(Generic[S]):
    """What `Session` and its log share. `draft` is set in a call that has taken the session."""

    def __init__(self, record: SessionRecord[S], shared_with: Principal | None, also: type[Exception] | None) -> None:
        self.record = record
        self.draft: Draft[S] | None = None
        self.shows_as = also
        """The framework's error class, of which raised errors are also instances."""
        self._shared_with = shared_with
        self._only_reads = False

    @property
    def state(self) -> S:
        """A copy of the state, with the changes of the call so far."""
        return self.draft.copy() if self.draft is not None else self.record.base[1].model_copy(deep=True)

    # Errors

    def show_errors_as(self, also: type[Exception] | None) -> None:
        """Also raise errors as a framework's class, whose text is shown to the caller."""
        self.shows_as = also

    def showing(self) -> AbstractContextManager[None]:
        """Raise errors inside the block also as that class."""
        return showing(self.shows_as)

    def only_reads(self) -> None:
        """Refuse every change from here on."""
        self._only_reads = True

    def check_writable(self) -> None:
        """Refuse a change in a tool that only reads."""
        if self._only_reads:
            raise shown(UsageError(READS_ONLY, remedy=WRITE_INSTEAD), self.shows_as)

    def check_unchanged(self, what: str) -> None:
        """Reject reading from the store while this call has unsaved changes."""
        if self.draft is not None and self.draft.is_changed:
            raise UsageError(
                f"{what} would not show what this call has changed so far: that is written when the call ends",
                remedy="read before the first change",
            )

    # In the transaction of a call

    def open_draft(self) -> Draft[S]:
        """Read the session and start gathering changes, which `save` writes."""
        self.drop_draft()
        self.draft = Draft(self.record.base)
        return self.draft

    def drop_draft(self) -> None:
        """Discard the gathered changes."""
        if self.draft is not None:
            self.draft.close()
            self.draft = None

    def snapshot(self) -> Callable[[], None]:
        """A function that puts back what was gathered so far."""
        draft = self.draft
        if draft is None:
            return _nothing
        restore = draft.snapshot()

        def put_back() -> None:
            self.draft = draft
            restore()

        return put_back

    async def save(self, label: str) -> None:
        """Stage what was gathered."""
        draft = self.draft
        self.drop_draft()
        if draft is not None:
            with self.showing():
                await self.record.commit(
                    draft.state, draft.label(label), base=draft.base, notes=draft.notes, move=draft.move
                )

    # Repeated calls

    def keyed(self, key: str, label: str) -> tuple[Keyed, Key]:
        """The change with this label as a call that may be repeated, and where its result is kept. In a session that
        callers share, each has keys of its own."""
        shared = self._shared_with is not None
        principal = self._shared_with if self._shared_with is not None else self.record.base[0].principal
        keyed = Keyed.of(key, principal, label, {})
        return keyed, keyed.place([self.record.handle], shared=shared)


def _nothing() -> None:
    return None
