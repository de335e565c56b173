"""The exception tree, by what the caller may do next.

There are four families: `Unavailable` (nothing was executed, retrying is safe), `OutcomeUnknown` (sent and not
answered, the caller decides), `Rejected` (the peer said no) and `UsageError` (a bug in the calling code). Texts are for
people; programs should use the fields. `str(error)` is for the author and the operator; `public_text()` is what a model
or a remote caller may read.
"""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypedDict, Unpack


class Fields(TypedDict, total=False):
    """Optional fields of any error; absent ones are None."""

    remedy: str
    server: str
    session: str
    new_session: str
    phase: str
    status: int
    code: int
    attempts: int
    retry_after: float
    exit_code: int
    stderr_tail: str
    store: str
    kind: str
    id: str


NOTHING_DONE = "nothing was executed, so it is safe to call again later"
MAYBE_DONE = "it may have been executed: check before you call it again"
REFUSED_AGAIN = "the same call will be refused again"
ASK_OPERATOR = "the operator of this program must correct it"


class HoldfastError(Exception):
    """Base class of all errors that Holdfast raises."""

    summary: ClassVar[str] = "failed"
    """What happened to the server or call, for `public_text()`: no addresses, paths, commands or output."""
    advice: ClassVar[str] = ASK_OPERATOR
    """What a model or remote caller may do next, for `public_text()`."""

    def __init__(self, what: str, **fields: Unpack[Fields]) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = fields.get("remedy")
        self.server = fields.get("server")
        self.session = fields.get("session")
        self.new_session = fields.get("new_session")
        self.phase = fields.get("phase")
        self.status = fields.get("status")
        self.code = fields.get("code")
        self.attempts = fields.get("attempts")
        self.retry_after = fields.get("retry_after")
        self.exit_code = fields.get("exit_code")
        self.stderr_tail = fields.get("stderr_tail")
        self.store = fields.get("store")
        self.kind = fields.get("kind")
        self.id = fields.get("id")

    def __str__(self) -> str:
        text = f"{self.what}; {self.remedy}" if self.remedy else self.what
        return f"{text}\n--- last lines of stderr ---\n{self.stderr_tail}" if self.stderr_tail else text

    def public_text(self) -> str:
        """Kind, server and what to do next, for a model or a remote caller. The text of the error itself may name
        commands, output, addresses, paths and session ids; those are for the author and the operator."""
        shown = repr(self.server) if self.server and "://" not in self.server else "the server"
        status = f" (HTTP {self.status})" if self.status is not None else ""
        wait = f"; wait {self.retry_after:.3g} s first" if self.retry_after else ""
        return f"{type(self).__name__}: {shown} {self._public_summary()}{status}; {self.advice}{wait}"

    def _public_summary(self) -> str:
        return self.summary

    def public_fields(self) -> dict[str, Any]:
        """The same for programs: kind, family and numbers."""
        family = next((kind for kind in type(self).__mro__ if HoldfastError in kind.__bases__), HoldfastError)
        fields: dict[str, Any] = {"error": type(self).__name__, "family": family.__name__}
        for name in ("status", "attempts", "retry_after", "exit_code"):
            if (value := getattr(self, name)) is not None:
                fields[name] = value
        return fields

    def copied(self) -> Self:
        """A copy for another waiting task, with a traceback of its own, and the cause once."""
        again = copy.copy(self)
        again.__cause__, again.__suppress_context__ = self.__cause__, True
        return again

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are pickled by process pools and test runners: rebuild without calling our own __init__.
        return (_rebuild, (type(self), self.what, self.__dict__))


def _rebuild(cls: type[HoldfastError], what: str, state: dict[str, object]) -> HoldfastError:
    error = cls.__new__(cls, what)
    error.__dict__.update(state)
    return error


class Unavailable(HoldfastError):
    """Nothing was executed; retrying is safe."""

    summary = "is not available"
    advice = NOTHING_DONE


class ConnectFailed(Unavailable):
    """The server could not be reached or started."""

    summary = "could not be reached or started"


class StartTimeout(Unavailable):
    """The server did not come up within its deadline."""

    summary = "did not start in time"


class StoreDown(Unavailable):
    """The store did not answer, or could not do what was asked; nothing was written."""

    summary = "needs a store, which does not answer"


class CircuitOpen(Unavailable):
    """The server failed too often; calls to it are rejected for a while."""

    summary = "failed too often and is not called for a while"


class PoolFull(Unavailable):
    """Every link is leased and none came free in time."""

    summary = "has no free connection"


class Busy(Unavailable):
    """Another caller holds it, or the peer asked for a pause; see `retry_after`."""

    summary = "is busy"


class NoBackend(Unavailable):
    """The backend that owns this name is not up."""

    summary = "is not running"


class RunsElsewhere(Unavailable):
    """The program, with its state, runs in another gateway process."""

    summary = "runs in another gateway process"


class OutcomeUnknown(HoldfastError):
    """The request was sent and no answer came:
    it may or may not have been executed, and the caller decides what to do.
    """

    summary = "did not answer"
    advice = MAYBE_DONE


