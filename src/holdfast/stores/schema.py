"""The tables, in one place for every SQL database. It owns names, types and the way from one version to the next.

It refuses to run anything: it hands out statements, and the store of each database runs them under its own lock.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.schema import CreateIndex, CreateTable

from holdfast.errors import ConfigError

# Ids are ordered by their bytes in every database, so that a scan pages alike everywhere.
_Name = Text().with_variant(Text(collation="C"), "postgresql")
_Number = BigInteger().with_variant(Integer, "sqlite")

_tables = MetaData()

META = Table(
    "holdfast_meta", _tables, Column("name", _Name, primary_key=True), Column("value", _Number, nullable=False)
)

RECORDS = Table(
    "holdfast_records",
    _tables,
    Column("kind", _Name, nullable=False),
    Column("id", _Name, nullable=False),
    Column("principal", _Name, nullable=False),
    Column("rev", _Number, nullable=False),
    Column("body", LargeBinary),
    Column("last", _Number, nullable=False),
    Column("created", Double, nullable=False),
    Column("touched", Double, nullable=False),
    Column("idle", Double),
    Column("max_age", Double),
    Column("ended", Double),
    Column("nonce", Text, nullable=False),
    Column("expires", Double),  # derived from the four above, for the index
    PrimaryKeyConstraint("kind", "id"),
)
_ended = Index("holdfast_records_ended", RECORDS.c.ended)
_expires = Index("holdfast_records_expires", RECORDS.c.expires)
_owned = Index("holdfast_records_principal", RECORDS.c.principal)

# One row a commit: `body` holds its entries, the last of which has the number `last`.
LOG = Table(
    "holdfast_log",
    _tables,
    Column("kind", _Name, nullable=False),
    Column("id", _Name, nullable=False),
    Column("last", _Number, nullable=False),
    Column("rev", _Number, nullable=False),
    Column("at", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("kind", "id", "last"),
)

CLAIMS = Table(
    "holdfast_claims",
    _tables,
    Column("kind", _Name, nullable=False),
    Column("id", _Name, nullable=False),
    Column("owner", _Name, nullable=False),
    Column("token", _Number, nullable=False),
    Column("expires", Double, nullable=False),
    PrimaryKeyConstraint("kind", "id"),
)

# Where the database has no notices of its own (SQLite). `seq` has no gaps, so a hole is a loss.
NOTICES = Table(
    "holdfast_notices",
    _tables,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("topic", _Name, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

SCHEMA_VERSION = "SELECT value FROM holdfast_meta WHERE name = 'schema'"


def _first(dialect: Dialect) -> list[str]:
    embedded = dialect.name == "sqlite"
    tables = [RECORDS, LOG, CLAIMS, NOTICES] if embedded else [RECORDS, LOG, CLAIMS]
    elements = [CreateTable(table) for table in tables] + [CreateIndex(i) for i in (_ended, _expires, _owned)]
    return [
        *(str(element.compile(dialect=dialect)) for element in elements),
        "INSERT INTO holdfast_meta (name, value) VALUES ('token', 0)"
        if embedded
        else "CREATE SEQUENCE holdfast_tokens",
    ]


MIGRATIONS: list[Callable[[Dialect], list[str]]] = [_first]
"""Entry n brings a database from version n to n + 1. Never edited once released; only appended to."""


def create_meta(dialect: Dialect) -> list[str]:
    """What a database needs before its version can be asked; harmless if it has it."""
    return [
        str(CreateTable(META, if_not_exists=True).compile(dialect=dialect)),
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
