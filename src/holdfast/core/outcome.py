"""What an answer means: one table from what was seen to a verdict, with the error shapes that servers send.

It reads statuses, JSON-RPC codes, message families and broken exchanges; `core/retry.py` decides what follows. A
timeout, a 401 or a 5xx is never taken as news of the session or the era.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.core.eras import UNSUPPORTED_VERSION, Era


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
    NOT_AN_ANSWER = "something came that is not an answer"
    TOO_LARGE = "the answer is over the cap"
    REDIRECTED = "redirected elsewhere"
    CHILD_DIED = "the server's process ended"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one exchange. `text` is the JSON-RPC error's message, or the beginning of a foreign body."""

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
    """One shape of an answer, and its verdict. A field that is None matches everything."""

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
        """Does the rule speak of what was seen?"""
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


_AN_ID = r"['\"]?(?=[\w-]*\d)[\w-]{6,128}['\"]?"
"""What looks like an id, rather than a word of a sentence."""

NO_SUCH_SESSION = (
    r"session[ -]?(id)?( header)?\W*(was |is |has (been )?)?"
    r"(not found|not valid|invalid|unknown|expired|terminated|required|missing|closed|gone|does not exist)"
    r"|(no|not a|in)\s*valid session|invalid session|unknown session|missing session|expired session"
    r"|no (such|active) session|not initialized|without initialization"
    rf"|session {_AN_ID} (was |is |has (been )?)?(not found|invalid|unknown|expired|terminated|closed|does not exist)"
)
"""The words in which servers say that they do not know our session."""

_OF_TRANSPORT = (None, -32600, -32000, -32001)
"""The codes of refusals that a transport makes; an application's own -32602 may speak of sessions too."""

SESSION_LOST_AS_ANSWER = (
    r"^((bad request|not found|error):? *)*("
    rf"(the )?(mcp )?session( id)?( {_AN_ID})? (was |is |has (been )?)?"
    r"(not found|not valid|invalid|unknown|terminated|expired|closed|does not exist)"
    rf"( or (was |has )?(not found|invalid|unknown|terminated|expired|closed))?(:? {_AN_ID})?"
    rf"|(invalid|unknown|expired|missing)( or (invalid|unknown|expired|missing))? (mcp )?session( id)?(:? {_AN_ID})?"
    r"|(no|not a) valid session( id)?( provided)?"
    rf"|no such session(:? {_AN_ID})?"
    r"|(the )?mcp-session-id( header)? (is )?(required|missing|invalid|unknown|not valid)"
    r"|missing mcp-session-id( header)?"
    r"|(server )?not initialized"
    r")[.!]?$"
)
"""The same as a whole message, for an answer under HTTP 200: an application's error may speak of its own sessions."""

_Y2025, _Y2026 = Era.Y2025, Era.Y2026
_V, _B = Verdict, Broke

