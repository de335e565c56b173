"""The error that a caller gets for a verdict. Each text names the server, the phase and what to do.

`core/retry.py` decides whether an error is raised.
"""

from dataclasses import dataclass
from typing import Any, cast

from holdfast.core.retry import LONGEST_WAIT
from holdfast.core.verdicts import Broke, Seen, Verdict
from holdfast.errors import (
    AnswerTimeout,
    BadAnswer,
    Busy,
    ChildDied,
    ConnectFailed,
    ConnectionLost,
    ErrorAnswer,
    Fields,
    Forbidden,
    HoldfastError,
    LimitReached,
    NotFound,
    OutcomeUnknown,
    Rejected,
    SessionReplaced,
    StartTimeout,
    Unauthorized,
)
from holdfast.links.wires.base import Generation, Loss, Reply

MAYBE = (
    "it may have been executed: check before you call it again; where repeating is harmless, "
    "call_tool(…, idempotent=True) or Link.request(…, safe=True) repeats it"
)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """What a call had used when it failed: the numbers in its error."""

    seconds: float
    replays: int
    """How many tries beyond the first are allowed."""
    silence: float
    timeout: float | None


def _with(fields: Fields, remedy: str) -> Fields:
    return {**fields, "remedy": remedy}


def error_for(
    server: str, what: str, phase: str, verdict: Verdict, reply: Reply, attempts: int, spent: TimeSpent | None = None
) -> HoldfastError:
    """The exception for `what` (a method, or the handshake)."""
    seen = reply.seen
    assert seen is not None
    tries = "" if attempts < 2 else f" ({attempts} tries)"
    if attempts > 1 and spent is not None:
        tries = f" ({attempts} of {spent.replays + 1} tries in {spent.seconds:.1f} s)"
    fields = Fields(server=server, phase=phase, attempts=attempts)
    if seen.status is not None:
        fields["status"] = seen.status
    if reply.exit_code is not None:
        fields["exit_code"] = reply.exit_code
    if reply.stderr_tail:
        fields["stderr_tail"] = reply.stderr_tail
    if verdict is Verdict.NOT_SENT:
        return ConnectFailed(
            f"{what}: {server!r} could not be reached{tries}: {reply.what}",
            **_with(fields, "nothing was executed; try again when the server is up"),
        )
    if verdict is Verdict.UNKNOWN:
        return _unknown(server, what, seen, reply, tries, fields, spent)
    if verdict is Verdict.BUSY:
        if seen.retry_after is not None:
            fields["retry_after"] = seen.retry_after
        return Busy(
            f"{what}: {server!r} is busy{tries}: {reply.what}",
            **_with(fields, _after_rest(seen.retry_after, attempts, spent)),
        )
    if verdict is Verdict.AUTH_NEEDED:
        return Unauthorized(
            f"{what}: {server!r} refused the credentials: {reply.what}",
            **_with(fields, "check headers= or auth=; an async callable is called again after a 401"),
        )
    if verdict is Verdict.ANSWER:
        return answered(server, what, seen, fields, reply)
    return _rejected(server, what, seen, reply, fields)


def _after_rest(rest: float | None, attempts: int, spent: TimeSpent | None) -> str:
    """When to call a busy server again, and why the call did not wait for that."""
    again = (
        "nothing was executed; call again later"
        if rest is None
        else f"nothing was executed; call again in {rest:.3g} s"
    )
    if spent is None:
        return again
    if attempts > spent.replays:
        return f"{again}, or in Python raise Limits(replays=…), which is {spent.replays}"
    if rest is not None and rest > LONGEST_WAIT:
        return f"{again}: a call itself waits for at most {LONGEST_WAIT:g} s"
    if spent.timeout is not None:
        return f"{again}, or raise timeout=: {spent.seconds:.3g} of {spent.timeout:.3g} s were used"
    return again


def _late(spent: TimeSpent | None) -> str:
    if spent is None:
        return "in time"
    if spent.timeout is not None and spent.seconds >= spent.timeout:
        return f"within timeout={spent.timeout:.3g} s"
    return f"for {spent.silence:.3g} s of silence (silence=, in Python also Limits(silence=…))"


