"""Results of calls that may be repeated, each in a record of its own, written in the step that writes the call.

A key belongs to a caller and the sessions that the call takes; another call under it is refused.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from holdfast.core.models import ANONYMOUS, Principal, Record
from holdfast.core.records import Key
from holdfast.core.values import JSON, members
from holdfast.errors import HoldfastError, UsageError
from holdfast.state.storage.entries import RESULTS
from holdfast.stores.contract import Store

DAY = 86_400.0
KEPT_SECONDS = DAY  # a client that repeats a call does so within minutes
KEPT_RESULTS = 10_000  # of one session: beyond it the oldest go before their time
_GONE_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Keyed:
    """A call with an idempotency key: who makes it, and what it is."""

    key: str
    principal: Principal
    tool: str
    call: str
    """The digest of the tool and its arguments."""

    @classmethod
    def of(cls, key: object, principal: Principal, tool: str, arguments: dict[str, Any]) -> "Keyed":
        if not isinstance(key, str) or not key:
            raise UsageError(
                f"the idempotency key {key!r:.60} is not text of at least one character", remedy="give text"
            )
        return cls(key, principal, tool, _digest(tool, arguments))

    def place(self, handles: Iterable[str], *, shared: bool) -> Key:
        """Where the result of this call is kept, beside the sessions with these handles; `shared` if callers share
        them."""
        if shared and self.principal == ANONYMOUS:
            raise UsageError(
                "an idempotency key needs an authenticated caller here: this session is everyone's, and another "
                "caller's answer under the same key would be given",
                remedy="call it without a key, or authenticate",
            )
        first, *others = sorted(handles)
        return RESULTS, f"{first}.{_digest(self.key, self.principal, others)}"

    def place_of_caller(self, connection: str | None) -> Key:
        """Where the result of a call is kept that takes no session: beside the caller, or an anonymous one's
        `connection`."""
        if self.principal == ANONYMOUS and connection is None:
            raise UsageError(
                "an idempotency key needs an authenticated caller here: nothing tells this caller from others, and "
                "another one's answer under the same key would be given",
                remedy="call it without a key, or authenticate",
            )
        return RESULTS, f"{_digest(self.principal, connection)}.{_digest(self.key)}"

    def answer(self, record: Record | None) -> dict[str, Any] | None:
        """The result that is kept there, if this very call was made before."""
        if record is None or record.ended is not None:
            return None
        kept = members(record.data)
        if kept.get("call") != self.call or kept.get("tool") != self.tool:
            raise UsageError(
                f"the idempotency key {self.key!r:.80} was used for another call of {kept.get('tool')!r:.80}",
                remedy="use a new key for a new call",
            )
        return members(kept.get("result"))

    def record(self, place: Key, result: dict[str, Any], seconds: float) -> Record:
        """What is kept there."""
        data: dict[str, JSON] = {"tool": self.tool, "call": self.call, "result": cast("JSON", result)}
        return Record(*place, self.principal, data, max_age=seconds)


async def trim(store: Store, most: int = KEPT_RESULTS) -> None:
    """Remove the oldest results of sessions that have more than so many."""
    found: list[Record] = []
    after: str | None = None
    while True:
        page = await store.scan(kind=RESULTS, after=after)
        for record in page.records:
            if found and _session(found[0]) != _session(record):
                await _trim(store, found, most)
                found = []
            found.append(record)
        after = page.next
        if after is None:
            await _trim(store, found, most)
            return


async def _trim(store: Store, found: list[Record], most: int) -> None:
    """An ended record would refuse its key for good, so these expire."""
    for record in sorted(found, key=lambda record: record.created)[: max(0, len(found) - most)]:
        with suppress(HoldfastError):
            short = Record(record.kind, record.id, record.principal, None, max_age=_GONE_SECONDS)
            await store.commit(short, expect=record.rev)


def _session(record: Record) -> str:
    return record.id.rpartition(".")[0]


def _digest(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
