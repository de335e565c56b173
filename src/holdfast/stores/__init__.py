"""Where records live: memory and SQLite, one contract. It owns the way from a URL to a store.

It refuses to import a database's driver before somebody asks for that database.
"""

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.core.clock import SYSTEM, Clock
from holdfast.core.events import Sink
from holdfast.errors import ConfigError
from holdfast.stores.base import MAX_RECORD_BYTES, Store
from holdfast.stores.codec import Codec
from holdfast.stores.memory import MemoryStore
from holdfast.stores.update import update

__all__ = ["MAX_RECORD_BYTES", "MemoryStore", "Store", "open_store", "update"]

_KNOWN = "memory:, sqlite:///file.db"


def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    max_bytes: int = MAX_RECORD_BYTES,
    create: bool = True,
    on_event: Sink | None = None,
) -> Store:
    """The store at a URL, to be used as `async with open_store(…) as store`.

    `memory:` lives as long as the object; `sqlite:///file.db` (relative) or `sqlite:////var/lib/x.db` (absolute) is a
    file for all processes of one machine. With `create=False` a file that does not exist is an error. `clock` replaces
    the store's own, for tests.
    """
    parts = urlsplit(url)
    codec = Codec(max_bytes)
    match parts.scheme:
        case "memory":
            return MemoryStore(clock=clock or SYSTEM, codec=codec, on_event=on_event)
        case "sqlite":
            from holdfast.stores.sqlite import SqliteStore

            timeout, synchronous = _sqlite_settings(url, parts.query)
            return SqliteStore(
                _sqlite_path(url, parts.netloc, parts.path),
                clock=clock or SYSTEM,
                codec=codec,
                create=create,
                on_event=on_event,
                timeout=timeout,
                synchronous=synchronous,
            )
        case scheme:
            raise ConfigError(
                f"no store has the scheme {scheme!r}" if scheme else f"{url!r} is not the URL of a store",
                remedy=f"known are {_KNOWN}",
            )


def _sqlite_path(url: str, host: str, path: str) -> Path:
    name = unquote(path[1:])
    if host:
        raise ConfigError(
            f"{url}: sqlite: takes no host, and {host!r} stands where one would",
            remedy=f"write sqlite:///{host}{path} for a relative path",
        )
    if not name or name == ":memory:":
        raise ConfigError(f"{url} names no file", remedy="write sqlite:///file.db, or memory: for a store in memory")
    return Path(name)


def _sqlite_settings(url: str, query: str) -> tuple[float, str]:
    timeout, synchronous = 5.0, "FULL"
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "timeout":
            try:
                timeout = float(value)
            except ValueError:
                timeout = -1.0
            if not 0 < timeout <= 3600:
                raise ConfigError(f"{url}: timeout={value} is not a number of seconds", remedy="write e.g. timeout=5")
        elif name == "synchronous":
            synchronous = value.upper()
            if synchronous not in ("FULL", "NORMAL"):
                raise ConfigError(f"{url}: synchronous={value} is unknown", remedy="write full or normal")
        else:
            raise ConfigError(f"{url}: no setting {name!r}", remedy="known are timeout and synchronous")
    return timeout, synchronous
