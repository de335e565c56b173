"""What runs on SQLite's own threads: plain functions over one open connection, each a whole transaction.

They wait for nothing but SQLite, and decide nothing: `core.records` does that.
"""

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.models import ANONYMOUS, Claim
from holdfast.core.records import (
    EncodedWrite,
    Key,
    Row,
    State,
    decide_claim,
    decide_claims,
    decide_commit,
    decide_end,
    decide_renew,
    decide_touch,
    in_the_way,
    refuse_fence,
)
from holdfast.errors import Busy, CorruptRecord
from holdfast.stores.codec import checked_row, corrupt
from holdfast.stores.contract import TURNS
from holdfast.stores.notices import MAX_PENDING

REAP_ROWS = 200  # removed in one transaction: some milliseconds, then other writers have their turn
NOTICE_SECONDS = 3_600.0  # no listener lags by an hour

_FIELDS = "principal, rev, body, last, created, touched, idle, max_age, ended, nonce"
_WITHOUT_BODY = _FIELDS.replace("body", "NULL")

GET = f"SELECT {_FIELDS} FROM holdfast_records WHERE kind = ? AND id = ?"
_HEAD = f"SELECT {_WITHOUT_BODY} FROM holdfast_records WHERE kind = ? AND id = ?"
_INSERT = (
    f"INSERT OR REPLACE INTO holdfast_records (kind, id, {_FIELDS}, expires) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = (
    "UPDATE holdfast_records SET rev = ?, body = ?, last = ?, touched = ?, idle = ?, max_age = ?, nonce = ?, "
    "expires = ? WHERE kind = ? AND id = ?"
)
_TOUCH = "UPDATE holdfast_records SET touched = ?, expires = ? WHERE kind = ? AND id = ?"
_END = "UPDATE holdfast_records SET body = NULL, last = 0, ended = ? WHERE kind = ? AND id = ?"
_ADD_LOG = "INSERT INTO holdfast_log (kind, id, last, rev, at, body) VALUES (?, ?, ?, ?, ?, ?)"
_DROP_LOG = "DELETE FROM holdfast_log WHERE kind = ? AND id = ?"
_LOG = (
    "SELECT l.rev, l.last, l.at, l.body, r.principal FROM holdfast_log l JOIN holdfast_records r USING (kind, id) "
    "WHERE kind = ? AND id = ? AND l.last > ? AND r.ended IS NULL AND (r.expires IS NULL OR r.expires > ?) "
)
LOG = _LOG + "ORDER BY l.last LIMIT ?"
LOG_NEWEST = _LOG + "ORDER BY l.last DESC LIMIT ?"
HOLDER = "SELECT owner, token, expires FROM holdfast_claims WHERE kind = ? AND id = ?"
_TOKEN = "UPDATE holdfast_meta SET value = value + 1 WHERE name = 'token'"
_READ_TOKEN = "SELECT value FROM holdfast_meta WHERE name = 'token'"
_CLAIM = "INSERT OR REPLACE INTO holdfast_claims (kind, id, owner, token, expires) VALUES (?, ?, ?, ?, ?)"
_RENEW = "UPDATE holdfast_claims SET expires = ? WHERE kind = ? AND id = ?"
_AWAIT = "UPDATE holdfast_claims SET awaited = 1 WHERE kind = ? AND id = ?"
_RELEASE = "DELETE FROM holdfast_claims WHERE kind = ? AND id = ?"
_FREE = f"{_RELEASE} RETURNING awaited"
_PUBLISH = "INSERT INTO holdfast_notices (topic, body, at) VALUES (?, ?, ?)"
_TRIM = "DELETE FROM holdfast_notices WHERE seq <= ?"
NOTICES = "SELECT seq, topic, body FROM holdfast_notices WHERE seq > ? ORDER BY seq LIMIT 1000"
LAST_NOTICE = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'holdfast_notices'"


