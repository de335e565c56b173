"""Whether a call may be repeated, and what must happen first: a pure function from verdict and circumstances to a step.

An unsafe call that may have been executed is not repeated. An unsafe call does not run in a session that lost the state
of earlier calls, unless the caller allowed it.
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
"""Methods that may be repeated by definition of the protocol.
For `tools/call` the caller decides, by the tool's annotations. `subscriptions/listen` is not listed: what was missed in
between must be reported, so a watch repeats it itself.
"""

REPLAYS = 2  # per call: one for a fault, one for a fault while reconnecting
BACKOFF = 0.1  # seconds before the second try: longer than a socket takes to restart, too short for a person to notice
BACKOFF_CAP = 5.0  # seconds: a longer wait brings no benefit
HINT_SECONDS = 3_600.0  # seconds a listing's hints are used: a server may get other tools and not report it
LONGEST_WAIT = 30.0  # seconds of Retry-After that a call waits for; a longer one is raised to the caller


class RetryStep(Enum):
    """The next step of a call."""

    RETURN = "return the answer"
    RAISE = "raise an error"
    REPLAY = "wait, then send it again"
    RENEW = "renew the credentials, then send it again"
    REPLACE = "begin a new session, then decide whether to send it again"


class AfterReplacement(Enum):
    """What a call may do once a new session has begun."""

    REPLAY = "send it again"
    RAISE = "raise `SessionReplaced`"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The inputs of the decision besides the verdict."""

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
        # This does not count as a replay: nothing was executed, and credentials are renewed once per call.
        return RetryStep.RENEW if at.renewable and not at.renewed else RetryStep.RAISE
    if verdict is Verdict.SESSION_LOST:
        # The next call needs a new session even if this call has no tries left.
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
    """Whether a call that failed with a lost session may run in the new one.
    It was not executed, but may rely on lost state.

    `kept_state`: the lost session had answered an unsafe call. `stateful`: the server is not declared stateless.
    `reseeded`: the hook restored what was lost.
    """
    if not tries_left:
        return AfterReplacement.RAISE
    if safe or not kept_state or not stateful or reseeded:
        return AfterReplacement.REPLAY
    return AfterReplacement.RAISE


def is_safe(method: str, declared: bool | None) -> bool:
    """Whether a call may be repeated: as the caller declared, else as the protocol defines."""
    return method in SAFE_METHODS if declared is None else declared


def backoff(attempt: int, jitter: float, *, base: float = BACKOFF, cap: float = BACKOFF_CAP) -> float:
    """Seconds to wait before try `attempt + 1`; `jitter` in 0…1 spreads callers over the upper half of the interval."""
    span = min(cap, base * 2 ** min(attempt - 1, 16))
    return span * (0.5 + 0.5 * jitter)


def wait_for(
    verdict: Verdict, retry_after: float | None, attempt: int, jitter: float, *, base: float = BACKOFF
) -> float:
    """Seconds before a replay: the server's Retry-After, else the backoff."""
    if verdict is Verdict.BUSY and retry_after is not None:
        return retry_after
    return backoff(attempt, jitter, base=base)
