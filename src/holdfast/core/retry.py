"""May this call be repeated, and what has to happen first? A pure function from verdict and circumstances to a step.

An unsafe call that may have been executed is not repeated, and no unsafe call runs in a session that lost what earlier
calls had put there, unless the caller allowed it.
"""

from dataclasses import dataclass
from enum import Enum

from holdfast.core.verdicts import Verdict

SAFE_METHODS = frozenset(
    {
        "ping",
        "server/discover",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
        "tasks/get",
    }
)
"""Methods that the protocol itself makes repeatable. `tools/call` is as safe as its tool says, and the caller knows.
`subscriptions/listen` is not one of them: what was missed in between must be reported, so a watch repeats it itself."""

REPLAYS = 2  # per call: one for a fault, one for a fault on the way back up
BACKOFF = 0.1  # seconds before the second try: longer than a socket's restart, shorter than a person notices
BACKOFF_CAP = 5.0  # seconds: longer waits gain nothing
HINT_SECONDS = 3_600.0  # that a listing's hints count: a server may be redeployed with other tools and report nothing
LONGEST_WAIT = 30.0  # seconds of Retry-After that a call waits; a longer Retry-After is raised to the caller


class RetryStep(Enum):
    """The next step of a call."""

    RETURN = "return the answer"
    RAISE = "raise an error"
    REPLAY = "wait, then send it again"
    RENEW = "renew the credentials, then send it again"
    REPLACE = "begin a new session, then decide whether to send it again"


class AfterReplacement(Enum):
    """What a call may do once a new session stands."""

    REPLAY = "send it again"
    RAISE = "raise `SessionReplaced`"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the decision depends on, besides the verdict."""

    safe: bool
    attempts: int
    replays: int = REPLAYS
    renewed: bool = False
    renewable: bool = False
    retry_after: float | None = None
    time_left: float | None = None


def decide(verdict: Verdict, at: Circumstances) -> RetryStep:
    """The next step after `at.attempts` tries."""
    if verdict is Verdict.ANSWER:
        return RetryStep.RETURN
    if verdict is Verdict.AUTH_NEEDED:
        # Not counted as a replay: nothing was executed, and credentials are renewed once per call.
        return RetryStep.RENEW if at.renewable and not at.renewed else RetryStep.RAISE
    if verdict is Verdict.SESSION_LOST:
        # The next call needs a new session, even when this one has used up its tries.
        return RetryStep.REPLACE
    if at.attempts > at.replays or verdict is Verdict.REJECTED:
        return RetryStep.RAISE
    if verdict is Verdict.UNKNOWN and not at.safe:
        return RetryStep.RAISE
    if verdict is Verdict.BUSY:
        wait = at.retry_after or 0.0
        if wait > LONGEST_WAIT or (at.time_left is not None and wait >= at.time_left):
            return RetryStep.RAISE
    return RetryStep.REPLAY


def decide_replacement(
    *, safe: bool, kept_state: bool, stateful: bool, reseeded: bool, tries_left: bool
) -> AfterReplacement:
    """May a call that met a lost session run in the new one? It was not executed; the question is what it relies on.

    `kept_state`: the lost session had answered an unsafe call. `stateful`: the server is not declared stateless.
    `reseeded`: the hook put back what was lost.
    """
    if not tries_left:
        return AfterReplacement.RAISE
    if safe or not kept_state or not stateful or reseeded:
        return AfterReplacement.REPLAY
    return AfterReplacement.RAISE


def is_safe(method: str, declared: bool | None) -> bool:
    """May a call be repeated? As the caller declared, else as the protocol has it."""
    return method in SAFE_METHODS if declared is None else declared


def backoff(attempt: int, jitter: float, *, base: float = BACKOFF, cap: float = BACKOFF_CAP) -> float:
    """Seconds to wait before try `attempt + 1`; `jitter` in 0…1 spreads callers over the upper half of the span."""
    span = min(cap, base * 2 ** min(attempt - 1, 16))
    return span * (0.5 + 0.5 * jitter)


def wait_for(
    verdict: Verdict, retry_after: float | None, attempt: int, jitter: float, *, base: float = BACKOFF
) -> float:
    """Seconds before a replay: the server's Retry-After, else the backoff."""
    if verdict is Verdict.BUSY and retry_after is not None:
        return retry_after
    return backoff(attempt, jitter, base=base)
