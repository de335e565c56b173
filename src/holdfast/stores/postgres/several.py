"""The SQL of the PostgreSQL store for several records at once. Each is one statement, so all or nothing of it happens.

Every statement takes its locks in the same order: claims before records, existing rows before new ones, each sorted by
name. So two of them that name the same things can't wait for each other. What would happen in part is an error.
"""

from holdfast.stores.postgres.statements import CLOCK, FIELDS, HEAD, NOW, USED, notify

# Values: now, kinds, ids.
_NAMES = "unnest($2::text[], $3::text[]) WITH ORDINALITY AS k(kind, id, n)"

GET_ALL = (
    f"SELECT {NOW}, {FIELDS} FROM {_NAMES} LEFT JOIN holdfast_records r ON r.kind = k.kind AND r.id = k.id ORDER BY k.n"
)
LOOK = (
    f"SELECT {NOW}, {HEAD}, c.owner, c.token, c.expires FROM {_NAMES} "
    "LEFT JOIN holdfast_records r ON r.kind = k.kind AND r.id = k.id "
    "LEFT JOIN holdfast_claims c ON c.kind = k.kind AND c.id = k.id ORDER BY k.n"
)

# For a transaction: the claims first, then the records. Values: kinds, ids.
LOCK_CLAIMS = (
    "SELECT c.kind, c.id, c.owner, c.token, c.expires FROM unnest($1::text[], $2::text[]) AS k(kind, id) "
    "JOIN holdfast_claims c ON c.kind = k.kind AND c.id = k.id ORDER BY c.kind, c.id FOR NO KEY UPDATE OF c"
)
LOCK = (
    f"SELECT r.kind, r.id, {HEAD} FROM unnest($1::text[], $2::text[]) AS k(kind, id) "
    "JOIN holdfast_records r ON r.kind = k.kind AND r.id = k.id ORDER BY r.kind, r.id FOR UPDATE OF r"
)

# `locked` finds the rows as they are once every earlier writer is done, and only then are they compared with what is
# expected: a condition beside the lock would be tried on the row as it was before. `made` has no ON CONFLICT: if
# another made the same record meanwhile, the whole statement must fail.
# Values: now; of each write kind, id, principal, expect, body, count, idle, max_age, created, nonce, entries; of each
# claim that must be held kind, id, token, whether it is released, and the notice of that.
COMMIT = f"""
WITH w AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::bytea[], $7::bigint[], $8::float8[],
        $9::float8[], $10::float8[], $11::text[], $12::bytea[]) WITH ORDINALITY
        AS w(kind, id, principal, expect, body, added, idle, max_age, created, nonce, entries, n)
), wanted AS MATERIALIZED (
    SELECT * FROM unnest($13::text[], $14::text[], $15::bigint[], $16::boolean[], $17::text[])
        AS f(kind, id, token, released, notice)
), held AS MATERIALIZED (
    SELECT c.kind, c.id, c.awaited, f.released, f.notice
    FROM wanted f JOIN holdfast_claims c ON c.kind = f.kind AND c.id = f.id
    WHERE c.token = f.token AND c.expires > {CLOCK}
    ORDER BY c.kind, c.id FOR NO KEY UPDATE OF c
), locked AS MATERIALIZED (
    SELECT r.kind, r.id, r.principal, r.rev, r.last, r.created, r.ended, r.expires
    FROM w JOIN holdfast_records r ON r.kind = w.kind AND r.id = w.id
    WHERE (SELECT count(*) FROM held) = (SELECT count(*) FROM wanted)
    ORDER BY r.kind, r.id FOR NO KEY UPDATE OF r
), fit AS MATERIALIZED (
    SELECT w.*, r.last AS before, r.created AS begun
    FROM w JOIN locked r ON r.kind = w.kind AND r.id = w.id
    WHERE w.expect > 0 AND r.rev = w.expect AND r.principal = w.principal
        AND (w.created = 0 OR r.created = w.created)
        AND r.ended IS NULL AND (r.expires IS NULL OR r.expires > {CLOCK})
), ok AS MATERIALIZED (
    SELECT 1 WHERE (SELECT count(*) FROM held) = (SELECT count(*) FROM wanted)
        AND (SELECT count(*) FROM fit) = (SELECT count(*) FROM w WHERE expect > 0)
        AND (SELECT count(*) FROM fit) = (SELECT count(*) FROM locked)
), changed AS (
    UPDATE holdfast_records r SET rev = f.expect + 1, body = f.body, last = f.before + f.added, touched = {USED},
        idle = f.idle, max_age = f.max_age, nonce = f.nonce, expires = LEAST({USED} + f.idle, f.begun + f.max_age)
    FROM fit f, ok WHERE r.kind = f.kind AND r.id = f.id
    RETURNING f.n, r.rev, r.last, r.created, r.touched
), made AS (
    INSERT INTO holdfast_records (kind, id, principal, rev, body, last, created, touched, idle, max_age, nonce, expires)
    SELECT w.kind, w.id, w.principal, 1, w.body, w.added, {NOW}, {NOW}, w.idle, w.max_age, w.nonce,
        LEAST({NOW} + w.idle, {NOW} + w.max_age)
    FROM w, ok WHERE w.expect = 0 ORDER BY w.kind COLLATE "C", w.id COLLATE "C"
    RETURNING created
), logged AS (
    INSERT INTO holdfast_log (kind, id, last, rev, at, body)
    SELECT w.kind, w.id, coalesce(c.last, w.added), w.expect + 1, coalesce(c.touched, {NOW}), w.entries
    FROM ok, w LEFT JOIN changed c ON c.n = w.n WHERE w.entries IS NOT NULL AND (w.expect = 0 OR c.n IS NOT NULL)
), released AS (
    UPDATE holdfast_claims c SET expires = {CLOCK} FROM held h, ok
    WHERE h.released AND c.kind = h.kind AND c.id = h.id
)
SELECT (SELECT count(*) FROM ok),
    ARRAY(SELECT coalesce(c.touched, {NOW}) FROM w LEFT JOIN changed c ON c.n = w.n ORDER BY w.n),
    ARRAY(SELECT coalesce(f.begun, {NOW}) FROM w LEFT JOIN fit f ON f.n = w.n ORDER BY w.n),
    (SELECT count({notify("h.notice")}) FROM held h, ok WHERE h.released AND h.awaited > 0)
"""