def answered(server: str, what: str, seen: Seen, fields: Fields, reply: Reply) -> ErrorAnswer:
    """The error that the server answered."""
    if seen.code is not None:
        fields["code"] = seen.code
    error = ErrorAnswer(
        f"{what}: {server!r} answered {seen.code}: {seen.text}"[:500], message=seen.text, data=seen.data, **fields
    )
    error_member = reply.message.get("error") if reply.message is not None else None
    if isinstance(error_member, dict):
        error.answer = cast("dict[str, Any]", error_member)
    return error


def _unknown(
    server: str, what: str, seen: Seen, reply: Reply, tries: str, fields: Fields, spent: TimeSpent | None
) -> HoldfastError:
    match seen.broke:
        case Broke.NO_ANSWER_IN_TIME:
            return AnswerTimeout(
                f"{what}: {server!r} did not answer {_late(spent)}{tries}",
                **_with(fields, MAYBE),
            )
        case Broke.CHILD_DIED:
            return ChildDied(
                f"{what}: {server!r} ended{tries}: {reply.what}",
                **_with(fields, MAYBE),
            )
        case Broke.NOT_AN_ANSWER | Broke.NOWHERE if seen.status is not None:
            return BadAnswer(
                f"{what}: {server!r} gave no answer{tries}: {reply.what}"[:500],
                **_with(fields, MAYBE),
            )
        case _:
            return ConnectionLost(
                f"{what}: the connection to {server!r} broke {seen.broke.value}{tries}: {reply.what}",
                **_with(fields, MAYBE),
            )


def not_started(error: HoldfastError) -> HoldfastError:
    """An error while connecting, converted for the call that waited: nothing of it was sent, so it is `Unavailable`."""
    if not isinstance(error, OutcomeUnknown):
        return error
    kind = StartTimeout if isinstance(error, AnswerTimeout) else ConnectFailed
    started = kind(error.what)
    started.__dict__.update(error.__dict__)
    started.__cause__ = error
    started.remedy = "nothing was executed; the server did not complete the handshake: see its log, then try again"
    return started


def _rejected(server: str, what: str, seen: Seen, reply: Reply, fields: Fields) -> HoldfastError:
    refused = f"{what}: {server!r} refused: {reply.what}"[:500]
    if seen.broke is Broke.TOO_LARGE:
        return LimitReached(
            f"{what}: {server!r}: {reply.what}",
            **_with(fields, "ask for less, or in Python raise Limits(message_bytes=…)"),
        )
    if seen.broke is Broke.REDIRECTED:
        return Rejected(
            f"{what}: {server!r} {seen.text}, which was not followed: another origin, or not for a POST",
            **_with(fields, "if that URL is right, declare it as the server's"),
        )
    if seen.status == 403:
        return Forbidden(
            refused,
            **_with(fields, "use credentials that the server allows to do that: headers= or auth="),
        )
    if seen.status == 404:
        return NotFound(
            refused,
            **_with(fields, "check the URL; it often ends in /mcp"),
        )
    if seen.status == 413:
        return LimitReached(
            refused,
            **_with(fields, "send less: the server accepts no message of that size"),
        )
    return Rejected(refused, **fields)


def replaced(server: str, what: str, old: Generation | Loss, new: Generation | None, attempts: int) -> SessionReplaced:
    """The error of a call in a lost session, which may not run in the new one without the caller's consent."""
    fields = Fields(server=server, phase="call", attempts=attempts)
    if old.session is not None:
        fields["session"] = old.session
    if new is not None and new.session is not None:
        fields["new_session"] = new.session
    return SessionReplaced(
        f"{what}: {server!r} started a new session; what it kept is gone; this call was not executed",
        **_with(fields, "call again to continue in the new session"),
    )


def closed(server: str, what: str, sent: bool) -> HoldfastError:
    """The error of a call whose link was closed while it was in flight."""
    if sent:
        return ConnectionLost(
            f"{what}: the link to {server!r} was closed while the call was in flight",
            server=server,
            phase="call",
            remedy=MAYBE,
        )
    return ConnectFailed(
        f"{what}: the link to {server!r} was closed before the call was sent", server=server, phase="open"
    )
