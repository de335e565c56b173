"""The tables of every SQL database, and the statements that bring one version to the next.

Nothing runs here: the store of each database runs the statements under its own lock.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.errors import ConfigError


class Dialect(NamedTuple):
    """What a database calls our types, and what it has beside the tables that all have."""

    name: str
    """Text that is ordered by its bytes, so that a scan pages alike everywhere."""
    number: str
    bytes: str
    float: str
    own: tuple[str, ...]


SQLITE = Dialect(
    name="TEXT",
    number="INTEGER",
    bytes="BLOB",
    float="DOUBLE",
    own=(
        # SQLite has no notices of its own. `seq` has no gaps, so a hole is a loss.
        """CREATE TABLE holdfast_notices (
            seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
            topic TEXT NOT NULL,
            body BLOB NOT NULL,
            at DOUBLE NOT NULL
        )""",
        "INSERT INTO holdfast_meta (name, value) VALUES ('token', 0)",
    ),
)
POSTGRESQL = Dialect(
    name='TEXT COLLATE "C"',
    number="BIGINT",
    bytes="BYTEA",
    float="DOUBLE PRECISION",
    own=("CREATE SEQUENCE holdfast_tokens",),
)

_META = """CREATE TABLE IF NOT EXISTS holdfast_meta (
    name {name} NOT NULL,
    value {number} NOT NULL,
    PRIMARY KEY (name)
)"""

# `expires` is derived from the four columns before it, for the index. In the log, `body` holds the entries of one
# commit, the last of which has the number `last`.
_FIRST = (
    """CREATE TABLE holdfast_records (
        kind {name} NOT NULL,
        id {name} NOT NULL,
        principal {name} NOT NULL,
        rev {number} NOT NULL,
        body {bytes},
        last {number} NOT NULL,
        created {float} NOT NULL,
        touched {float} NOT NULL,
        idle {float},
        max_age {float},
        ended {float},
        nonce TEXT NOT NULL,
        expires {float},
        PRIMARY KEY (kind, id)
    )""",
    """CREATE TABLE holdfast_log (
        kind {name} NOT NULL,
        id {name} NOT NULL,
        last {number} NOT NULL,
        rev {number} NOT NULL,
        at {float} NOT NULL,
        body {bytes} NOT NULL,
        PRIMARY KEY (kind, id, last)
    )""",
    """CREATE TABLE holdfast_claims (
        kind {name} NOT NULL,
        id {name} NOT NULL,
        owner {name} NOT NULL,
        token {number} NOT NULL,
        expires {float} NOT NULL,
        PRIMARY KEY (kind, id)
    )""",
    "CREATE INDEX holdfast_records_ended ON holdfast_records (ended)",
    "CREATE INDEX holdfast_records_expires ON holdfast_records (expires)",
    "CREATE INDEX holdfast_records_principal ON holdfast_records (principal)",
)

SCHEMA_VERSION = "SELECT value FROM holdfast_meta WHERE name = 'schema'"


def _first(dialect: Dialect) -> list[str]:
    return [*(statement.format(**dialect._asdict()) for statement in _FIRST), *dialect.own]


def _awaited(dialect: Dialect) -> list[str]:
    """1 if someone who wanted the claim asked for a notice of its release."""
    return [f"ALTER TABLE holdfast_claims ADD COLUMN awaited {dialect.number} NOT NULL DEFAULT 0"]


MIGRATIONS: list[Callable[[Dialect], list[str]]] = [_first, _awaited]
"""Entry n brings a database from version n to n + 1. Never edited once released; only appended to."""


def create_meta(dialect: Dialect) -> list[str]:
    """What a database needs before its version can be asked; harmless if it has it."""
    return [
        _META.format(**dialect._asdict()),
        "INSERT INTO holdfast_meta (name, value) VALUES ('schema', 0) ON CONFLICT DO NOTHING",
    ]


def steps_from(version: int, dialect: Dialect, store: str) -> Sequence[str]:
    """The statements from `version` to this Holdfast's version, or `ConfigError` for a database of a newer one."""
    newest = len(MIGRATIONS)
    if not 0 <= version <= newest:
        raise ConfigError(
            f"{store} has schema version {version}; this Holdfast knows versions up to {newest}",
            store=store,
            remedy="upgrade Holdfast, or open another database",
        )
    if version == newest:
        return []
    statements = [statement for step in MIGRATIONS[version:] for statement in step(dialect)]
    return [*statements, f"UPDATE holdfast_meta SET value = {newest} WHERE name = 'schema'"]
