"""What a link needs of a way to a server: HTTP, an object, later a child process. It owns the words between the two.

A wire carries one message and reports what was seen of it. It refuses to judge, to retry and to know of sessions more
than that an id rides along.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from holdfast.core.eras import Era, Why
from holdfast.core.handshake import Handshake
from holdfast.core.models import BackendSessionId
from holdfast.core.outcome import Seen, Verdict

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
    """One handshake and the session it began. Calls hold on to theirs; a new one never cuts them off."""

    number: int
    era: Era
    version: str
    handshake: Handshake
    wire: "Wire"
    session: BackendSessionId | None = field(default=None, repr=False)
    why: Why = Why.PINNED
    """Why this era was taken."""
    adopted: bool = False
    keeps_state: bool = True
    """A server can remember something for it: it has a session id, or is a connection of its own."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    credentials_version: int = 0
    """How often its credentials were set: a 401 to older ones is no news."""
    answered_unsafe: bool = False
    reseeded: bool = False
    to_restore: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    """What the session must be told before anybody's call."""
    lost: bool = False
    unreported_loss: bool = False
    """Its session replaced one that kept something, and no caller has been told yet."""
    saved_loss: bool = False
    """`unreported_loss` as the memory had it last: what differs from it there, another link has changed."""
    unsaved: bool = False
    """There is a memory, and it does not have this session yet."""
    shared: bool = False
    """Other links use the session, too."""
    reported_elsewhere: bool = False
    """Its session was lost and replaced by another link, whose caller was told."""
    successor: "Generation | None" = None
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has answered to our wish for its own stream, whatever it said."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A session is gone with what it kept, and no caller has been told yet."""

    session: BackendSessionId | None = field(default=None, repr=False)
    generation: int = 0
    """The number of the generation that was lost here; 0 if it was an earlier life's."""


@dataclass(slots=True)
class Reply:
    """How one exchange went. `message` is the JSON-RPC answer; with `seen` it is an error or there is none."""

    message: Message | None = None
    seen: Seen | None = None
    session: str | None = None
    """The session id on the answer, as it came."""
    what: str = ""
    """What happened, for people."""
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
        if self.silence is None:
            return self.until
        quiet = now + self.silence + (ANSWER_SECONDS if self.questions else 0.0)
        return quiet if self.until is None or quiet < self.until else self.until

    def asked(self, questions: int) -> None:
        """So many more questions of the server are being answered; fewer, where it is negative."""
        self.questions += questions
        if self.timer is not None and not self.timer.expired():
            self.timer.reschedule(self.next(asyncio.get_running_loop().time()))


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
        self, generation: Generation, message: Message, headers: Mapping[str, str], patience: Patience, receive: Receive
    ) -> Reply:
        """Carry a request and wait for its answer. Never raises but for the caller's own cancellation."""
        ...

    async def tell(self, generation: Generation, message: Message, seconds: float) -> Reply:
        """Carry a notification, or an answer of ours."""
        ...

    async def listen(self, generation: Generation, receive: Receive, lost: Lost, dropped: Dropped) -> None:
        """Read what the server says unasked, until cancelled. Returns if the server offers no such stream."""
        ...

    async def end(self, generation: Generation, seconds: float) -> Reply:
        """Tell the server that its session is no longer needed."""
        ...

    async def close(self) -> None:
        """Let go of everything; calls under way end with what was seen. Never raises."""
        ...
