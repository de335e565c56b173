"""A session in the current call: its record, and the changes that are not yet saved."""

from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from holdfast.core.models import Principal
from holdfast.core.values import JSON, members
from holdfast.errors import UsageError
from holdfast.state.calls.draft import Draft
from holdfast.state.calls.idempotency import key_name
from holdfast.state.model import SessionState
from holdfast.state.storage.session_record import SessionRecord
from holdfast.state.tool_errors import showing

S = TypeVar("S", bound=SessionState)


class SessionInCall(Generic[S]):
    """The part that `Session` and its log share.
    `draft` is set between `open_draft` and `save`, which middleware calls.
    """

    def __init__(self, record: SessionRecord[S], shared_with: Principal | None, also: type[Exception] | None) -> None:
        self.record = record
        self.draft: Draft[S] | None = None
        self.shows_as = also
        """The framework's error class, of which raised errors are also instances."""
        self._shared_with = shared_with

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

    def check_no_draft(self, what: str) -> None:
        """Reject an immediate write beside a draft of this session or of another one."""
        if self.draft is not None:
            raise UsageError(f"{what} and saving by middleware can't be mixed", remedy="use session.draft here")
        self.record.table.write_at_once()

    def check_unchanged(self, what: str) -> None:
        """Reject reading from the store while this call has unsaved changes."""
        if self.draft is not None and self.draft.is_changed:
            raise UsageError(
                f"{what} would not show the changes of this call so far: middleware writes them after the call",
                remedy="read before the first change, or install without save=True",
            )

    # Saved by middleware

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

    async def save(self, label: str, once: dict[str, JSON] | None = None) -> None:
        """Write all gathered changes. After another caller's write nothing is written, and `Conflict` is raised."""
        draft = self.draft
        self.drop_draft()
        if draft is not None:
            with self.showing():
                await self.record.commit(draft.state, draft.label(label), base=draft.base, once=once, notes=draft.notes)

    # Repeated calls

    def key_name(self, key: str) -> str:
        """The name under which the answer to a call with this key is stored."""
        return key_name(key, self._shared_with)

    def kept_answer(self, key: str) -> dict[str, Any] | None:
        """The earlier answer to a call with this key."""
        answers = members(self.record.data.get("once"))
        name = self.key_name(key)
        return members(answers[name]) if name in answers else None
