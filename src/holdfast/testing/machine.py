"""A Hypothesis machine that drives a store and the memory store side by side, and compares every answer.

It does not know what is right, only that both must answer the same.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Any, cast

from holdfast.core.clock import Clock, ManualClock
from holdfast.core.models import Claim, LogEntry, Principal, Record, Turn, Write
from holdfast.core.values import JSON
from holdfast.errors import HoldfastError
from holdfast.stores import open_store
from holdfast.stores.contract import Store

try:
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{__name__} needs the package 'hypothesis', which the extra 'testing' brings: pip install 'holdfast[testing]'",
        name=error.name,
    ) from None

_ids = st.sampled_from(["a", "b", "ä/😀"])
_principals = st.sampled_from(["alice", "bob"])
_owners = st.sampled_from(["me", "you"])
_spans = st.sampled_from([None, 1.0, 5.0, 30.0])
_states = st.sampled_from(["live", "expired", "ended", None])
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_changes = st.dictionaries(
    _ids, st.tuples(st.sampled_from(["create", "edit", "edit"]), st.sampled_from([0, 0, 0, 0, 1, -1]), st.booleans())
)


class StoreMachine(RuleBasedStateMachine):
    """Subclass it with `open`, and run `TestMyMachine = MyMachine.TestCase`."""

    def open(self, clock: Clock) -> AbstractAsyncContextManager[Store]:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.kind = f"machine-{secrets.token_hex(6)}"
        self.claims: dict[str, tuple[Claim, Claim]] = {}
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()

    @initialize()
    def begin(self) -> None:
        async def enter() -> tuple[Store, Store]:
            store = await self._stack.enter_async_context(self.open(self.clock))
            return store, await self._stack.enter_async_context(open_store("memory:", clock=self.clock))

        self.store, self.model = self._runner.run(enter())

    def teardown(self) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()

    def both(self, call: Callable[[Store], Awaitable[Any]]) -> tuple[Any, Any]:
        """The answers of both stores, which must be equal except for tokens."""

        async def ask(store: Store) -> Any:
            try:
                return await call(store)
            except HoldfastError as error:
                return type(error), error.kind, error.id, getattr(error, "actual", None)

        async def main() -> tuple[Any, Any]:
            async with asyncio.timeout(60):
                return await ask(self.store), await ask(self.model)

        real, model = self._runner.run(main())
        assert _comparable(real) == _comparable(model)
        return real, model

    def draft(self, id: str, principal: str, data: JSON, idle: float | None, max_age: float | None) -> Record:
        return Record(self.kind, id, Principal(principal), data, idle=idle, max_age=max_age)

    @rule(id=_ids, who=_principals, data=_json, idle=_spans, max_age=_spans, entries=st.lists(_json, max_size=3))
    def create(self, id: str, who: str, data: Any, idle: float | None, max_age: float | None, entries: Any) -> None:
        record = self.draft(id, who, data, idle, max_age)
        self.both(lambda store: store.commit(record, expect=0, entries=entries))

    @rule(id=_ids, data=_json, ahead=st.sampled_from([-1, 0, 0, 0, 1]), entries=st.lists(_json, max_size=3))
    def edit(self, id: str, data: Any, ahead: int, entries: Any) -> None:
        async def change(store: Store) -> Any:
            record = await store.get(self.kind, id)
            if record is None:
                return None
            return await store.commit(record.with_data(data), expect=max(record.rev + ahead, 0), entries=entries)

        self.both(change)

    @rule(id=_ids, who=_principals, expect=st.integers(0, 3), idle=_spans)
    def write_blindly(self, id: str, who: str, expect: int, idle: float | None) -> None:
        self.both(lambda store: store.commit(self.draft(id, who, "blind", idle, None), expect=expect))

    @rule(id=_ids)
    def touch(self, id: str) -> None:
        self.both(lambda store: store.touch(self.kind, id))

    @rule(id=_ids)
    def end(self, id: str) -> None:
        self.both(lambda store: store.end(self.kind, id))

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0, 31.0, 90_000.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(id=_ids, owner=_owners, ttl=st.sampled_from([1.0, 10.0]))
    def claim(self, id: str, owner: str, ttl: float) -> None:
        real, model = self.both(lambda store: store.claim(self.kind, id, owner=owner, ttl=ttl))
        if isinstance(real, Claim):
            before = self.claims.get(id)
            assert before is None or real.token > before[0].token
            self.claims[id] = real, cast("Claim", model)

    @rule(id=_ids)
    def renew(self, id: str) -> None:
        if id in self.claims:
            real, model = self.claims[id]
            renewed = self.both(lambda store: store.renew(model if store is self.model else real, ttl=10))
            if isinstance(renewed[0], Claim):
                self.claims[id] = renewed

    @rule(id=_ids)
    def release(self, id: str) -> None:
        if id in self.claims:
            real, model = self.claims[id]
            self.both(lambda store: store.release(model if store is self.model else real))

    @rule(id=_ids, data=_json)
    def edit_fenced(self, id: str, data: Any) -> None:
        if id not in self.claims:
            return
        real, model = self.claims[id]

        async def change(store: Store) -> Any:
            record = await store.get(self.kind, id)
            fence = (model if store is self.model else real).token
            record = record or self.draft(id, "alice", None, None, None)
            return await store.commit(record.with_data(data), expect=record.rev, fence=fence)

        self.both(change)

    @rule(changes=_changes, release=st.sets(_ids), data=_json, entries=st.lists(_json, max_size=2))
    def commit_several(
        self, changes: dict[str, tuple[str, int, bool]], release: set[str], data: Any, entries: Any
    ) -> None:
        """Of each record how it is written: created or edited, at which rev, fenced or not; and which claims go."""

        async def change(store: Store) -> Any:
            writes: list[Write] = []
            for id, (how, ahead, fenced) in changes.items():
                record = await store.get(self.kind, id) if how == "edit" else None
                record = record or self.draft(id, "alice", None, 5.0 if how == "create" else None, None)
                fence = self._claim(store, id).token if fenced and id in self.claims else None
                rev = max(record.rev + ahead, 0)
                writes.append(Write(record.with_data(data), expect=rev, entries=entries, fence=fence))
            freed = [self._claim(store, id) for id in sorted(release & self.claims.keys())]
            return await store.commit_all(writes, release=freed)

        self.both(change)
        for id in ("a", "b", "ä/😀"):
            self.both(lambda store, id=id: store.log(self.kind, id))
            self.both(lambda store, id=id: store.holder(self.kind, id))

    @rule(ids=st.lists(_ids, max_size=3), dead=st.booleans())
    def get_several(self, ids: list[str], dead: bool) -> None:
        self.both(lambda store: store.get_all([(self.kind, id) for id in ids], dead=dead))

    @rule(
        ids=st.lists(_ids, max_size=3, unique=True),
        owner=_owners,
        ttl=st.sampled_from([1.0, 10.0]),
        dead=st.booleans(),
        notify=st.booleans(),
    )
    def begin_turns(self, ids: list[str], owner: str, ttl: float, dead: bool, notify: bool) -> None:
        names = [(self.kind, id) for id in ids]
        turns = self.both(lambda store: store.begin_turns(names, owner=owner, ttl=ttl, dead=dead, notify=notify))
        if isinstance(turns[0], list):
            for real, model in zip(*cast("tuple[list[Turn], list[Turn]]", turns), strict=True):
                self.claims[real.claim.id] = real.claim, model.claim

    def _claim(self, store: Store, id: str) -> Claim:
        real, model = self.claims[id]
        return model if store is self.model else real

    @rule(expired_for=st.sampled_from([0.0, 10.0]))
    def reap(self, expired_for: float) -> None:
        self.both(lambda store: store.reap(kind=self.kind, expired_for=expired_for))

    @rule(who=st.none() | _principals, state=_states, limit=st.integers(1, 3))
    def scan(self, who: str | None, state: Any, limit: int) -> None:
        async def everything(store: Store) -> Any:
            page = await store.scan(kind=self.kind, principal=who, state=state, limit=limit)
            found = [page.records]
            while page.next is not None:
                page = await store.scan(kind=self.kind, principal=who, state=state, limit=limit, after=page.next)
                found.append(page.records)
            return found, await store.count(kind=self.kind, principal=who, state=state)

        self.both(everything)

    @rule(id=_ids, after=st.integers(0, 5), limit=st.integers(1, 4), newest=st.booleans())
    def log(self, id: str, after: int, limit: int, newest: bool) -> None:
        self.both(lambda store: store.log(self.kind, id, after=after, limit=limit, newest_first=newest))

    @invariant()
    def both_show_the_same(self) -> None:
        if not hasattr(self, "store"):
            return
        for id in ("a", "b"):
            self.both(lambda store, id=id: store.get(self.kind, id, dead=True))
            self.both(lambda store, id=id: store.holder(self.kind, id))


def _comparable(answer: Any) -> Any:
    if isinstance(answer, Turn):
        return _comparable(answer.claim), _comparable(answer.record)
    if isinstance(answer, Claim):
        return replace(answer, token=0)
    if isinstance(answer, Record | LogEntry):
        return type(answer), repr(answer)  # repr distinguishes 1 from True and 0.0 from -0.0
    if isinstance(answer, list | tuple):
        return [_comparable(part) for part in cast("list[Any]", answer)]
    return answer
