"""One session of a server's caller: typed state that is read, changed without losing anybody's write, and ended.

It owns compare-and-swap around the state, the turn that a lease gives, and the way back. It refuses to overwrite in
silence, to write what would not come back equal, and to revive what has ended.
"""

import asyncio
import hashlib
import inspect
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from holdfast.core.models import ANONYMOUS, Claim, Handle, LogEntry, Principal, Record
from holdfast.core.values import JSON, members
from holdfast.errors import (
    Busy,
    Conflict,
    HoldfastError,
    LimitReached,
    NotFound,
    UsageError,
)
from holdfast.state import model, records
from holdfast.state.log import KIND, PAGE, UNDO, Log, differences, same
from holdfast.state.model import SessionState
from holdfast.state.tool_errors import shown
from holdfast.stores.base import to_the_end
from holdfast.stores.contract import CLOSE_SECONDS, Store
from holdfast.stores.update import UPDATE_SECONDS

if TYPE_CHECKING:
    from holdfast.state.sessions import Sessions

S = TypeVar("S", bound=SessionState)
R = TypeVar("R")
Base: TypeAlias = tuple[Record, S]
FRESH = (
    0.25  # seconds after being read in which a record is taken as it is: whoever wrote meanwhile is met at the commit
)
ONCE = 64  # results kept for repeated calls
ONCE_BYTES = 128 * 1024  # of them together: a record holds little more than that and the state