VERDICT_RULES: tuple[VerdictRule, ...] = (
    # Where the exchange itself broke, nothing that came before the break is a verdict on anything else.
    VerdictRule("connection refused, unresolved or timed out; or the pooled socket had ended", _V.NOT_SENT, _B.CONNECT),
    VerdictRule("reset or ended after the request was written", _V.UNKNOWN, _B.AFTER_SEND),
    VerdictRule("ended in the middle of the answer, and not resumed", _V.UNKNOWN, _B.IN_ANSWER),
    VerdictRule("no answer in time", _V.UNKNOWN, _B.NO_ANSWER_IN_TIME),
    VerdictRule("the server's process ended with the call under way", _V.UNKNOWN, _B.CHILD_DIED),
    VerdictRule("a 200 that is no answer: HTML, broken JSON, another id", _V.UNKNOWN, _B.NOT_AN_ANSWER),
    VerdictRule("an answer over the cap", _V.REJECTED, _B.TOO_LARGE),
    VerdictRule("a redirect that was not followed", _V.REJECTED, _B.REDIRECTED),
    # Who we are, and how busy they are: known before anything about the session.
    VerdictRule("401", _V.AUTH_NEEDED, status=(401,)),
    VerdictRule("403 that asks for more scope", _V.AUTH_NEEDED, status=(403,), step_up=True),
    VerdictRule("429", _V.BUSY, status=(429,)),
    VerdictRule("503 with Retry-After", _V.BUSY, status=(503,), retry_after=True),
    VerdictRule("any other 5xx, with or without a JSON-RPC body", _V.UNKNOWN, status=range(500, 600)),
    # 2025: the session is gone. With an id on the request a 404 says so, whatever its body says.
    VerdictRule("404 to a request with an id: Python, TypeScript, Go or empty body", _V.SESSION_LOST, era=_Y2025, session_sent=True, status=(404,)),  # noqa: E501
    VerdictRule("410 to a request with an id", _V.SESSION_LOST, era=_Y2025, session_sent=True, status=(410,)),
    VerdictRule("400 that names the session: TypeScript's example after a restart", _V.SESSION_LOST, era=_Y2025, session_sent=True, status=(400,), codes=_OF_TRANSPORT, text=NO_SUCH_SESSION),  # noqa: E501
    VerdictRule("400 that asks for a session where none was given at the handshake", _V.SESSION_LOST, era=_Y2025, session_sent=False, status=(400,), codes=_OF_TRANSPORT, text=NO_SUCH_SESSION),  # noqa: E501
    VerdictRule("400 that no longer speaks our version: the server came back in 2026", _V.SESSION_LOST, era=_Y2025, status=(400,), codes=(UNSUPPORTED_VERSION,)),  # noqa: E501
    VerdictRule("400 that wants a 2026 envelope", _V.SESSION_LOST, era=_Y2025, status=(400,), text=r"io\.modelcontextprotocol/|mcp-method"),  # noqa: E501
    VerdictRule("200 whose error is that the session is not known: a proxy or framework that always says 200", _V.SESSION_LOST, era=_Y2025, session_sent=True, status=range(200, 300), codes=(-32600, -32000, -32001), text=SESSION_LOST_AS_ANSWER),  # noqa: E501
    # 2026: the server came back in 2025 and asks for what only that era has.
    VerdictRule("400 that asks a 2026 request for a session", _V.SESSION_LOST, era=_Y2026, status=(400, 404), codes=_OF_TRANSPORT, text=NO_SUCH_SESSION),  # noqa: E501
    VerdictRule("400 that no longer speaks our version", _V.SESSION_LOST, era=_Y2026, status=(400,), codes=(UNSUPPORTED_VERSION,)),  # noqa: E501
    VerdictRule("400 that says the version is not supported, in words", _V.SESSION_LOST, era=_Y2026, status=(400,), codes=(-32600, -32000), text=r"unsupported protocol version"),  # noqa: E501
    # What is left with a JSON-RPC body is the server's own word about this request.
    VerdictRule("a JSON-RPC error below 500: the server's word on this request", _V.ANSWER, status=range(200, 500), has_code=True),  # noqa: E501
    VerdictRule("any other status below 500 without a JSON-RPC body", _V.REJECTED, status=range(100, 500)),
    VerdictRule("-32000 Connection closed from a program or object: the SDK's server ends", _V.UNKNOWN, codes=(-32000,), text="^connection closed$"),  # noqa: E501
    VerdictRule("a JSON-RPC error from a program or object", _V.ANSWER, has_code=True),
)  # fmt: skip


def judge(seen: Seen, more: Sequence[VerdictRule] = ()) -> Verdict:
    """The verdict of the first row that matches; rows that a server's declaration adds come first."""
    return rule_of(seen, more).verdict


def rule_of(seen: Seen, more: Sequence[VerdictRule] = ()) -> VerdictRule:
    """The rule that decided, for a message that names it."""
    for row in more:
        if row.matches(seen):
            return row
    for row in VERDICT_RULES:
        if row.matches(seen):
            return row
    return _NO_ROW


_NO_ROW = VerdictRule("nothing that the table knows", Verdict.UNKNOWN)


_UNREACHABLE = (502, 503, 504)
"""Statuses by which a proxy says that it could not reach the server, or a server that it can take no work."""


def is_transport_fault(seen: Seen, answered_others: bool) -> bool:
    """Is a failed exchange a fault of the server or the way to it, rather than of the one request? A 500 comes from a
    server that works; an answer that never came is one, unless the server answered others meanwhile."""
    if seen.broke is Broke.NO_ANSWER_IN_TIME:
        return not answered_others
    if seen.broke is Broke.NOWHERE and seen.status is not None:
        return seen.status in _UNREACHABLE
    return seen.broke not in (Broke.NOT_AN_ANSWER, Broke.TOO_LARGE, Broke.REDIRECTED)
