"""The rules of a store as properties of the pure functions: what may be written, and by whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Principal
from holdfast.core.records import (
    EncodedWrite,
    Row,
    decide_claim,
    decide_commit,
    decide_end,
    decide_touch,
    reapable,
    settle,
)
from holdfast.errors import Busy, Conflict, Ended, Forbidden, HoldfastError, NotFound, SessionExpired
from holdfast.stores import Claim

_times = st.floats(0, 100)
_spans = st.none() | st.floats(0.5, 50)
_rows = st.none() | st.builds(
    Row,
    kind=st.just("k"),
    id=st.just("i"),
    principal=st.sampled_from([Principal("alice"), Principal("bob")]),
    rev=st.integers(1, 4),
    body=st.just(b"1"),
    last=st.integers(0, 9),
    created=st.just(0.0),
    touched=_times,
    idle=_spans,
    max_age=_spans,
    ended=st.none() | _times,
    nonce=st.just("old"),
)
_claims = st.none() | st.builds(
    Claim, st.just("k"), st.just("i"), st.just("owner"), st.integers(1, 4), st.floats(0, 100)
)
_writes = st.builds(
    EncodedWrite,
    kind=st.just("k"),
    id=st.just("i"),
    principal=st.just(Principal("alice")),
    expect=st.integers(0, 4),
    body=st.just(b"2"),
    idle=_spans,
    max_age=_spans,
    created=st.sampled_from([0.0, 1.0]),
    entries=st.none(),
    added=st.integers(0, 3),
    fence=st.none() | st.integers(1, 4),
    nonce=st.just("new"),
    plain=st.just(b"2"),
)


@pytest.mark.promise("store.cas")
@given(_times, _rows, _claims, _writes)
def test_a_commit_is_taken_exactly_if_nothing_stands_against_it(
    now: float, row: Row | None, claim: Claim | None, write: EncodedWrite
) -> None:
    state = row.state(now) if row else "absent"
    fenced = write.fence is None or (claim is not None and claim.token == write.fence and claim.expires > now)
    if write.expect == 0:
        wanted = state in ("absent", "expired")
    else:
        wanted = (
            row is not None
            and state == "live"
            and row.rev == write.expect
            and row.principal == write.principal
            and write.created in (0.0, row.created)
        )
    try:
        after = decide_commit(now, row, claim, write)
    except HoldfastError as error:
        assert not (wanted and fenced)
        expected = {"ended": Ended, "expired": (SessionExpired, Conflict), "absent": (NotFound, Conflict)}
        assert isinstance(error, expected.get(state, (Conflict, Forbidden)))
    else:
        assert wanted
        assert fenced
        touched = now if write.expect == 0 or row is None else max(now, row.touched)
        assert (after.rev, after.touched, after.nonce, after.ended) == (write.expect + 1, touched, "new", None)
        begins = write.expect == 0
        assert after.created == (now if begins or row is None else row.created)
        assert after.last == (0 if begins or row is None else row.last) + write.added


@pytest.mark.promise("store.end")
@given(_times, _rows, _times)
def test_the_dead_stay_dead(now: float, row: Row | None, later: float) -> None:
    tombstone = decide_end(now, row, None)
    if tombstone is None:
        assert row is None or row.ended is not None
        return
    assert (tombstone.body, tombstone.last) == (None, 0)
    assert tombstone.ended == now
    with pytest.raises(Ended):
        decide_touch(now + later, tombstone, None, "k", "i")
    assert decide_end(now + later, tombstone, None) is None


@pytest.mark.promise("store.idle")
@given(_times, _rows)
def test_touch_moves_only_the_touch(now: float, row: Row | None) -> None:
    if row is not None and row.state(now) == "live":
        assert decide_touch(now, row, None, "k", "i") == row._replace(touched=max(now, row.touched))  # never back
    else:
        with pytest.raises((NotFound, Ended, SessionExpired)):
            decide_touch(now, row, None, "k", "i")


@pytest.mark.promise("store.claim")
@given(_times, _claims, st.sampled_from(["owner", "other"]))
def test_a_claim_is_refused_exactly_while_another_owner_holds_it(now: float, held: Claim | None, owner: str) -> None:
    free = held is None or held.expires <= now or held.owner == owner
    try:
        made = decide_claim(now, held, "k", "i", owner, 5.0, lambda: 99)
    except Busy as error:
        assert not free
        assert held is not None
        assert error.retry_after == held.expires - now
    else:
        assert free
        assert made == Claim("k", "i", owner, 99, now + 5.0)


@pytest.mark.promise("store.reap")
@given(_times, _rows, _times, _times)
def test_nothing_alive_is_ever_reaped(now: float, row: Row | None, expired_for: float, ended_for: float) -> None:
    if row is not None and (why := reapable(now, row, expired_for, ended_for)) is not None:
        assert row.state(now) == why


@pytest.mark.promise("store.settled")
@given(_rows, _writes)
def test_a_lost_answer_is_settled_only_by_what_the_row_proves(row: Row | None, write: EncodedWrite) -> None:
    if row is not None and row.ended is None and row.rev == write.expect:
        happened = row._replace(rev=write.rev, nonce=write.nonce)
        assert settle(happened, write) is True
        assert settle(happened._replace(rev=write.rev + 1, nonce="another"), write) is None
        if write.created in (0.0, row.created):
            assert settle(row, write) is False
            assert settle(happened._replace(nonce="another"), write) is False
    if row is not None and row.ended is not None:
        assert settle(row, write) is None