@contextmanager
def transaction(db: sqlite3.Connection) -> Generator[None, None, None]:
    """The write lock, from the first read on: what was read stays true until it is written."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def migrate(
    db: sqlite3.Connection, create_meta: Sequence[str], version: str, steps: Callable[[int], Sequence[str]]
) -> int:
    """Bring the schema up to date and return the version it had; ten processes may start at once."""
    with transaction(db):
        for statement in create_meta:
            db.execute(statement)
        found = db.execute(version).fetchone()[0]
        for statement in steps(found):
            db.execute(statement)
    return found


def commit(
    db: sqlite3.Connection,
    clock: Clock,
    writes: Sequence[EncodedWrite],
    release: Sequence[Claim],
    notice: Callable[[Claim], bytes],
) -> tuple[list[Row], float, bool]:
    """Write all of it and free the claims. The rows, when, and whether a notice of a release was left for someone."""
    notified = False
    with transaction(db):
        now = clock.now()  # under the lock: a writer that was paused before it must not decide by an old time
        rows = [_put_commit(db, now, write) for write in writes]
        for claim in release:  # a refusal here takes back what was written
            refuse_fence(now, claim_on(db, claim.kind, claim.id), claim.kind, claim.id, claim.token)
            notified |= _free(db, now, claim, notice)
    return rows, now, notified


def _put_commit(db: sqlite3.Connection, now: float, write: EncodedWrite) -> Row:
    key = write.kind, write.id
    before = _head(db, *key)
    claim = None if write.fence is None else claim_on(db, *key)
    row = decide_commit(now, before, claim, write)
    if before is None or row.rev == 1:
        if before is not None:
            db.execute(_DROP_LOG, key)
        db.execute(
            _INSERT,
            (
                *key,
                row.principal,
                row.rev,
                row.body,
                row.last,
                row.created,
                row.touched,
                row.idle,
                row.max_age,
                row.ended,
                row.nonce,
                row.expires,
            ),
        )
    else:
        db.execute(
            _UPDATE,
            (row.rev, row.body, row.last, row.touched, row.idle, row.max_age, row.nonce, row.expires, *key),
        )
    if write.entries is not None:
        db.execute(_ADD_LOG, (*key, row.last, row.rev, row.touched, write.entries))
    return row


def _free(db: sqlite3.Connection, now: float, claim: Claim, notice: Callable[[Claim], bytes]) -> bool:
    """Delete a claim; True if its notice was left, because someone awaits it."""
    if not db.execute(_FREE, (claim.kind, claim.id)).fetchone()[0]:
        return False
    _publish(db, now, TURNS, notice(claim))
    return True


def touch(db: sqlite3.Connection, clock: Clock, kind: str, id: str, fence: int | None) -> None:
    with transaction(db):
        claim = None if fence is None else claim_on(db, kind, id)
        row = decide_touch(clock.now(), _head(db, kind, id), claim, kind, id, fence)
        db.execute(_TOUCH, (row.touched, row.expires, kind, id))


def end(db: sqlite3.Connection, clock: Clock, kind: str, id: str, created: float | None, fence: int | None) -> bool:
    with transaction(db):
        now = clock.now()
        try:
            claim = claim_on(db, kind, id)
            row = decide_end(now, _head(db, kind, id), claim, created=created, fence=fence)
        except CorruptRecord:
            # What can't be read can still be ended; that is the way out.
            db.execute(_RELEASE, (kind, id))
            db.execute(_DROP_LOG, (kind, id))
            db.execute(_INSERT, (kind, id, ANONYMOUS, 1, None, 0, now, now, None, None, now, "", None))
            return True
        if row is None:
            return False
        db.execute(_END, (row.ended, kind, id))
        db.execute(_DROP_LOG, (kind, id))
    return True


def claim(db: sqlite3.Connection, clock: Clock, kind: str, id: str, owner: str, ttl: float) -> Claim:
    with transaction(db):
        made = decide_claim(clock.now(), claim_on(db, kind, id), kind, id, owner, ttl, partial(_next_token, db))
        _put_claim(db, made)
    return made


def begin_turns(
    db: sqlite3.Connection, clock: Clock, keys: Sequence[Key], owner: str, ttl: float, notify: bool
) -> tuple[list[Claim], float, list[Sequence[object] | None]] | Busy:
    """Claim all of the keys and read their rows; or the reason why not, with the claims in the way marked."""
    with transaction(db):
        now = clock.now()
        held = _claims_on(db, keys)
        try:
            made = decide_claims(now, held, keys, owner, ttl, partial(_next_token, db))
        except Busy as busy:
            if notify:
                db.executemany(_AWAIT, [(c.kind, c.id) for c in in_the_way(now, held, keys, owner)])
            return busy
        for claim in made:
            _put_claim(db, claim)
        return made, now, [db.execute(GET, key).fetchone() for key in keys]


def renew(db: sqlite3.Connection, clock: Clock, claim: Claim, ttl: float) -> Claim:
    with transaction(db):
        renewed = decide_renew(clock.now(), claim_on(db, claim.kind, claim.id), claim, ttl)
        db.execute(_RENEW, (renewed.expires, renewed.kind, renewed.id))
    return renewed


def release(db: sqlite3.Connection, clock: Clock, claim: Claim, notice: Callable[[Claim], bytes]) -> tuple[bool, bool]:
    """Whether it was held until now, and whether its notice was left for someone."""
    with transaction(db):
        held = claim_on(db, claim.kind, claim.id)
        if held is None or held.token != claim.token:
            return False, False
        now = clock.now()
        return held.expires > now, _free(db, now, claim, notice)


def reap_some(
    db: sqlite3.Connection, clock: Clock, kind: str | None, expired_for: float, ended_for: float
) -> tuple[int, int, bool]:
    """Remove one batch: how many expired, how many tombstones, and whether there may be more."""
    with transaction(db):
        now = clock.now()
        rows = db.execute(
            "SELECT rowid, ended FROM holdfast_records WHERE (? IS NULL OR kind = ?) AND "
            "((+ended IS NULL AND expires <= ?) OR ended <= ?) LIMIT ?",
            (kind, kind, now - expired_for, now - ended_for, REAP_ROWS),
        ).fetchall()
        _remove(db, [(row[0],) for row in rows])
        tombstones = sum(row[1] is not None for row in rows)
        more = len(rows) == REAP_ROWS
        if not more:
            # Tokens come from one counter that only grows, so a forgotten claim can't make an old token good again.
            db.execute("DELETE FROM holdfast_claims WHERE expires <= ?", (now,))
            db.execute("DELETE FROM holdfast_notices WHERE at <= ?", (now - NOTICE_SECONDS,))
    return len(rows) - tombstones, tombstones, more


def erase_some(db: sqlite3.Connection, clock: Clock, principal: str, kind: str | None) -> int:
    """Remove one batch of a principal's records, dead or alive; how many there were."""
    with transaction(db):
        rows = db.execute(
            "SELECT rowid FROM holdfast_records WHERE principal = ? AND (? IS NULL OR kind = ?) LIMIT ?",
            (principal, kind, kind, REAP_ROWS),
        ).fetchall()
        _remove(db, rows)
    return len(rows)