class Session(Generic[S]):
    """One caller's session. Change it in `edit()`, `update()`, `once()` or `lease()`; `state` is a copy."""

    def __init__(self, sessions: "Sessions[S]", record: Record, state: S, also: type[Exception] | None = None) -> None:
        self._sessions = sessions
        self._record = record
        self._state = state
        self._also = also
        self._read_at = float("-inf")
        self._shared_with: Principal | None = None
        self._draft: S | None = None
        self._draft_base: Base[S] = record, state
        self._labels: list[str] = []
        self._notes: list[tuple[str, JSON]] = []
        self.log = Log(self)
        self.on_renewal: Callable[[], Awaitable[None]] | None = None
        """Called while a long turn lasts."""

    def __repr__(self) -> str:
        return f"<Session {self.handle[:6]}… rev={self.rev} of {self._record.principal}>"

    # What it is

    @property
    def handle(self) -> Handle:
        return Handle(self._record.id)

    @property
    def principal(self) -> Principal:
        return self._record.principal

    @property
    def rev(self) -> int:
        return self._record.rev

    @property
    def state(self) -> S:
        """A copy of the state as it was read or written last; within a call that middleware saves, with what the call
        has changed so far."""
        return (self._draft if self._draft is not None else self._state).model_copy(deep=True)

    @property
    def title(self) -> str:
        return str(members(self._record.data).get("title") or "")

    @property
    def parent(self) -> tuple[Handle, int] | None:
        """The session and revision that this one was forked from."""
        parent = members(members(self._record.data).get("parent"))
        return (Handle(str(parent["handle"])), int(cast("int", parent["rev"]))) if parent else None

    @property
    def created(self) -> float:
        return self._record.created

    @property
    def expires(self) -> float | None:
        """When it ends if nobody uses it before, in seconds since 1970 by the store's clock."""
        return self._record.expires

    # Reading and writing

    async def read(self) -> S:
        """The state as it is now. Reading is use: the idle time starts over."""
        with self._reporter():
            await self._refresh()
            await self._sessions.slide(self._record)
        return self.state

    @property
    def draft(self) -> S:
        """The state to change in place where middleware saves it after the call."""
        if self._draft is None:
            with self._reporter():
                raise UsageError(
                    "no middleware saves this session after the call",
                    remedy="sessions.install(server, save=True), or change it in `async with session.edit()`",
                )
        return self._draft

    @asynccontextmanager
    async def edit(self, label: str = "edit") -> AsyncGenerator[S]:
        """Change the state inside the block. Written at its end, if nobody else wrote meanwhile: else `Conflict`, and
        nothing of it is kept. An error inside keeps nothing either. What did not change is not written."""
        if self._draft is not None:
            before, draft = self._draft, self._draft.model_copy(deep=True)
            yield draft
            if self._draft is not before:  # two edits at once within one call
                with self._reporter():
                    raise Conflict(f"{label}: another edit of this call was faster", id=self.handle)
            self._join(draft, label)
            return
        with self._reporter():
            self._sessions.write_at_once()
            await self._current()
        base, draft = self.base, self.state
        yield draft
        with self._reporter():
            await self._commit(draft, label, base=base)

    async def update(self, change: Callable[[S], S | None], label: str = "update") -> S:
        """Apply a pure function, again on a fresh reading if somebody else was faster. It may change what it gets, or
        return another state."""

        def work(state: S) -> S:
            result: object = change(state)
            if result is None:
                return state
            if isinstance(result, self._sessions.kind):
                return cast("S", result)
            if inspect.iscoroutine(result):
                result.close()
            raise UsageError(
                f"{label}: the function returned {result!r:.60}",
                remedy="change the state in place and return None, or return another state; it is called anew after a "
                "conflict, so it can't be async",
            )

        if self._draft is not None:
            self._join(work(self._draft.model_copy(deep=True)), label)
            return self._draft.model_copy(deep=True)
        with self._reporter():
            self._sessions.write_at_once()
            await self._retried(lambda: self._commit(work(self.state), label))
        return self.state

    async def once(self, key: str, work: Callable[[S], R], label: str = "once") -> R:
        """Like `update`, for a call that may be repeated: the result of `work`, plain JSON, is kept in the same write.
        The same key again gives that result and writes nothing. The last 64 keys of a session are known."""
        if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("an idempotency key is text of at least one character")
        self._not_joined("once()")
        with self._reporter():
            name = self.key_name(key)
        result: list[R] = []

        async def attempt() -> None:
            kept = members(members(self._record.data).get("once")).get(name)
            if kept is not None:
                result[:] = [cast("R", members(kept)["result"])]
                return
            draft = self.state
            result[:] = [work(draft)]
            await self._commit(draft, label, once={name: {"result": cast("JSON", result[0])}})

        with self._reporter():
            await self._retried(attempt)
        return result[0]

    def keys_belong_to(self, caller: Principal) -> None:
        """The session is many callers' at once: each has idempotency keys of its own."""
        self._shared_with = caller

    def key_name(self, key: str) -> str:
        """The name under which the answer to a call with this key is kept."""
        if self._shared_with is None:
            return digest(key)
        if self._shared_with == ANONYMOUS:
            raise UsageError(
                "an idempotency key needs an authenticated caller here: this session is everyone's, and another "
                "caller's answer under the same key would be given",
                remedy="call it without a key, or authenticate",
            )
        return digest(key, self._shared_with)

    @asynccontextmanager
    async def lease(self, label: str = "turn", ttl: float = 120.0) -> AsyncGenerator[S]:
        """A long turn: nobody else may begin one meanwhile (`Busy`), and what is written at its end is refused if the
        lease ran out. It is renewed while the block lasts; whoever dies in it leaves it after `ttl` seconds."""
        self._not_joined("a lease")
        async with self.holding(ttl) as fence:
            base, draft = self.base, self.state
            yield draft
            with self._reporter():
                await self._commit(draft, label, base=base, fence=fence)

    @asynccontextmanager
    async def holding(self, ttl: float) -> AsyncGenerator[int]:
        """The sole right to a long turn, renewed while the block lasts; yields the fence that a write must carry."""
        with self._reporter():
            store = await self._sessions.opened()
            claim = await self._claimed(store, ttl)
        renewing = asyncio.get_running_loop().create_task(self._renew(claim, ttl), name="renew lease")
        try:
            with self._reporter():
                await self._refresh()
            yield claim.token
        finally:
            renewing.cancel()
            await to_the_end(_given_back(store, asyncio.gather(renewing, return_exceptions=True), claim))

    async def _claimed(self, store: Store, ttl: float) -> Claim:
        """The claim for a long turn. Whoever is cancelled while the store makes it leaves none behind."""
        claiming = asyncio.ensure_future(store.claim(KIND, self.handle, owner=f"lease-{secrets.token_hex(8)}", ttl=ttl))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await to_the_end(_given_back(store, claiming))
            raise
        except Busy as error:  # its text names the holder, which is nobody's business
            raise Busy(
                "another long turn on this session is under way",
                id=self.handle,
                retry_after=error.retry_after or 0.0,
                remedy="wait for its end, then do it again",
            ) from error

    async def _renew(self, claim: Claim, ttl: float) -> None:
        store = await self._sessions.opened()
        while True:
            await asyncio.sleep(ttl / 3)
            try:
                claim = await store.renew(claim, ttl=ttl)
                await self._sessions.slide(self._record, now=True)  # a long turn is use
                if self.on_renewal is not None:
                    await self.on_renewal()
            except HoldfastError:
                return  # the commit will be refused, and says so

    async def end(self) -> bool:
        """For good: no later write, from anywhere, brings it back."""
        with self._reporter():
            self._draft = None
            return await self._sessions.end(self.handle)

    # What was

    async def at(self, rev: int) -> S:
        """The state as it was at an earlier revision."""
        with self._reporter():
            await self._refresh()
            return await self._at(rev)

    async def _at(self, rev: int) -> S:
        history = self._sessions.history
        if not 1 <= rev <= self.rev or self.rev - rev > history:
            raise NotFound(
                f"there is no way back to revision {rev}",
                id=self.handle,
                remedy=f"ask for one from {max(1, self.rev - history)} to {self.rev}",
            )
        stored = await records.at(await self._sessions.opened(), self._record, rev)
        return cast("S", self._sessions.kind.read(cast("JSON", stored), self.handle))

    async def undo(self, adjust: Callable[[S], None] | None = None) -> S:
        """Go back to before the last change; that is a new revision, so another undo takes it back. Notes in the log do
        not count as changes. `adjust` has the last word on the state."""
        self._not_joined("undo()")
        with self._reporter():
            await self._refresh()
            base, target = self.base, self.rev - 1
            async for entry in self.newest():
                if members(members(entry.data).get("was")):  # a note has nothing there
                    target = entry.rev - 1
                    break
            state = await self._at(target)
            if adjust is not None:
                adjust(state)
            await self._commit(state, UNDO, base=base, undo=target)
        return self.state

    async def fork(self, rev: int | None = None, title: str = "") -> "Session[S]":
        """Another session that begins with this one's state, now or at an earlier revision. History is not copied."""
        with self._reporter():
            self._not_pending("fork()")
            await self._refresh()
            number = rev if rev is not None else self.rev
            state = await self._at(number)
            parent: dict[str, JSON] = {"handle": self.handle, "rev": number}
            child = await self._sessions.begin(self.principal, state, title=title or self.title, parent=parent)
            await records.fork_companions(await self._sessions.opened(), self._record, number, child.handle)
        child.show_errors_as(self._also)
        return child

    async def entries(self, *, after: int = 0, limit: int = PAGE, newest_first: bool = False) -> list[LogEntry]:
        """The log as the store has it."""
        with self._reporter():
            self._not_pending("the log")
            store = await self._sessions.opened()
            return await store.log(KIND, self.handle, after=after, limit=limit, newest_first=newest_first)

    async def newest(self) -> AsyncGenerator[LogEntry]:
        """The log backwards, a page at a time."""
        with self._reporter():
            self._not_pending("the log")
            async for entry in records.newest(await self._sessions.opened(), self.handle):
                yield entry

    async def append(self, label: str, data: JSON) -> None:
        """An entry of the log with no change of the state."""

        async def attempt() -> None:
            await self._write(members(self._record.data), [{"label": label, "data": data, "was": {}}])

        with self._reporter():
            if self._draft is not None:  # goes with what is saved after the call, or not at all
                self._notes.append((label, data))
                return
            self._sessions.write_at_once()
            await self._retried(attempt)

    async def write(
        self,
        draft: S,
        label: str,
        *,
        notes: Sequence[tuple[str, JSON]] = (),
        data: JSON = None,
        fence: int | None = None,
        base: "Base[S] | None" = None,
    ) -> None:
        """Commit a state over the reading that it was made from, with what was noted on the way, in one write."""
        with self._reporter():
            await self._commit(draft, label, base=base, fence=fence, notes=notes, data=data)

    async def refresh(self) -> None:
        """Read it again, unless that was done for this very call."""
        with self._reporter():
            await self._current()

    # How

    async def _current(self) -> None:
        """What was read just now is good enough; whoever was faster is met at the commit."""
        if time.monotonic() - self._read_at > FRESH:
            await self._refresh()
        self._read_at = float("-inf")

    async def _refresh(self) -> None:
        self._record, self._state = await self._sessions.load(self.handle, self.principal)

    async def _retried(self, attempt: Callable[[], Any]) -> None:
        """Again on a fresh reading after each `Conflict`; those of one process take turns."""
        deadline = time.monotonic() + UPDATE_SECONDS
        async with self._sessions.turn(self.handle, UPDATE_SECONDS) as waited:
            if waited:
                await self._refresh()
            else:
                await self._current()
            while True:
                try:
                    return await attempt()
                except Conflict as error:
                    if time.monotonic() > deadline:  # looked at only here: a write under way is not given up
                        raise Busy(
                            f"others kept writing to the session for {UPDATE_SECONDS:g} s; nothing was written",
                            id=self.handle,
                            remedy="try again later",
                        ) from error
                    await asyncio.sleep(secrets.randbelow(1000) / 100_000)
                    await self._refresh()

    async def _commit(
        self,
        draft: S,
        label: str,
        *,
        base: "Base[S] | None" = None,
        fence: int | None = None,
        once: dict[str, JSON] | None = None,
        notes: Sequence[tuple[str, JSON]] = (),
        data: JSON = None,
        undo: int | None = None,
    ) -> None:
        """Write a draft over the reading that it was made from; whoever wrote since then is met as `Conflict`."""
        record, state = base or self.base
        checked, after = model.checked(draft, self._sessions.kind, label, self.handle)
        before, stored = state.to_data(), members(record.data)
        if (
            same(before, after)
            and stored.get("v") == draft.version
            and not (once or notes or data is not None or undo is not None)
        ):
            await self._sessions.slide(record)
            return
        older = stored.get("v") != draft.version
        was: dict[str, Any] = (
            {"v": stored.get("v"), "state": stored.get("state")} if older else differences(before, after)
        )
        entry: dict[str, JSON] = {"label": label, "was": cast("JSON", was)}
        if data is not None:
            entry["data"] = data
        if undo is not None:
            entry["undo"] = undo
        body: dict[str, Any] = {**stored, "v": draft.version, "state": after}
        if once:
            body["once"] = _kept(members(stored.get("once")), once, label, self.handle)
        more: list[JSON] = [{"label": name, "data": noted, "was": {}} for name, noted in notes]
        await self._write(body, [entry, *more], fence, record)
        self._state = checked

    async def _write(
        self, data: dict[str, Any], entries: list[JSON], fence: int | None = None, over: Record | None = None
    ) -> None:
        store = await self._sessions.opened()
        over = over or self._record
        record = over.with_data(cast("JSON", data))
        try:
            self._record = await store.commit(record, expect=over.rev, entries=entries, fence=fence)
        except Conflict as error:
            if error.actual is not None:
                error.what = (
                    f"the session is at revision {error.actual}, not {over.rev}: "
                    "another call was faster, and nothing of this one was written"
                )
                error.remedy = "do it again"
            raise

    @property
    def base(self) -> "Base[S]":
        """What was read or written last: a draft is made from it, and written over it."""
        return self._record, self._state

    def is_of(self, sessions: object) -> bool:
        return self._sessions is sessions

    @property
    def shows_as(self) -> type[Exception] | None:
        """The framework's class of errors that ours are raised as, too."""
        return self._also

    def just_read(self) -> None:
        """What was read for this very call need not be read again by its first change."""
        self._read_at = time.monotonic()

    def show_errors_as(self, also: type[Exception] | None) -> None:
        """A framework's class of errors whose text its caller gets to see."""
        self._also = also

    # Saved by middleware

    def open_draft(self) -> None:
        """From here on changes are gathered, and written by `save` over what was read now."""
        self._draft_base, self._draft = self.base, self._state.model_copy(deep=True)
        self._labels, self._notes = [], []

    def _join(self, draft: S, label: str) -> None:
        with self._reporter():
            self._draft, _ = model.checked(draft, self._sessions.kind, label, self.handle)
        self._labels.append(label)

    def _not_joined(self, what: str) -> None:
        with self._reporter():
            if self._draft is not None:
                raise UsageError(f"{what} and saving by middleware can't be mixed", remedy="use session.draft here")
            self._sessions.write_at_once()

    def _not_pending(self, what: str) -> None:
        """What is in the store is not what this call has made of it."""
        if self.is_changed:
            raise UsageError(
                f"{what} would not show what this call has changed so far: middleware has it written after it",
                remedy="read before the first change, or install without save=True",
            )

    def snapshot(self) -> Callable[[], None]:
        """A function that puts back what was gathered so far."""
        draft = self._draft.model_copy(deep=True) if self._draft is not None else None
        labels, notes = list(self._labels), list(self._notes)

        def restore() -> None:
            self._draft, self._labels, self._notes = draft, labels, notes

        return restore

    @property
    def is_changed(self) -> bool:
        """Is there anything gathered that would be written?"""
        return self._draft is not None and (bool(self._notes) or self._draft != self._draft_base[1])

    async def save(self, label: str, once: dict[str, JSON] | None = None) -> None:
        """Write what was gathered: all of it or, after somebody else's write, nothing and `Conflict`."""
        draft, self._draft = self._draft, None
        if draft is not None:
            with self._reporter():
                name = "; ".join(self._labels) or label
                await self._commit(draft, name, base=self._draft_base, once=once, notes=self._notes)

    def kept_result(self, name: str) -> dict[str, Any] | None:
        """What a call with this key answered."""
        kept = members(members(self._record.data).get("once")).get(name)
        return members(kept) if kept is not None else None

    @contextmanager
    def _reporter(self) -> Generator[None]:
        """Errors of ours in a class that the server's framework shows its caller."""
        try:
            yield
        except HoldfastError as error:
            raise shown(error, self._also) from error.__cause__


