"""The SQL of the PostgreSQL store. Each write is one statement, atomic by itself.

Times are the server's: `$1` is NULL, or the moment of an injected clock in tests. What a statement refuses, it refuses
by writing nothing; `core.records` then says why.
"""

from functools import cache

from holdfast.core.records import State

# One moment for the whole statement, however often it is named: for what is read and what is written.
NOW = "coalesce($1::float8, extract(epoch FROM statement_timestamp())::float8)"
# The moment itself: for conditions. A statement that waited for a row's lock looks at the row again, and must look at
# the clock again too, or a claim that was released meanwhile would seem to be held.
CLOCK = "coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8)"
USED = f"GREATEST({NOW}, r.touched)"  # of a record that is written or touched: a clock set back shortens no life
CHANNEL = "holdfast"
FIELDS = "r.principal, r.rev, r.body, r.last, r.created, r.touched, r.idle, r.max_age, r.ended, r.nonce"
HEAD = FIELDS.replace("r.body", "NULL::bytea")


def notify(payload: str) -> str:
    """The expression that publishes a payload when the statement is committed."""
    return f"pg_notify('{CHANNEL}', {payload})"


GET = f"SELECT {NOW}, {FIELDS} FROM holdfast_records r WHERE r.kind = $2 AND r.id = $3"

_ALIVE = f"r.ended IS NULL AND (r.expires IS NULL OR r.expires > {CLOCK})"

REPLACE = (
    "UPDATE holdfast_records SET principal = $3, rev = $4, body = $5, last = $6, created = $7, touched = $8, "
    "idle = $9, max_age = $10, ended = $11, nonce = $12, expires = $13 WHERE kind = $1 AND id = $2"
)
INSERT = (
    "INSERT INTO holdfast_records (kind, id, principal, rev, body, last, created, touched, idle, max_age, ended, "
    "nonce, expires) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
)
ADD_LOG = "INSERT INTO holdfast_log (kind, id, last, rev, at, body) VALUES ($1, $2, $3, $4, $5, $6)"
DROP_LOG = "DELETE FROM holdfast_log WHERE kind = $1 AND id = $2"
TOUCH = (
    f"UPDATE holdfast_records r SET touched = {USED}, expires = LEAST({USED} + r.idle, r.created + r.max_age) "
    f"WHERE r.kind = $2 AND r.id = $3 AND {_ALIVE} RETURNING 1"
)
END = "UPDATE holdfast_records SET body = NULL, last = 0, ended = $3 WHERE kind = $1 AND id = $2"
_LOG = (
    f"SELECT l.last, l.rev, l.at, l.body, r.principal FROM holdfast_log l JOIN holdfast_records r "
    f"USING (kind, id) WHERE kind = $2 AND id = $3 AND l.last > $4 AND {_ALIVE} ORDER BY l.last"
)
LOG = f"{_LOG} LIMIT $5"
LOG_NEWEST = f"{_LOG} DESC LIMIT $5"

# The token is taken under the row's lock, so that a later claim has a higher one. A released claim stays as a row that
# has run out, for the same reason, until `reap` finds it a day old.
CLAIM = (
    "INSERT INTO holdfast_claims AS c (kind, id, owner, token, expires) "
    f"VALUES ($2, $3, $4, nextval('holdfast_tokens'), {NOW} + $5) "
    "ON CONFLICT (kind, id) DO UPDATE SET owner = excluded.owner, token = nextval('holdfast_tokens'), "
    f"expires = {CLOCK} + $5, awaited = 0 "
    f"WHERE c.expires <= {CLOCK} OR c.owner = excluded.owner RETURNING token, expires"
)
RENEW = (
    f"UPDATE holdfast_claims c SET expires = {NOW} + $5 "
    f"WHERE c.kind = $2 AND c.id = $3 AND c.token = $4 AND c.expires > {CLOCK} RETURNING c.owner, c.expires"
)
RELEASE = (
    f"UPDATE holdfast_claims c SET expires = {CLOCK} "
    f"WHERE c.kind = $2 AND c.id = $3 AND c.token = $4 AND c.expires > {CLOCK} "
    f"RETURNING CASE WHEN c.awaited > 0 THEN {notify('$5')}::text END"
)
PUBLISH = f"SELECT {notify('$1')}"
HOLDER = (
    f"SELECT c.owner, c.token, c.expires FROM holdfast_claims c WHERE c.kind = $2 AND c.id = $3 AND c.expires > {NOW}"
)
REAP = (
    "WITH dead AS (SELECT r.kind, r.id, r.ended FROM holdfast_records r "
    f"WHERE ($2::text IS NULL OR r.kind = $2) AND ((r.ended IS NULL AND r.expires <= {NOW} - $3::float8) "
    f"OR r.ended <= {NOW} - $4::float8) LIMIT $5 FOR UPDATE OF r SKIP LOCKED), "
    "logs AS (DELETE FROM holdfast_log l USING dead WHERE l.kind = dead.kind AND l.id = dead.id), "
    "gone AS (DELETE FROM holdfast_records r USING dead WHERE r.kind = dead.kind AND r.id = dead.id) "
    "SELECT count(*), count(ended) FROM dead"
)
# In one order, so that two of these never wait for each other; a commit of several locks in the same one.
ERASE = (
    "WITH gone AS (SELECT r.kind, r.id FROM holdfast_records r WHERE ($1::float8 IS NULL OR TRUE) "
    "AND r.principal = $2 AND ($3::text IS NULL OR r.kind = $3) ORDER BY r.kind, r.id LIMIT $4 FOR UPDATE OF r), "
    "logs AS (DELETE FROM holdfast_log l USING gone WHERE l.kind = gone.kind AND l.id = gone.id), "
    "rows AS (DELETE FROM holdfast_records r USING gone WHERE r.kind = gone.kind AND r.id = gone.id) "
    "SELECT count(*) FROM gone"
)
# Claims that somebody has locked are left for the next time: waiting here, in no order, could end in a deadlock.
REAP_CLAIMS = (
    "WITH old AS (SELECT c.kind, c.id FROM holdfast_claims c "
    f"WHERE c.expires <= {NOW} - 86400 FOR UPDATE OF c SKIP LOCKED) "
    "DELETE FROM holdfast_claims c USING old WHERE c.kind = old.kind AND c.id = old.id"
)
TOKENS = (
    "SELECT CASE WHEN $1::bigint > 0 AND $1 >= last_value THEN setval('holdfast_tokens', $1) "
    "WHEN is_called THEN last_value ELSE 0 END FROM holdfast_tokens"
)

