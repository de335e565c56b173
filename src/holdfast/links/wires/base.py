"""The contract between a link and its way to a server (HTTP, an object, a program), and the types of both.

A wire carries one message and reports what it saw. It does not judge or retry, and knows no more of sessions than that
an id goes with each message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from holdfast.core.eras import Era, Why
from holdfast.core.handshake import Handshake
from holdfast.core.models import BackendSessionId
from holdfast.core.verdicts import Seen, Verdict

ANSWER_SECONDS = 3600.0  # for which a server may be silent, because it waits for us: a person may be away for a while

Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[Message], Awaitable[None]]
"""Takes a message that is not the answer that a call waits for."""
Lost: TypeAlias = Callable[[Seen, Verdict], bool]
"""Takes news, from a server's own stream, that the session or the credentials are gone. True: stop reading."""
Dropped: TypeAlias = Callable[[str, bool], None]
"""Takes news that a server's own stream ended and is opened again: why, and whether nothing should be missing."""


@dataclass(slots=True, eq=False)
class Generation:
    """One handshake and the session it began. Calls hold on to theirs; a new one never cuts them off.

    Others read its fields, and change them by its methods only.
    """

    number: int
    era: Era
    version: str
    handshake: Handshake
    wire: "Wire"
    session: BackendSessionId | None = field(default=None, repr=False)
    why: Why = Why.PINNED
    """Why this era was taken."""
    adopted: bool = False
    """Its session was saved by another link, or in an earlier life of this one."""
    keeps_state: bool = True
    """A server can remember something for it: it has a session id, or is a connection of its own."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    credentials_version: int = 0
    """How often its credentials were set: a 401 to older ones changes nothing."""
    answered_unsafe: bool = False
    """An unsafe call may have left something in the session."""
    assumed: bool = False
    """There was no handshake: the user knows the server's era."""
    reseeded: bool = False
    """It was lost, and a hook has put into the next session what it kept."""
    to_restore: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Requests to send in an adopted session before any call: settings of this link that its beginner did not have."""
    lost: bool = False
    unreported_loss: bool = False
    """Its session replaced one that kept something, and no caller knows yet."""
    saved_loss: bool = False
    """`unreported_loss` as the memory had it last: what differs from it there, another link has changed."""
    unsaved: bool = False
    """There is a memory, and it does not have this session yet."""
    shared: bool = False
    """Other links use the session, too."""
    reported_elsewhere: bool = False
    """Its session was lost and replaced by another link, whose caller knows."""
    successor: "Generation | None" = None
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has answered the request for its own stream, whatever it said; or another process has the stream."""

    @property
    def held_state(self) -> bool:
        """Something may be lost with it."""
        return self.keeps_state and self.answered_unsafe

    @property
    def savable(self) -> bool:
        """Another process, or a later life, could use what is saved of it."""
        return self.keeps_state or not self.wire.owns_server

    def use_credentials(self, headers: Mapping[str, str]) -> None:
        """Its messages carry these headers from now on."""
        self.headers = headers
        self.credentials_version += 1

    def discovered(self, result: Mapping[str, Any]) -> None:
        """What the server says of itself, asked for after all."""
        self.handshake, self.assumed = Handshake(self.era, self.version, result), False

    def choose(self, why: Why) -> None:
        """Its era was taken for this reason."""
        self.why = why

    def unsafe_answered(self) -> None:
        """An unsafe call was executed in it, or may have been."""
        self.answered_unsafe = True

    def replaced_by(self, successor: "Generation") -> None:
        self.successor = successor

    def mark_lost(self) -> None:
        """The server no longer knows its session."""
        self.lost = True

    def mark_reseeded(self, reseeded: bool) -> None:
        """Whether the hook has put back what it kept."""
        self.reseeded = reseeded

    def mark_shared(self) -> None:
        self.shared = True

    def mark_unsaved(self) -> None:
        self.unsaved = True

    def loss_pending(self, pending: bool) -> None:
        """A loss before it has still to be reported, or has been reported."""
        self.unreported_loss = pending

    def loss_reported_elsewhere(self, reported: bool) -> None:
        """Another link has replaced its session; whether its caller knows what was lost."""
        self.reported_elsewhere = reported

    def saved_as(self, unreported_loss: bool) -> None:
        """The memory has it, with this word on a loss before it."""
        self.unsaved, self.saved_loss = False, unreported_loss

    def merge_saved(self, unreported_loss: bool, shared: bool) -> None:
        """What other links have saved of the same session: whether a loss was reported, and that they use it."""
        self.shared = self.shared or shared
        if self.unreported_loss is self.saved_loss:
            self.unreported_loss = unreported_loss

    def loss_settled(self) -> None:
        """The loss before it was reported by another link, and the memory says so."""
        self.unreported_loss = self.saved_loss = False