class ConnectionLost(OutcomeUnknown):
    """The connection broke after the request was written."""

    summary = "lost the connection during the call"


class AnswerTimeout(OutcomeUnknown):
    """The peer received the request and did not answer in time."""

    summary = "did not answer in time"


class BadAnswer(OutcomeUnknown):
    """The peer received the request, and what came back is not an answer to it."""

    summary = "sent something that is not an answer to this call"


class ParkedElsewhere(OutcomeUnknown):
    """The call waited for answers of its client in a gateway process that has ended, or in another one."""

    summary = "was called through a gateway process that has ended, or another one, where the call waited for answers"


class ChildDied(OutcomeUnknown):
    """The server process ended while a call was under way."""

    summary = "ended during the call"


class WriteUnsettled(OutcomeUnknown):
    """The answer to a write was lost, and reading back did not show whether it was executed."""

    summary = "could not confirm a write"


class Rejected(HoldfastError):
    """The peer refused the request; sending the same again gets the same answer."""

    summary = "refused the call"
    advice = REFUSED_AGAIN


class ErrorAnswer(Rejected):
    """The server answered with a JSON-RPC error: `code`, `message` and `data` are the server's own."""

    summary = "answered with an error"

    def __init__(self, what: str, *, message: str = "", data: object = None, **fields: Unpack[Fields]) -> None:
        super().__init__(what, **fields)
        self.message = message
        self.data = data
        self.answer: Mapping[str, Any] | None = None
        """The error object as it came, where there was one."""

    def _public_summary(self) -> str:
        # The server's own message is meant for the caller.
        code = "" if self.code is None else f" {self.code}"
        return f"{self.summary}{code}: {self.message[:2000]}" if self.message else f"{self.summary}{code}"


class Unauthorized(Rejected):
    """The server refused the credentials."""

    summary = "refused the credentials"
    advice = ASK_OPERATOR


class SessionReplaced(Rejected):
    """The server started a new session; the state of the old one is gone."""

    summary = "started a new session and what the old one kept is gone; this call was not executed"
    advice = "call again to continue in the new session"


class SessionExpired(Rejected):
    """Its idle time or maximum age has passed."""

    summary = "no longer has this session"
    advice = "begin a new session"


class Forbidden(Rejected):
    """It belongs to another principal."""

    summary = "does not allow this caller to do that"


class QuestionRefused(Rejected):
    """The server sent a request to its client during a call, and it could not be passed on."""

    summary = "asked its client a question that can't be passed on to it"
    advice = "connect with a 2025 client that answers such questions, or use a tool that asks nothing"


class NotFound(Rejected):
    """It does not exist, or this caller may not see it."""

    summary = "has no such thing"


class Conflict(Rejected):
    """Another writer changed it first, or the claim of this write is no longer held."""

    summary = "was changed by another call at the same time"
    advice = "read again, then call again"

    def __init__(
        self, what: str, *, expect: int | None = None, actual: int | None = None, **fields: Unpack[Fields]
    ) -> None:
        super().__init__(what, **fields)
        self.expect = expect
        self.actual = actual


class WrongPhase(Rejected):
    """The companion is not in the phase that this step needs;
    `phase` names the current one, the remedy what to call next.
    """

    summary = "is in another phase than this step needs"
    advice = "ask for the current phase first"


class Ended(Rejected):
    """It was ended and can't be restored."""

    summary = "has ended this session"
    advice = "begin a new session"


class LimitReached(Rejected):
    """A configured limit would be exceeded."""

    summary = "would exceed a limit"
    advice = "ask for less, or send less"

    def __init__(
        self, what: str, *, limit: int | None = None, actual: int | None = None, **fields: Unpack[Fields]
    ) -> None:
        super().__init__(what, **fields)
        self.limit = limit
        self.actual = actual

    def _public_summary(self) -> str:
        known = self.limit is not None and self.actual is not None
        return f"{self.summary} ({self.actual} of {self.limit})" if known else self.summary


class CorruptRecord(Rejected):
    """What is stored there is not a record that Holdfast wrote."""

    summary = "has a stored record that cannot be read"
    advice = ASK_OPERATOR


class UsageError(HoldfastError):
    """A bug in the calling code or its configuration."""

    summary = "was called in a way that cannot work"
    advice = ASK_OPERATOR


class LeaseClosed(UsageError):
    """It was used after it was released or closed."""

    summary = "was called after its run had ended"


class CallbackFailed(UsageError):
    """A callback that answers requests of the server raised, or returned a wrong type."""

    summary = "asked this client for input, and the client's callback for it failed"


class UnstorableValue(UsageError):
    """The value would not survive the round trip through a store; `path` says where it is."""

    summary = "was given a value that cannot be stored"

    def __init__(self, what: str, *, path: str, **fields: Unpack[Fields]) -> None:
        super().__init__(what, **fields)
        self.path = path


class ConfigError(UsageError):
    """A setting is wrong; the text names the setting, the place and the remedy."""

    summary = "has a wrong setting"
