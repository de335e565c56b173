"""What an answer means: one table that maps what was observed of an exchange to a verdict.

Its input is statuses, JSON-RPC codes, error texts and broken exchanges; `core/retry.py` decides what follows, and
`core/lost_session.py` has the error texts of a lost session. A timeout, a 401 or a 5xx never means a lost session or
another era.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.core.eras import UNSUPPORTED_VERSION, Era
from holdfast.core.lost_session import NO_SUCH_SESSION, SESSION_LOST_AS_ANSWER, TRANSPORT_CODES


class Verdict(Enum):
    """What an exchange means for its call."""

    ANSWER = "answer"
    SESSION_LOST = "session lost"
    NOT_SENT = "not sent"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    AUTH_NEEDED = "auth needed"
    BUSY = "busy"


class Broke(Enum):
    """Where an exchange broke, if it did."""

    NOWHERE = "nowhere"
    CONNECT = "before anything was sent"
    AFTER_SEND = "after sending, before the answer"
    IN_ANSWER = "in the middle of the answer"
    NO_ANSWER_IN_TIME = "no answer in time"
    NOT_AN_ANSWER = "what came is not an answer"
    TOO_LARGE = "the answer is over the size limit"
    REDIRECTED = "redirected elsewhere"
    CHILD_DIED = "the server's process ended"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was observed of one exchange.
    `text` is the JSON-RPC error's message, or the beginning of a body that is not JSON-RPC.
    """

    era: Era | None = None
    session_sent: bool = False
    broke: Broke = Broke.NOWHERE
    status: int | None = None
    code: int | None = None
    text: str = ""
    retry_after: float | None = None
    data: object = None
    challenge: str | None = None


@dataclass(frozen=True, slots=True)
class VerdictRule:
    """A pattern of an answer, and its verdict. A field that is None matches everything."""

    name: str
    verdict: Verdict
    broke: Broke = Broke.NOWHERE
    era: Era | None = None
    session_sent: bool | None = None
    status: tuple[int, ...] | range | None = None
    codes: tuple[int | None, ...] | None = None
    has_code: bool | None = None
    text: str | None = None
    retry_after: bool | None = None
    step_up: bool | None = None

    def matches(self, seen: Seen) -> bool:
        """Whether the rule applies to what was observed."""
        return (
            self.broke is seen.broke
            and self.era in (None, seen.era)
            and self.session_sent in (None, seen.session_sent)
            and (self.status is None or seen.status in self.status)
            and (self.codes is None or seen.code in self.codes)
            and self.has_code in (None, seen.code is not None)
            and (self.text is None or re.search(self.text, seen.text, re.IGNORECASE) is not None)
            and self.retry_after in (None, seen.retry_after is not None)
            and self.step_up in (None, "insufficient_scope" in (seen.challenge or ""))
        )


_Y2025, _Y2026 = Era.Y2025, Era.Y2026
_V, _B = Verdict, Broke