def _remove(db: sqlite3.Connection, rows: Sequence[tuple[int]]) -> None:
    """Delete rows by their numbers, with their logs: a damaged name can't be given back."""
    db.executemany(
        "DELETE FROM holdfast_log WHERE (kind, id) = (SELECT kind, id FROM holdfast_records WHERE rowid = ?)", rows
    )
    db.executemany("DELETE FROM holdfast_records WHERE rowid = ?", rows)


def publish(db: sqlite3.Connection, clock: Clock, topic: str, body: bytes) -> None:
    with transaction(db):
        _publish(db, clock.now(), topic, body)


def _publish(db: sqlite3.Connection, now: float, topic: str, body: bytes) -> None:
    seq = db.execute(_PUBLISH, (topic, body, now)).lastrowid or 0
    if seq % 256 == 0:
        db.execute(_TRIM, (seq - MAX_PENDING,))


def get_all_sql(count: int) -> str:
    """Several rows in one statement, so that all are from one moment. Values: kind and id of each."""
    names = ", ".join(["(?, ?)"] * count)
    return (
        f"WITH names(k, i) AS (VALUES {names}) SELECT kind, id, {_FIELDS} "
        "FROM names CROSS JOIN holdfast_records ON kind = k AND id = i"  # CROSS: in this order, by the primary key
    )


