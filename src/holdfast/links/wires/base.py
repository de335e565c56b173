"""The contract between a link and its transport (HTTP, an object, a program), and their common types.

A wire sends one message and reports what it observed. It does not decide or retry; of sessions it knows only that an id
is sent with each message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from holdfast.core.eras import Era, Why
from holdfast.core.handshake import Handshake
from holdfast.core.models import BackendSessionId
from holdfast.core.verdicts import Seen, Verdict

ANSWER_SECONDS = 3600.0  # a server may be silent while it waits for our answer, perhaps a person's

Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[Message], Awaitable[None]]
"""Called with a message that is not the answer to a call."""
Lost: TypeAlias = Callable[[Seen, Verdict], bool]
"""Called when a server's own stream shows that the session or the credentials are gone.
Returns True to stop reading.
"""
Dropped: TypeAlias = Callable[[str, bool], None]
"""Called when a server's own stream ended and is reopened, with the reason and whether no message should be missing."""


@dataclass(slots=True, eq=False)
class Generation:
    """One handshake and the session that it began.
    Calls keep the generation they began in; a new one does not interrupt them.

    Other code reads its fields and changes them only by its methods.
    """

    number: int
    era: Era
    version: str
    handshake: Handshake
    wire: "Wire"
    session: BackendSessionId | None = field(default=None, repr=False)
    why: Why = Why.PINNED
    """Why this era is used."""
    adopted: bool = False
    """Its session was saved by another link, or by this one before it was closed."""
    keeps_state: bool = True
    """A server can keep state for it: it has a session id or a connection of its own."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    credentials_version: int = 0
    """How often its credentials were set: a 401 to older ones is ignored."""
    answered_unsafe: bool = False
    """An unsafe call may have left state in the session."""
    assumed: bool = False
    """There was no handshake, because the user knows the server's era."""
    reseeded: bool = False
    """It was lost, and the reseed hook has restored its state in the next session."""
    to_restore: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Requests to send in an adopted session before any call: settings that the link that began it did not have."""
    lost: bool = False
    unreported_loss: bool = False
    """Its session replaced one with state, which has not been reported to a caller yet."""
    saved_loss: bool = False
    """`unreported_loss` as last seen in the memory: a different value there was written by another link."""
    unsaved: bool = False
    """There is a memory that does not have this session yet."""
    shared: bool = False
    """Other links use the session, too."""
    reported_elsewhere: bool = False
    """Its session was lost and replaced by another link, which has reported that."""
    successor: "Generation | None" = None
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has accepted or refused the request for its own stream, or another process reads the stream."""

    @property
    def held_state(self) -> bool:
        """Whether state may be lost with it."""
        return self.keeps_state and self.answered_unsafe

    @property
    def savable(self) -> bool:
        """Whether another process, or a later link, could use its saved session."""
        return self.keeps_state or not self.wire.owns_server

    def use_credentials(self, headers: Mapping[str, str]) -> None:
        """Set the headers of its messages."""
        self.headers = headers
        self.credentials_version += 1

    def discovered(self, result: Mapping[str, Any]) -> None:
        """Set the server's handshake, requested after all."""
        self.handshake, self.assumed = Handshake(self.era, self.version, result), False

    def choose(self, why: Why) -> None:
        """Set why its era is used."""
        self.why = why

    def unsafe_answered(self) -> None:
        """Record that an unsafe call was executed in it, or may have been."""
        self.answered_unsafe = True

    def replaced_by(self, successor: "Generation") -> None:
        self.successor = successor

    def mark_lost(self) -> None:
        """Record that the server no longer knows its session."""
        self.lost = True

    def mark_reseeded(self, reseeded: bool) -> None:
        """Record whether the hook has restored its state."""
        self.reseeded = reseeded

    def mark_shared(self) -> None:
        self.shared = True

    def mark_unsaved(self) -> None:
        self.unsaved = True

    def loss_pending(self, pending: bool) -> None:
        """Set whether an earlier loss is still to be reported."""
        self.unreported_loss = pending

    def loss_reported_elsewhere(self, reported: bool) -> None:
        """Record that another link has replaced its session, and whether that link has reported the loss."""
        self.reported_elsewhere = reported

    def saved_as(self, unreported_loss: bool) -> None:
        """Record that the memory has it, with this value for an unreported loss."""
        self.unsaved, self.saved_loss = False, unreported_loss

    def merge_saved(self, unreported_loss: bool, shared: bool) -> None:
        """Apply what other links have saved of the same session: whether a loss was reported, and that they use it."""
        self.shared = self.shared or shared
        if self.unreported_loss is self.saved_loss:
            self.unreported_loss = unreported_loss

    def loss_settled(self) -> None:
        """Record that, according to the memory, another link has reported the earlier loss."""
        self.unreported_loss = self.saved_loss = False