# What the statement reads of the records is what it saw when it began. If it then waited for a claim, the former holder
# may have written since: `moved` says so, and the records must be read again.
# Values: now, kinds, ids, owner, ttl, whether to leave word with the claims in the way.
BEGIN_TURNS = f"""
WITH k AS MATERIALIZED (
    SELECT * FROM {_NAMES}
), locked AS MATERIALIZED (
    SELECT k.n, c.kind, c.id, c.owner, c.token, c.expires
    FROM k JOIN holdfast_claims c ON c.kind = k.kind AND c.id = k.id
    ORDER BY c.kind, c.id FOR NO KEY UPDATE OF c
), busy AS MATERIALIZED (
    SELECT * FROM locked WHERE expires > {CLOCK} AND owner <> $4
), free AS MATERIALIZED (
    SELECT 1 WHERE NOT EXISTS (SELECT FROM busy)
), asked AS (
    UPDATE holdfast_claims c SET awaited = 1 FROM busy b WHERE $6::boolean AND c.kind = b.kind AND c.id = b.id
), taken AS (
    INSERT INTO holdfast_claims AS c (kind, id, owner, token, expires)
    SELECT k.kind, k.id, $4, nextval('holdfast_tokens'), {CLOCK} + $5::float8
    FROM k, free ORDER BY k.kind COLLATE "C", k.id COLLATE "C"
    ON CONFLICT (kind, id) DO UPDATE SET owner = excluded.owner, token = nextval('holdfast_tokens'),
        expires = {CLOCK} + $5, awaited = 0 WHERE c.expires <= {CLOCK} OR c.owner = excluded.owner
    RETURNING c.kind, c.id, c.token, c.expires, c.xmax::text <> '0' AS replaced
), moved AS MATERIALIZED (
    SELECT EXISTS (
        SELECT FROM locked l JOIN holdfast_claims c ON c.kind = l.kind AND c.id = l.id
        WHERE c.token <> l.token OR c.expires <> l.expires
    ) OR (SELECT count(*) FROM taken WHERE replaced) > (SELECT count(*) FROM locked) AS moved
), counted AS MATERIALIZED (
    SELECT count(*) AS number FROM taken
)
SELECT {NOW}, t.token, t.expires, l.owner, l.token, l.expires, moved.moved,
    CASE WHEN EXISTS (SELECT FROM free) AND counted.number < (SELECT count(*) FROM k)
        THEN (counted.number::text || ' claims were free, another was made meanwhile')::int END, {FIELDS}
FROM moved, counted, k LEFT JOIN taken t ON t.kind = k.kind AND t.id = k.id LEFT JOIN locked l ON l.n = k.n
    LEFT JOIN holdfast_records r ON r.kind = k.kind AND r.id = k.id AND t.token IS NOT NULL
ORDER BY k.n
"""

# The same for one name, in half the time. Values: now, kind, id, owner, ttl, whether to leave word.
BEGIN_TURN = f"""
WITH locked AS MATERIALIZED (
    SELECT c.owner, c.token, c.expires FROM holdfast_claims c WHERE c.kind = $2 AND c.id = $3 FOR NO KEY UPDATE OF c
), busy AS MATERIALIZED (
    SELECT 1 FROM locked WHERE expires > {CLOCK} AND owner <> $4
), asked AS (
    UPDATE holdfast_claims c SET awaited = 1
    WHERE $6::boolean AND EXISTS (SELECT FROM busy) AND c.kind = $2 AND c.id = $3
), taken AS (
    INSERT INTO holdfast_claims AS c (kind, id, owner, token, expires)
    SELECT $2, $3, $4, nextval('holdfast_tokens'), {CLOCK} + $5::float8 WHERE NOT EXISTS (SELECT FROM busy)
    ON CONFLICT (kind, id) DO UPDATE SET owner = excluded.owner, token = nextval('holdfast_tokens'),
        expires = {CLOCK} + $5, awaited = 0 WHERE c.expires <= {CLOCK} OR c.owner = excluded.owner
    RETURNING c.token, c.expires, c.xmax::text <> '0' AS replaced
)
SELECT {NOW}, t.token, t.expires, l.owner, l.token, l.expires,
    (l.token, l.expires) IS DISTINCT FROM (c.token, c.expires) OR (t.replaced AND l.token IS NULL), NULL, {FIELDS}
FROM (VALUES (1)) AS one LEFT JOIN taken t ON TRUE LEFT JOIN locked l ON TRUE
    LEFT JOIN holdfast_claims c ON c.kind = $2 AND c.id = $3
    LEFT JOIN holdfast_records r ON r.kind = $2 AND r.id = $3 AND t.token IS NOT NULL
"""