# A backend whose connection we lost may still be at work; once it is gone, what we read is final.
STOP_BACKEND = (
    "SELECT pg_terminate_backend(pid, $3) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2::timestamptz"
)
BACKEND = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"


@cache
def commit_sql(*, creates: bool, fenced: bool, logs: bool, releases: bool = False) -> str:
    """One of twelve statements for one record, each no more than it needs to be.

    Values: now, kind, id, principal, body, count, idle, max_age, nonce, then what the form needs: expect and created,
    or nothing; the log body; the fence; the notice of its release.
    """
    values = 9
    if creates:
        condition = ""
    else:
        condition = f" AND r.rev = ${values + 1} AND (${values + 2}::float8 = 0 OR r.created = ${values + 2})"
        values += 2
    body = values = values + logs
    held = ""
    if fenced:
        values += 1
        held = (
            "held AS MATERIALIZED (SELECT 1 FROM holdfast_claims c WHERE c.kind = $2 AND c.id = $3 "
            f"AND c.token = ${values}::bigint AND c.expires > {CLOCK} "
            f"FOR {'NO KEY UPDATE' if releases else 'SHARE'} OF c), "
        )
    guard = "EXISTS (SELECT FROM held)" if fenced else "TRUE"
    returning = "RETURNING rev, created, touched, last" if creates else "RETURNING r.rev, r.created, r.touched, r.last"
    if creates:
        write = (
            "INSERT INTO holdfast_records (kind, id, principal, rev, body, last, created, touched, idle, max_age, "
            f"nonce, expires) SELECT $2, $3, $4, 1, $5, $6, {NOW}, {NOW}, $7, $8, $9, "
            f"LEAST({NOW} + $7::float8, {NOW} + $8::float8) WHERE {guard} "
            f"ON CONFLICT DO NOTHING {returning}"
        )
    else:
        write = (
            f"UPDATE holdfast_records r SET rev = r.rev + 1, body = $5, last = r.last + $6, touched = {USED}, "
            f"idle = $7, max_age = $8, nonce = $9, expires = LEAST({USED} + $7::float8, r.created + $8::float8) "
            f"WHERE r.kind = $2 AND r.id = $3 AND r.principal = $4{condition} AND {_ALIVE} AND {guard} "
            f"{returning}"
        )
    if not fenced and not logs:
        return write
    more = last = ""
    if logs:
        more += (
            ", logged AS (INSERT INTO holdfast_log (kind, id, last, rev, at, body) "
            f"SELECT $2, $3, last, rev, touched, ${body} FROM written)"
        )
    if releases:
        word = notify(f"${values + 1}")
        more += (
            f", released AS (UPDATE holdfast_claims c SET expires = {CLOCK} FROM written "
            f"WHERE c.kind = $2 AND c.id = $3 RETURNING CASE WHEN c.awaited > 0 THEN {word}::text END)"
        )
        last = ", released"
    return f"WITH {held}written AS ({write}){more} SELECT written.* FROM written{last}"


def matching(kind: str | None, principal: str | None, state: State | None) -> tuple[str, list[object]]:
    """The condition of a scan or count, and its values from `$2` on."""
    parts = ["TRUE"]
    given: list[object] = []
    for column, value in (("kind", kind), ("principal", principal)):
        if value is not None:
            given.append(value)
            parts.append(f"r.{column} = ${len(given) + 1}")
    if state == "ended":
        parts.append("r.ended IS NOT NULL")
    elif state == "live":
        parts.append(_ALIVE)
    elif state == "expired":
        parts.append(f"r.ended IS NULL AND r.expires <= {NOW}")
    return " AND ".join(parts), given


def scan_sql(condition: str, given: int, resumes: bool) -> str:
    """A page; the cursor's two values and the limit come after the condition's."""
    further = f" AND (r.kind, r.id) > (${given + 2}, ${given + 3})" if resumes else ""
    limit = given + (4 if resumes else 2)
    return (
        f"SELECT {NOW}, r.kind, r.id, {FIELDS} FROM holdfast_records r WHERE {condition}{further} "
        f"ORDER BY r.kind, r.id LIMIT ${limit}"
    )


def count_sql(condition: str) -> str:
    return f"SELECT count(*) FROM holdfast_records r WHERE {condition} AND ($1::float8 IS NULL OR TRUE)"