async def _given_back(store: Store, pending: "asyncio.Future[Any]", claim: Claim | None = None) -> None:
    """Release a claim once what is pending is done: the making of it, or its renewal."""
    with suppress(HoldfastError, TimeoutError):  # then it runs out by itself
        async with asyncio.timeout(CLOSE_SECONDS):
            made = await pending
            await store.release(claim or made)


def _kept(answered: dict[str, Any], once: dict[str, JSON], label: str, id: str) -> dict[str, Any]:
    """The answers that are kept for repeated calls: the newest ones, as many as there is room for."""
    if any(name in answered for name in once):
        raise Conflict(f"{label}: a call with this idempotency key was answered meanwhile", id=id)
    known = list({**answered, **once}.items())[-ONCE:]
    while len(known) > 1 and len(json.dumps(known)) > ONCE_BYTES:
        del known[0]
    size = len(json.dumps(known))
    if size > ONCE_BYTES:
        raise LimitReached(
            f"{label}: its answer of {size:,} bytes is too large to be kept for a repeated call",
            limit=ONCE_BYTES,
            actual=size,
            remedy="call it without an idempotency key, or answer less",
        )
    return dict(known)


def digest(key: str, *parts: object) -> str:
    """A key of any length as a short name."""
    text = json.dumps([key, *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
