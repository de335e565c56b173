"""The rules of a store as pure functions: who may write what, when a record expires, and who holds a claim.

The memory and SQLite stores call them before they write; the others call them to find out why their one atomic
statement wrote nothing. Bodies are opaque bytes here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from holdfast.core.models import Claim, Principal, Record, expiry
from holdfast.core.values import JSON
from holdfast.errors import Busy, Conflict, Ended, Forbidden, NotFound, SessionExpired

State: TypeAlias = Literal["live", "expired", "ended"]


class Row(NamedTuple):
    """A record as it is stored: the body as bytes, the number of its last log entry, the nonce of its last write.

    A tuple, because one is created for every read, and creating a frozen dataclass takes five times as long.
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
    def expires(self) -> float | None:
        return expiry(self.created, self.touched, self.idle, self.max_age)

    def state(self, now: float) -> State:
        if self.ended is not None:
            return "ended"
        expires = self.expires
        return "expired" if expires is not None and expires <= now else "live"


@dataclass(frozen=True, slots=True)
class LogRow:
    """The log entries of one commit as they are stored; the last of them has the number `last`."""

    last: int
    rev: int
    at: float
    body: bytes


class Write(NamedTuple):
    """A commit as a store receives it: checked, encoded and encrypted; `entries` is the body of `added` log entries."""

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
    """The body before encryption."""

    @property
    def rev(self) -> int:
        return self.expect + 1


def decide_commit(now: float, row: Row | None, claim: Claim | None, write: Write) -> Row:
    """The row to write; raises if the commit is not allowed.
    A row with `rev` 1 is a new record: older log entries are deleted.
    """
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
        touched=now,
        idle=write.idle,
        max_age=write.max_age,
        ended=None,
        nonce=write.nonce,
    )


def refuse_commit(now: float, row: Row | None, claim: Claim | None, write: Write) -> None:
    """Raise if this commit is not allowed.

    An ended record accepts no write. An expired record is treated as absent, so its id may be created again; `created`
    distinguishes the two records, so that a writer that read the first can't write into the second.
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
            f"{kind}/{id} is at rev {row.rev}, not {write.expect}: another writer changed it",
            expect=write.expect,
            actual=row.rev,
            kind=kind,
            id=id,
            remedy="read it again, then decide again",
        )


def refuse_fence(now: float, claim: Claim | None, kind: str, id: str, fence: int) -> None:
    """Raise unless the claim of this fencing token is still held, even if no other owner has taken it since."""
    if claim is None or claim.token != fence:
        raise Conflict(f"claim {fence} on {kind}/{id} is no longer held: another owner has it", kind=kind, id=id)
    if claim.expires <= now:
        raise Conflict(f"claim {fence} on {kind}/{id} has expired", kind=kind, id=id)


def decide_touch(now: float, row: Row | None, claim: Claim | None, kind: str, id: str, fence: int | None = None) -> Row:
    """The row with its idle time restarted."""
    if row is None:
        raise absent(kind, id)
    state = row.state(now)
    if state == "ended":
        raise ended(kind, id)
    if state == "expired":
        raise expired(kind, id)
    if fence is not None:
        refuse_fence(now, claim, kind, id, fence)
    return row._replace(touched=now)


def decide_end(
    now: float, row: Row | None, claim: Claim | None, *, created: float | None = None, fence: int | None = None
) -> Row | None:
    """The tombstone to write, or None if the record has ended already. An expired record may be ended too.

    `created` identifies the record under a reused id: a reaper that read the old one must not end the new one.
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
    """A new claim with a new token. The same owner may claim again, which invalidates its older token."""
    if held is not None and held.expires > now and held.owner != owner:
        wait = held.expires - now
        raise Busy(
            f"{kind}/{id} is claimed by {held.owner} for another {wait:.1f} s", retry_after=wait, kind=kind, id=id
        )
    return Claim(kind, id, owner, token(), now + ttl)


def decide_renew(now: float, held: Claim | None, claim: Claim, ttl: float) -> Claim:
    """The claim with a later end, under the same token."""
    refuse_fence(now, held, claim.kind, claim.id, claim.token)
    assert held is not None  # else refuse_fence has raised
    return replace(held, expires=now + ttl)


def reapable(now: float, row: Row, expired_for: float, ended_for: float) -> State | None:
    """Why a row may be deleted, or None if it may not."""
    if row.ended is not None:
        return "ended" if row.ended + ended_for <= now else None
    expires = row.expires
    return "expired" if expires is not None and expires + expired_for <= now else None


def settle(row: Row | None, write: Write) -> bool | None:
    """Whether a commit whose answer was lost was executed; None if the row no longer shows it.

    To be called only when the lost write can no longer be executed, because its sender is known to be gone.
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
    # Its rev is another writer's; below it, nothing was written.
    return False if row.rev <= write.rev else None


def record_of(row: Row, now: float, data: JSON) -> Record:
    """The record that a reader gets. An ended one has `ended` set and no data."""
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
    return NotFound(f"{kind}/{id} does not exist", kind=kind, id=id)


def ended(kind: str, id: str) -> Ended:
    return Ended(f"{kind}/{id} was ended", kind=kind, id=id, remedy="begin a new one under another id")


def expired(kind: str, id: str) -> SessionExpired:
    return SessionExpired(f"{kind}/{id} has expired", kind=kind, id=id, remedy="begin a new one")
