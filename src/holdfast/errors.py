"""The exception tree. It owns one question: what may the caller do next?

Four families answer it: `Unavailable` (nothing was executed, retrying is safe), `OutcomeUnknown` (sent and not
answered, the caller decides), `Rejected` (the peer said no) and `UsageError` (a bug in the calling code).
It refuses to be parsed: what a program needs stands in fields, the text is for people.
"""

from typing import TypedDict, Unpack


class Fields(TypedDict, total=False):
    """What any error may know; absent fields read as None."""

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


class HoldfastError(Exception):
    """Everything that Holdfast raises on purpose."""

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

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries (pools, test runners): rebuild without calling our own __init__.
        return (_rebuild, (type(self), self.what, self.__dict__))


def _rebuild(cls: type[HoldfastError], what: str, state: dict[str, object]) -> HoldfastError:
    error = cls.__new__(cls, what)
    error.__dict__.update(state)
    return error


class Unavailable(HoldfastError):
    """Nothing was executed; retrying is safe."""


class ConnectFailed(Unavailable):
    """The server could not be reached or started."""


class StartTimeout(Unavailable):
    """The server did not come up within its deadline."""


class StoreDown(Unavailable):
    """The store did not answer, or could not do what was asked; nothing was written."""


class CircuitOpen(Unavailable):
    """The server failed too often just now; calls are held back until it has had a rest."""


class PoolFull(Unavailable):
    """Every link is leased and none came free in time."""


class Busy(Unavailable):
    """Somebody else holds it, or the peer asked us to wait; see `retry_after`."""


class NoBackend(Unavailable):
    """The backend that owns this name is not up."""


class OutcomeUnknown(HoldfastError):
    """It was sent and no answer came: it may or may not have happened. The caller decides."""


class ConnectionLost(OutcomeUnknown):
    """The connection broke after the request was written."""


class AnswerTimeout(OutcomeUnknown):
    """The peer took the request and did not answer in time."""


class BadAnswer(OutcomeUnknown):
    """The peer took the request, and what came back is not an answer to it."""


class ChildDied(OutcomeUnknown):
    """The server process ended while a call was under way."""


class WriteUnsettled(OutcomeUnknown):
    """A write's answer was lost and reading back did not settle whether it happened."""


class Rejected(HoldfastError):
    """The peer said no; sending the same again gets the same answer."""


class ErrorAnswer(Rejected):
    """The server answered with a JSON-RPC error: `code`, `message` and `data` are its words."""

    def __init__(self, what: str, *, message: str = "", data: object = None, **fields: Unpack[Fields]) -> None:
        super().__init__(what, **fields)
        self.message = message
        self.data = data


class Unauthorized(Rejected):
    """The server wants other credentials."""


class SessionReplaced(Rejected):
    """The server started a new session; what the old one kept is gone."""


class SessionExpired(Rejected):
    """It lived past its idle time or its maximum age."""


class Forbidden(Rejected):
    """It belongs to another principal."""


class NotFound(Rejected):
    """There is no such thing."""


class Conflict(Rejected):
    """Somebody else wrote first, or the claim behind this write is no longer held."""

    def __init__(
        self, what: str, *, expect: int | None = None, actual: int | None = None, **fields: Unpack[Fields]
    ) -> None:
        super().__init__(what, **fields)
        self.expect = expect
        self.actual = actual


class WrongPhase(Rejected):
    """The helper is in another phase than this step needs; `phase` says which, the remedy what to call next."""


class Ended(Rejected):
    """It was ended; nothing brings it back."""


class LimitReached(Rejected):
    """A configured limit would be passed."""

    def __init__(
        self, what: str, *, limit: int | None = None, actual: int | None = None, **fields: Unpack[Fields]
    ) -> None:
        super().__init__(what, **fields)
        self.limit = limit
        self.actual = actual


class CorruptRecord(Rejected):
    """Something is stored there, and it is not a record that Holdfast wrote."""


class UsageError(HoldfastError):
    """A bug in the calling code or its configuration."""


class LeaseClosed(UsageError):
    """Used after it was released or closed."""


class UnstorableValue(UsageError):
    """The value would not survive the round trip; `path` says where it stands."""

    def __init__(self, what: str, *, path: str, **fields: Unpack[Fields]) -> None:
        super().__init__(what, **fields)
        self.path = path


class ConfigError(UsageError):
    """A setting is wrong; the text names the setting, the place and the remedy."""
