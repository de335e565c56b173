"""What happened, as frozen facts. It owns the vocabulary that logs, audit, metrics and spans are made from.

It refuses to do anything with them: a sink is any callable that takes an event, and without a sink nothing is built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """A store is ready; `store` is its address without secrets."""

    at: float
    store: str
    schema: int


@dataclass(frozen=True, slots=True)
class StoreMigrated:
    """A store's schema was brought up to date."""

    at: float
    store: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class StoreClosed:
    """A store was closed."""

    at: float
    store: str


@dataclass(frozen=True, slots=True)
class RecordsReaped:
    """Expired records and old tombstones were removed."""

    at: float
    store: str
    expired: int
    tombstones: int


@dataclass(frozen=True, slots=True)
class ListenerFailed:
    """Notices could not be read for a while; listeners get a `Gap` when they can be again."""

    at: float
    store: str
    why: str


@dataclass(frozen=True, slots=True)
class StoreWarned:
    """A store works, and is set up so that it may lose records; `remedy` says what to change."""

    at: float
    store: str
    what: str
    remedy: str


Event: TypeAlias = StoreOpened | StoreMigrated | StoreClosed | StoreWarned | RecordsReaped | ListenerFailed
Sink: TypeAlias = Callable[[Event], None]