def matching(kind: str | None, principal: str | None, state: State | None, now: float) -> tuple[str, list[object]]:
    """The condition of a scan or count, and its values."""
    parts = ["1"]
    given: list[object] = []
    if kind is not None:
        parts.append("kind = ?")
        given.append(kind)
    if principal is not None:
        parts.append("principal = ?")
        given.append(principal)
    if state == "ended":
        parts.append("ended IS NOT NULL")
    elif state == "live":
        parts.append("ended IS NULL AND (expires IS NULL OR expires > ?)")
        given.append(now)
    elif state == "expired":
        parts.append("ended IS NULL AND expires <= ?")
        given.append(now)
    return " AND ".join(parts), given


def scan_sql(condition: str, start: tuple[Any, Any] | None) -> tuple[str, list[object]]:
    """A page behind a name, and the values for that name. Damaged text can be given to SQLite as bytes only."""
    further, given = "", []
    if start is not None:
        behind, given = behind_place(start)
        further = f" AND {behind}"
    sql = f"SELECT kind, id, {_FIELDS} FROM holdfast_records WHERE {condition}{further} ORDER BY kind, id LIMIT ?"
    return sql, given


def behind_place(place: tuple[Any, Any]) -> tuple[str, list[object]]:
    """The condition for rows behind a name that may be damaged, and its values."""
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(part, str) else "?" for part in place)
    given: list[object] = []
    for part in place:
        if isinstance(part, str):
            given.append(part.encode("utf-8", "surrogateescape"))
        else:  # SQLite sorts NULL before every number
            given.append(float("-inf") if part is None else part)
    return f"(kind, id) > ({marks})", given


def claim_on(db: sqlite3.Connection, kind: str, id: str) -> Claim | None:
    return claim_from(kind, id, db.execute(HOLDER, (kind, id)).fetchone())


def _claims_on(db: sqlite3.Connection, keys: Sequence[Key]) -> dict[Key, Claim]:
    return {key: claim for key in keys if (claim := claim_on(db, *key)) is not None}


def _next_token(db: sqlite3.Connection) -> int:
    db.execute(_TOKEN)
    return db.execute(_READ_TOKEN).fetchone()[0]


def claim_from(kind: str, id: str, row: Sequence[object] | None) -> Claim | None:
    match row:
        case None:
            return None
        case (str(owner), int(token), float(expires)):
            return Claim(kind, id, owner, token, expires)
        case _:
            raise corrupt(kind, id, "its claim has fields of the wrong type")


def _put_claim(db: sqlite3.Connection, claim: Claim) -> None:
    db.execute(_CLAIM, (claim.kind, claim.id, claim.owner, claim.token, claim.expires))


def _head(db: sqlite3.Connection, kind: str, id: str) -> Row | None:
    found = db.execute(_HEAD, (kind, id)).fetchone()
    return None if found is None else checked_row(kind, id, found)


def run(db: sqlite3.Connection, clock: Clock, sql: str, given: Sequence[object]) -> list[Any]:
    """One statement with numbered values, as `SqlArchive` writes them."""
    with transaction(db):
        return db.execute(sql.replace("$", "?"), given).fetchall()


def tokens(db: sqlite3.Connection, clock: Clock, at_least: int) -> int:
    with transaction(db):
        db.execute("UPDATE holdfast_meta SET value = max(value, ?) WHERE name = 'token'", (at_least,))
        return db.execute(_READ_TOKEN).fetchone()[0]