@dataclass(frozen=True, slots=True)
class Loss:
    """A session is gone with what it kept, and no caller knows yet."""

    session: BackendSessionId | None = field(default=None, repr=False)
    generation: int = 0
    """The number of the generation that was lost here; 0 if it was an earlier life's."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The answer of a call, over HTTP in 2025, as something that can be gone on with later."""

    token: str | None = None
    """The id of the last event that was read of it: the rest is asked for, and nothing is executed."""
    on_token: Callable[[str], Awaitable[None]] | None = None
    """Gets the id of each event. Must not raise."""


@dataclass(slots=True)
class Reply:
    """How one exchange went. `message` is the JSON-RPC answer; with `seen` it is an error, or None."""

    message: Message | None = None
    seen: Seen | None = None
    session: str | None = None
    """The session id on the answer, as it came."""
    what: str = ""
    """What happened, in words."""
    exit_code: int | None = None
    stderr_tail: str | None = None


@dataclass(slots=True, eq=False)
class Patience:
    """How long one exchange may take: `until` is a moment of the loop's clock, `silence` a span without a byte, which
    is not counted while the server waits for an answer of ours."""

    until: float | None
    silence: float | None
    questions: int = 0
    """The server's, that we are answering."""
    timer: asyncio.Timeout | None = None
    """The exchange's own, while it waits."""

    def next(self, now: float) -> float | None:
        """When to give up, if nothing comes from now on."""
        if self.silence is None:
            return self.until
        quiet = now + self.silence + (ANSWER_SECONDS if self.questions else 0.0)
        return quiet if self.until is None or quiet < self.until else self.until

    def begin(self, questions: int) -> None:
        """The exchange begins while so many questions are being answered."""
        self.questions = questions

    def add_questions(self, questions: int) -> None:
        """So many more questions of the server are being answered; fewer, where it is negative."""
        self.questions += questions
        if self.timer is not None and not self.timer.expired():
            self.timer.reschedule(self.next(asyncio.get_running_loop().time()))

    def attach(self, timer: asyncio.Timeout | None) -> None:
        """The timer to keep in step, while the exchange waits; None once it is left, when it must not be set."""
        self.timer = timer

    def lift(self) -> None:
        """There is no total any more."""
        self.until = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the resolve phase found out: where the server is and what we show it. Secrets: never in `repr`."""

    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


class Wire(Protocol):
    """Opened once, closed once, used by many calls at a time. Cancelling a call never harms another."""

    owns_server: bool
    """True if the server lives and dies with the wire, so that a lost wire is a lost session."""

    async def open(self, resolved: Resolved) -> None:
        """Get what is expensive: a pool, a child. HoldfastError if that fails."""
        ...

    def apply_credentials(self, generation: Generation, resolved: Resolved) -> None:
        """Prepare what every message of this generation carries; credentials included."""
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
        """Send a request and wait for its answer. Raises nothing but the caller's own cancellation."""
        ...

    async def deliver(self, generation: Generation, message: Message, seconds: float) -> Reply:
        """Send a notification, or an answer of ours."""
        ...

    async def listen(self, generation: Generation, receive: Receive, lost: Lost, dropped: Dropped) -> None:
        """Read what the server sends unasked, until cancelled. Returns if the server has no such stream."""
        ...

    async def end(self, generation: Generation, seconds: float) -> Reply:
        """End the session at the server."""
        ...

    async def close(self) -> None:
        """Close; calls under way end with what was seen. Never raises."""
        ...
