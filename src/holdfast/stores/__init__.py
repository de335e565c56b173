"""Stores of records: in memory, SQLite, PostgreSQL, Redis or Valkey, opened from a URL by `open_store`.

A database's driver is imported only when a store of that database is opened.
"""

from collections.abc import Sequence

from holdfast.core.clock import SYSTEM, Clock, ManualClock
from holdfast.core.models import ANONYMOUS, Claim, Gap, LogEntry, Notice, Page, Reaped, Record, Turn, Write
from holdfast.core.values import JSON
from holdfast.errors import ConfigError
from holdfast.events import Sink
from holdfast.stores.address import Address
from holdfast.stores.codec import Codec
from holdfast.stores.contract import MAX_AT_ONCE, MAX_COMMIT_BYTES, MAX_RECORD_BYTES, TURNS, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sealing import SealingCodec
from holdfast.stores.update import update

__all__ = [
    "ANONYMOUS",
    "JSON",
    "MAX_AT_ONCE",
    "MAX_COMMIT_BYTES",
    "MAX_RECORD_BYTES",
    "TURNS",
    "Claim",
    "Clock",
    "Gap",
    "LogEntry",
    "ManualClock",
    "MemoryStore",
    "Notice",
    "Page",
    "Reaped",
    "Record",
    "Store",
    "Turn",
    "Write",
    "open_store",
    "update",
]

_KNOWN = "memory:, sqlite:///file.db, postgresql://host/database, redis://host"


def open_store(
    url: str,
    *,
    keys: Sequence[bytes | str] | None = None,
    clock: Clock | None = None,
    max_bytes: int = MAX_RECORD_BYTES,
    create: bool = True,
    on_event: Sink | None = None,
) -> Store:
    """The store at `url`, to be used as `async with open_store(…) as store`.

    `memory:` lives as long as the object; `sqlite:///file.db` (relative) or `sqlite:////var/lib/x.db` (absolute) is a
    file for all processes of one machine; `postgresql://…` and `redis://…` serve many machines. With `keys` every body
    is sealed by the first key and opened by any of them. With `create=False` a file that does not exist is an error.
    `max_bytes` limits a record. `on_event` is called with events of the store. `clock` replaces the store's own, for
    tests.
    """
    address = Address.parse(url)
    codec = Codec(max_bytes) if keys is None else SealingCodec(max_bytes, keys)
    match address.scheme:
        case "memory":
            address.take()
            return MemoryStore(clock=clock or SYSTEM, codec=codec, on_event=on_event)
        case "sqlite":
            from holdfast.stores.sqlite.store import SqliteStore

            settings = address.take("timeout", "synchronous")
            return SqliteStore(
                address.file(),
                clock=clock or SYSTEM,
                codec=codec,
                create=create,
                on_event=on_event,
                timeout=address.seconds(settings, "timeout", 5.0),
                synchronous=address.choice(settings, "synchronous", "full", "normal").upper(),
            )
        case "postgresql" | "postgres":
            try:
                from holdfast.stores.postgres.store import PostgresStore
            except ModuleNotFoundError as error:
                raise _missing("PostgreSQL", "postgres", error) from error

            settings = address.take("timeout", "connections", pass_on=True)
            return PostgresStore(
                address.dsn(),
                url=address.shown(),
                clock=clock,
                codec=codec,
                on_event=on_event,
                timeout=address.seconds(settings, "timeout", 5.0),
                connections=address.number(settings, "connections", 16),
            )
        case "redis" | "rediss" | "valkey" | "valkeys" | "unix":
            try:
                from holdfast.stores.redis.store import RedisStore
            except ModuleNotFoundError as error:
                raise _missing("Redis", "redis", error) from error

            settings = address.take("timeout", "connections", "prefix", pass_on=True)
            return RedisStore(
                address.dsn(),
                url=address.shown(),
                clock=clock,
                codec=codec,
                on_event=on_event,
                timeout=address.seconds(settings, "timeout", 5.0),
                connections=address.number(settings, "connections", 32),
                prefix=settings.get("prefix", "holdfast"),
            )
        case scheme:
            raise ConfigError(
                f"no store has the scheme {scheme!r}" if scheme else "that is not the URL of a store",
                remedy=f"known are {_KNOWN}",
            )


def _missing(database: str, extra: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(
        f"the store on {database} needs the package {error.name}",
        remedy=f'install it: pip install "holdfast[{extra}]"',
    )
