"""May a call be repeated: every cell of the table, and the two rules that never bend."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.retry import (
    BACKOFF_CAP,
    AfterReplacement,
    Circumstances,
    RetryStep,
    backoff,
    decide,
    decide_replacement,
    is_safe,
    wait_for,
)
from holdfast.core.verdicts import Verdict

V, S = Verdict, RetryStep

TABLE: list[tuple[Verdict, Circumstances, RetryStep]] = [
    (V.ANSWER, Circumstances(False, 1), S.RETURN),
    (V.REJECTED, Circumstances(True, 1), S.RAISE),
    (V.NOT_SENT, Circumstances(False, 1), S.REPLAY),
    (V.NOT_SENT, Circumstances(False, 2), S.REPLAY),
    (V.NOT_SENT, Circumstances(True, 3), S.RAISE),
    (V.UNKNOWN, Circumstances(False, 1), S.RAISE),
    (V.UNKNOWN, Circumstances(True, 1), S.REPLAY),
    (V.UNKNOWN, Circumstances(True, 3), S.RAISE),
    (V.SESSION_LOST, Circumstances(False, 1), S.REPLACE),
    (V.SESSION_LOST, Circumstances(False, 9), S.REPLACE),
    (V.AUTH_NEEDED, Circumstances(False, 1), S.RAISE),
    (V.AUTH_NEEDED, Circumstances(False, 1, renewable=True), S.RENEW),
    (V.AUTH_NEEDED, Circumstances(False, 9, renewable=True), S.RENEW),
    (V.AUTH_NEEDED, Circumstances(False, 2, renewable=True, renewed=True), S.RAISE),
    (V.BUSY, Circumstances(False, 1), S.REPLAY),
    (V.BUSY, Circumstances(False, 1, retry_after=5), S.REPLAY),
    (V.BUSY, Circumstances(False, 1, retry_after=31), S.RAISE),
    (V.BUSY, Circumstances(False, 1, retry_after=5, time_left=4), S.RAISE),
    (V.BUSY, Circumstances(False, 3, retry_after=1), S.RAISE),
]


@pytest.mark.promise("link.retry")
@pytest.mark.parametrize(("verdict", "at", "step"), TABLE)
def test_the_table_of_replays(verdict: Verdict, at: Circumstances, step: RetryStep) -> None:
    assert decide(verdict, at) is step


@pytest.mark.promise("link.retry")
@given(
    st.sampled_from(list(Verdict)),
    st.builds(
        Circumstances,
        st.booleans(),
        st.integers(1, 9),
        st.integers(0, 4),
        st.booleans(),
        st.booleans(),
        st.none(),
        st.none(),
    ),
)
def test_what_may_have_been_executed_is_repeated_only_if_safe(verdict: Verdict, at: Circumstances) -> None:
    step = decide(verdict, at)
    if verdict is Verdict.UNKNOWN and not at.safe:
        assert step is RetryStep.RAISE
    if step is RetryStep.REPLAY:
        assert at.attempts <= at.replays


@pytest.mark.promise("link.retry")
@pytest.mark.parametrize(
    ("safe", "kept_state", "stateful", "reseeded", "tries_left"), list(itertools.product([False, True], repeat=5))
)
def test_an_unsafe_call_never_runs_in_a_world_it_did_not_expect(
    safe: bool, kept_state: bool, stateful: bool, reseeded: bool, tries_left: bool
) -> None:
    decision = decide_replacement(
        safe=safe, kept_state=kept_state, stateful=stateful, reseeded=reseeded, tries_left=tries_left
    )
    told = not tries_left or (not safe and kept_state and stateful and not reseeded)
    assert decision is (AfterReplacement.RAISE if told else AfterReplacement.REPLAY)


@pytest.mark.promise("link.retry")
def test_the_callers_word_on_safety_comes_before_the_protocols() -> None:
    assert is_safe("tools/list", None)
    assert not is_safe("tools/list", False)
    assert not is_safe("tools/call", None)
    assert is_safe("tools/call", True)
    assert not is_safe("subscriptions/listen", None)
    assert not is_safe("x/unheard-of", None)


@pytest.mark.promise("link.retry")
@given(st.integers(1, 60), st.floats(0, 1))
def test_backoff_grows_has_jitter_and_a_cap(attempt: int, jitter: float) -> None:
    wait = backoff(attempt, jitter)
    assert 0 < wait <= BACKOFF_CAP
    assert backoff(attempt, 0) <= wait <= backoff(attempt, 1)
    assert wait_for(Verdict.BUSY, 7.0, attempt, jitter) == 7.0
    assert wait_for(Verdict.NOT_SENT, 7.0, attempt, jitter) == wait
