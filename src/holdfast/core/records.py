"""The rules of a store, pure. It owns who may write what, when a record lives, and who holds a claim.

Every store uses these functions: the memory and SQLite stores before they write, the others when their one atomic
statement wrote nothing, to find out why. Bodies are bytes here; nothing reads them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from holdfast.core.models import Claim, Principal, Record, expiry
from holdfast.core.values import JSON
from holdfast.errors import Busy, Conflict, Ended, Forbidden, NotFound, SessionExpired

Key: TypeAlias = tuple[str, str]
"""The kind and id of a record or claim."""
State: TypeAlias = Literal["live", "expired", "ended"]


class Row(NamedTuple):
    """A record as it is kept: the body as bytes, the number of its last log entry, the nonce of its last write.

    A tuple, because one is made for every read, and a frozen dataclass takes five times as long to make.
    """

    kind: str
    id: str
    principal: Principal
    rev: int
    body: bytes | None
    last: int
    created: float
    touched: float
    idle: float | None
    max_age: float | None
    ended: float | None
    nonce: str

    @property
    def key(self) -> Key:
        return self.kind, self.id

    @property
    def expires(self) -> float | None:
        return expiry(self.created, self.touched, self.idle, self.max_age)

    def state(self, now: float) -> State:
        if self.ended is not None:
            return "ended"
        expires = self.expires
        return "expired" if expires is not None and expires <= now else "live"


@dataclass(frozen=True, slots=True)
class LogRow:
    """The log entries of one commit as they are kept; the last of them has the number `last`."""

    last: int
    rev: int
    at: float
    body: bytes


class EncodedWrite(NamedTuple):
    """A `Write` as a store receives it: checked, encoded and sealed; `entries` is the body of `added` log entries."""

    kind: str
    id: str
    principal: Principal
    expect: int
    body: bytes
    idle: float | None
    max_age: float | None
    created: float
    entries: bytes | None
    added: int
    fence: int | None
    nonce: str
    plain: bytes
    """The body before it was sealed."""

    @property
    def key(self) -> Key:
        return self.kind, self.id

    @property
    def rev(self) -> int:
        return self.expect + 1


def decide_commits(
    now: float,
    rows: Mapping[Key, Row],
    claims: Mapping[Key, Claim],
    writes: Sequence[EncodedWrite],
    release: Sequence[Claim] = (),
) -> list[Row]:
    """The rows to write in one step, or the first reason why none of them may be written."""
    decided: list[Row] = []
    for write in writes:
        key = write.kind, write.id
        decided.append(decide_commit(now, rows.get(key), claims.get(key), write))
    _refuse_release(now, claims, release)
    return decided


def refuse_commits(
    now: float,
    rows: Mapping[Key, Row],
    claims: Mapping[Key, Claim],
    writes: Sequence[EncodedWrite],
    release: Sequence[Claim] = (),
) -> None:
    """Raise what stands against these commits, as `decide_commits` does; return if nothing does."""
    for write in writes:
        refuse_commit(now, rows.get(write.key), claims.get(write.key), write)
    _refuse_release(now, claims, release)


def _refuse_release(now: float, claims: Mapping[Key, Claim], release: Sequence[Claim]) -> None:
    for claim in release:
        refuse_fence(now, claims.get((claim.kind, claim.id)), claim.kind, claim.id, claim.token)


def decide_commit(now: float, row: Row | None, claim: Claim | None, write: EncodedWrite) -> Row:
    """The row to write, or the reason why not. A row with `rev` 1 begins a life: older log entries go."""
    refuse_commit(now, row, claim, write)
    begins = write.expect == 0
    return Row(
        kind=write.kind,
        id=write.id,
        principal=write.principal,
        rev=write.rev,
        body=write.body,
        last=(0 if begins or row is None else row.last) + write.added,
        created=now if begins or row is None else row.created,
        touched=now if begins or row is None else max(now, row.touched),  # a clock set back shortens no life
        idle=write.idle,
        max_age=write.max_age,
        ended=None,
        nonce=write.nonce,
    )


def refuse_commit(now: float, row: Row | None, claim: Claim | None, write: EncodedWrite) -> None:
    """Raise what stands against this commit; return if nothing does.

    An end wins over everything. An expired record no longer counts, so its id may be created again; `created`
    distinguishes the two records, so that a writer who read the first can't write into the second.
    """
    kind, id = write.kind, write.id
    state = None if row is None else row.state(now)
    if state == "ended":
        raise ended(kind, id)
    if write.fence is not None:
        refuse_fence(now, claim, kind, id, write.fence)
    if write.expect == 0:
        if row is not None and state == "live":
            raise Conflict(f"{kind}/{id} exists already, at rev {row.rev}", expect=0, actual=row.rev, kind=kind, id=id)
        return
    if row is None:
        raise absent(kind, id)
    if state == "expired":
        raise expired(kind, id)
    if row.principal != write.principal:
        raise Forbidden(f"{kind}/{id} belongs to another principal", kind=kind, id=id)
    if row.rev != write.expect or write.created not in (0.0, row.created):
        raise Conflict(
            f"{kind}/{id} is at rev {row.rev}, not {write.expect}: another writer was first",
            expect=write.expect,
            actual=row.rev,
            kind=kind,
            id=id,
            remedy="read it again and decide again",
        )


def refuse_fence(now: float, claim: Claim | None, kind: str, id: str, fence: int) -> None:
    """A fencing token is valid while its claim is held, and no longer, even if no other owner took the claim."""
    if claim is None or claim.token != fence:
        raise Conflict(f"claim {fence} on {kind}/{id} is no longer held: another owner took it", kind=kind, id=id)
    if claim.expires <= now:
        raise Conflict(f"claim {fence} on {kind}/{id} has run out", kind=kind, id=id)


def decide_touch(now: float, row: Row | None, claim: Claim | None, kind: str, id: str, fence: int | None = None) -> Row:
    """The row with its idle time starting over."""
    if row is None:
        raise absent(kind, id)
    state = row.state(now)
    if state == "ended":
        raise ended(kind, id)
    if state == "expired":
        raise expired(kind, id)
    if fence is not None:
        refuse_fence(now, claim, kind, id, fence)
    return row._replace(touched=max(now, row.touched))


def decide_end(
    now: float, row: Row | None, claim: Claim | None, *, created: float | None = None, fence: int | None = None
) -> Row | None:
    """The tombstone to write, or None if there is nothing left to end. What was expired may be ended too.

    `created` names the life that is meant: a reaper that read the old one must not end the new one.
    """
    if row is None or row.ended is not None:
        return None
    if created is not None and row.created != created:
        raise Conflict(f"{row.kind}/{row.id} was created again since it was read", kind=row.kind, id=row.id)
    if fence is not None:
        refuse_fence(now, claim, row.kind, row.id, fence)
    return row._replace(body=None, last=0, ended=now)


def decide_claim(
    now: float, held: Claim | None, kind: str, id: str, owner: str, ttl: float, token: Callable[[], int]
) -> Claim:
    """A new claim with a new token. The same owner may claim again; its older token is worth nothing then."""
    if held is not None and held.expires > now and held.owner != owner:
        raise _busy(now, held)
    return Claim(kind, id, owner, token(), now + ttl)


def decide_claims(
    now: float,
    claims: Mapping[Key, Claim],
    keys: Sequence[Key],
    owner: str,
    ttl: float,
    token: Callable[[], int],
) -> list[Claim]:
    """A new claim on each of the keys, or `Busy` about the one that stands in the way for longest."""
    if standing := in_the_way(now, claims, keys, owner):
        raise _busy(now, max(standing, key=lambda claim: claim.expires))
    return [Claim(kind, id, owner, token(), now + ttl) for kind, id in keys]


def _busy(now: float, held: Claim) -> Busy:
    wait = held.expires - now
    return Busy(
        f"{held.kind}/{held.id} is claimed by {held.owner} for another {wait:.1f} s",
        retry_after=wait,
        kind=held.kind,
        id=held.id,
    )


def in_the_way(now: float, claims: Mapping[Key, Claim], keys: Sequence[Key], owner: str) -> list[Claim]:
    """The claims of other owners that are held on these keys."""
    held = [claims[key] for key in keys if key in claims]
    return [claim for claim in held if claim.expires > now and claim.owner != owner]


def decide_renew(now: float, held: Claim | None, claim: Claim, ttl: float) -> Claim:
    """The claim with a later end, under the same token."""
    refuse_fence(now, held, claim.kind, claim.id, claim.token)
    assert held is not None  # or refuse_fence had raised
    return replace(held, expires=now + ttl)


def reapable(now: float, row: Row, expired_for: float, ended_for: float) -> State | None:
    """Why a row may be removed for good, or None."""
    if row.ended is not None:
        return "ended" if row.ended + ended_for <= now else None
    expires = row.expires
    return "expired" if expires is not None and expires + expired_for <= now else None


def settle(row: Row | None, write: EncodedWrite) -> bool | None:
    """Did a commit whose answer was lost happen? None if the row can't tell any more.

    Only for a row that the lost write can no longer reach: its sender is known to be gone.
    """
    brief = write.expect == 0 and (write.idle is not None or write.max_age is not None)
    if row is None:
        return False if write.expect == 0 and not brief else None
    if row.nonce == write.nonce:
        return True
    if row.ended is not None or (write.created and row.created != write.created):
        return None
    if brief:
        return None  # it may have been created, have expired, and been created again by another writer
    # At the rev that it would have made stands another's write; below it, nothing was written.
    return False if row.rev <= write.rev else None


def settle_all(rows: Mapping[Key, Row], writes: Sequence[EncodedWrite]) -> bool | None:
    """The same for a commit of several: they were written together or not at all, so one that can tell is enough."""
    found = [settle(rows.get(write.key), write) for write in writes]
    return True if True in found else False if False in found else None


def record_of(row: Row, now: float, data: JSON) -> Record:
    """The record that a reader sees. A dead one has `ended` set and no data."""
    state = row.state(now)
    return Record(
        row.kind,
        row.id,
        row.principal,
        data if state == "live" else None,
        idle=row.idle,
        max_age=row.max_age,
        rev=row.rev,
        created=row.created,
        touched=row.touched,
        ended=None if state == "live" else row.expires if state == "expired" else row.ended,
    )


def absent(kind: str, id: str) -> NotFound:
    return NotFound(f"there is no {kind}/{id}", kind=kind, id=id)


def ended(kind: str, id: str) -> Ended:
    return Ended(f"{kind}/{id} was ended", kind=kind, id=id, remedy="begin a new one under another id")


def expired(kind: str, id: str) -> SessionExpired:
    return SessionExpired(f"{kind}/{id} has expired", kind=kind, id=id, remedy="begin a new one")