VERDICT_RULES: tuple[VerdictRule, ...] = (
    # Where the exchange itself broke, what came before the break decides nothing else.
    VerdictRule("connection refused, unresolved or timed out; or the pooled socket had ended", _V.NOT_SENT, _B.CONNECT),
    VerdictRule("reset or ended after the request was written", _V.UNKNOWN, _B.AFTER_SEND),
    VerdictRule("ended in the middle of the answer, and not resumed", _V.UNKNOWN, _B.IN_ANSWER),
    VerdictRule("no answer in time", _V.UNKNOWN, _B.NO_ANSWER_IN_TIME),
    VerdictRule("the server's process ended with the call under way", _V.UNKNOWN, _B.CHILD_DIED),
    VerdictRule("a 200 whose body is not the answer: HTML, broken JSON, another id", _V.UNKNOWN, _B.NOT_AN_ANSWER),
    VerdictRule("an answer over the size limit", _V.REJECTED, _B.TOO_LARGE),
    VerdictRule("a redirect that was not followed", _V.REJECTED, _B.REDIRECTED),
    # Credentials and load are checked before anything about the session.
    VerdictRule("401", _V.AUTH_NEEDED, status=(401,)),
    VerdictRule("403 with an `insufficient_scope` challenge", _V.AUTH_NEEDED, status=(403,), step_up=True),
    VerdictRule("429", _V.BUSY, status=(429,)),
    VerdictRule("503 with Retry-After", _V.BUSY, status=(503,), retry_after=True),
    VerdictRule("any other 5xx, with or without a JSON-RPC body", _V.UNKNOWN, status=range(500, 600)),
    # 2025: the session is gone. A 404 to a request with an id means that, whatever its body is.
    VerdictRule("404 to a request with an id: Python, TypeScript, Go or empty body", _V.SESSION_LOST, era=_Y2025, session_sent=True, status=(404,)),  # noqa: E501
    VerdictRule("410 to a request with an id", _V.SESSION_LOST, era=_Y2025, session_sent=True, status=(410,)),
    VerdictRule("400 whose text names the session: TypeScript's example after a restart", _V.SESSION_LOST, era=_Y2025, session_sent=True, status=(400,), codes=TRANSPORT_CODES, text=NO_SUCH_SESSION),  # noqa: E501
    VerdictRule("400 for a missing session id, where the handshake gave none", _V.SESSION_LOST, era=_Y2025, session_sent=False, status=(400,), codes=TRANSPORT_CODES, text=NO_SUCH_SESSION),  # noqa: E501
    VerdictRule("400 for an unsupported version: the server came back in 2026", _V.SESSION_LOST, era=_Y2025, status=(400,), codes=(UNSUPPORTED_VERSION,)),  # noqa: E501
    VerdictRule("400 for a missing 2026 header or `_meta` field", _V.SESSION_LOST, era=_Y2025, status=(400,), text=r"io\.modelcontextprotocol/|mcp-method"),  # noqa: E501
    VerdictRule("200 with an unknown-session error: a proxy or framework that answers 200 to everything", _V.SESSION_LOST, era=_Y2025, session_sent=True, status=range(200, 300), codes=(-32600, -32000, -32001), text=SESSION_LOST_AS_ANSWER),  # noqa: E501
    # 2026: the server came back in 2025 and refuses requests without what only that era has.
    VerdictRule("400 or 404 to a 2026 request, for a missing session id", _V.SESSION_LOST, era=_Y2026, status=(400, 404), codes=TRANSPORT_CODES, text=NO_SUCH_SESSION),  # noqa: E501
    VerdictRule("400 for an unsupported version", _V.SESSION_LOST, era=_Y2026, status=(400,), codes=(UNSUPPORTED_VERSION,)),  # noqa: E501
    VerdictRule("400 whose text says that the version is not supported", _V.SESSION_LOST, era=_Y2026, status=(400,), codes=(-32600, -32000), text=r"unsupported protocol version"),  # noqa: E501
    # Any other JSON-RPC body is the server's answer to this request.
    VerdictRule("a JSON-RPC error below 500: the server's answer to this request", _V.ANSWER, status=range(200, 500), has_code=True),  # noqa: E501
    VerdictRule("any other status below 500 without a JSON-RPC body", _V.REJECTED, status=range(100, 500)),
    VerdictRule("-32000 Connection closed from a program or object: the SDK's server ends", _V.UNKNOWN, codes=(-32000,), text="^connection closed$"),  # noqa: E501
    VerdictRule("a JSON-RPC error from a program or object", _V.ANSWER, has_code=True),
)  # fmt: skip


_NO_RULE = VerdictRule("nothing in the table", Verdict.UNKNOWN)


def judge(seen: Seen, more: Sequence[VerdictRule] = ()) -> Verdict:
    """The verdict of the first rule that matches; the rules in `more`, from a server's declaration, are tried first."""
    return rule_of(seen, more).verdict


def rule_of(seen: Seen, more: Sequence[VerdictRule] = ()) -> VerdictRule:
    """The rule that decided, for messages that name it."""
    for rules in (more, VERDICT_RULES):
        for rule in rules:
            if rule.matches(seen):
                return rule
    return _NO_RULE


_UNREACHABLE = (502, 503, 504)
"""Statuses of a proxy that could not reach the server, or of a server that accepts no work."""


def is_transport_fault(seen: Seen, answered_others: bool) -> bool:
    """Whether a failed exchange is a fault of the server or of the connection to it, not of the one request.
    A 500 comes from a working server; a missing answer is a fault unless the server answered other calls meanwhile.
    """
    if seen.broke is Broke.NO_ANSWER_IN_TIME:
        return not answered_others
    if seen.broke is Broke.NOWHERE and seen.status is not None:
        return seen.status in _UNREACHABLE
    return seen.broke not in (Broke.NOT_AN_ANSWER, Broke.TOO_LARGE, Broke.REDIRECTED)