@dataclass(frozen=True, slots=True)
class Loss:
    """A session is gone with its state, which has not been reported to a caller yet."""

    session: BackendSessionId | None = field(default=None, repr=False)
    generation: int = 0
    """The number of the lost generation; 0 if it belonged to an earlier link."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """How to resume the answer of a call later. HTTP in 2025 only."""

    token: str | None = None
    """The id of the last event that was read: only the rest of the answer is requested, and nothing is executed."""
    on_token: Callable[[str], Awaitable[None]] | None = None
    """Called with the id of each event. Must not raise."""


@dataclass(slots=True)
class Reply:
    """The outcome of one exchange. `message` is the JSON-RPC answer; if `seen` is set, it is an error or None."""

    message: Message | None = None
    seen: Seen | None = None
    session: str | None = None
    """The session id on the answer, unchecked."""
    what: str = ""
    """What happened, in words."""
    exit_code: int | None = None
    stderr_tail: str | None = None


@dataclass(slots=True, eq=False)
class Patience:
    """How long one exchange may take:
    `until` is a time of the event loop's clock, `silence` a number of seconds without a byte, not counted while the
    server waits for an answer of ours.
    """

    until: float | None
    silence: float | None
    questions: int = 0
    """The number of the server's questions being answered."""
    timer: asyncio.Timeout | None = None
    """The timer of the exchange while it waits."""

    def next(self, now: float) -> float | None:
        """When to give up if nothing is received from now on."""
        if self.silence is None:
            return self.until
        quiet = now + self.silence + (ANSWER_SECONDS if self.questions else 0.0)
        return quiet if self.until is None or quiet < self.until else self.until

    def begin(self, questions: int) -> None:
        """Begin the exchange while this many questions are being answered."""
        self.questions = questions

    def add_questions(self, questions: int) -> None:
        """Change the number of the server's questions being answered; `more` may be negative."""
        self.questions += questions
        if self.timer is not None and not self.timer.expired():
            self.timer.reschedule(self.next(asyncio.get_running_loop().time()))

    def attach(self, timer: asyncio.Timeout | None) -> None:
        """Set the timer to update while the exchange waits;
        None once it has ended, when it must not be set any more.
        """
        self.timer = timer

    def lift(self) -> None:
        """Remove the total limit."""
        self.until = None

    def end(self) -> None:
        """No answer will come: give up now."""
        self.until = asyncio.get_running_loop().time()
        if self.timer is not None and not self.timer.expired():
            self.timer.reschedule(self.until)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of the resolve phase: the server's URL and the credentials, which are secret and never in `repr`."""

    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


class Wire(Protocol):
    """A transport, opened and closed once, used by many calls at a time. Cancelling a call does not affect others."""

    owns_server: bool
    """Whether the server ends with the wire, so that a lost wire is a lost session."""

    async def open(self, resolved: Resolved) -> None:
        """Acquire the expensive resources: a pool, a child process. Raises HoldfastError on failure."""
        ...

    def apply_credentials(self, generation: Generation, resolved: Resolved) -> None:
        """Prepare what every message of this generation carries, including credentials."""
        ...

    async def send(
        self,
        generation: Generation,
        message: Message,
        headers: Mapping[str, str],
        patience: Patience,
        receive: Receive,
        resumption: Resumption | None = None,
    ) -> Reply:
        """Send a request and wait for its answer. Raises only the caller's own cancellation."""
        ...

    async def deliver(self, generation: Generation, message: Message, seconds: float) -> Reply:
        """Send a notification, or an answer of ours."""
        ...

    async def listen(self, generation: Generation, receive: Receive, lost: Lost, dropped: Dropped) -> None:
        """Read the server's own messages until cancelled. Returns if the server has no stream for them."""
        ...

    async def end(self, generation: Generation, seconds: float) -> Reply:
        """End the session at the server."""
        ...

    async def close(self) -> None:
        """Close; calls in flight end with what was observed. Never raises."""
        ...
