"""The line for turns across processes: who waits, since when, and who is next after a release.

Each process says with notices since when its first waiter waits, so that after a release only the one that waits
longest asks the store. Notices are hints: whoever heard nothing for a while asks all the same, so a lost notice or a
process that died costs a delay and nothing else.
"""

import asyncio
import logging
import secrets
import time
import weakref
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, cast

from holdfast.core.models import Notice, NoticeOrGap
from holdfast.core.records import Key
from holdfast.core.values import JSON, members
from holdfast.errors import HoldfastError
from holdfast.stores.contract import TURNS, Store

log = logging.getLogger(__name__)

WAITING = "holdfast.turns.waiting"
"""The topic on which a process says since when its first waiter waits for a turn, and whether it gave one up."""
PRECEDENCE_SECONDS = 0.03  # that the one before has to ask: some round trips
SAID_SECONDS = 0.5  # after which a waiter says again that it waits
FORGOTTEN_SECONDS = 2.0  # a process that says nothing for so long waits no longer, or is dead
LINGER_SECONDS = 10.0  # that it is listened to after the last wait: the next one is likely
RETRY_SECONDS = 30.0  # after a store could not be listened to
_MOST_NAMES = 10_000

_lines: weakref.WeakKeyDictionary[Store, "TurnLine"] = weakref.WeakKeyDictionary()


def has_notices(store: Store) -> bool:
    """Whether notices come sooner than an answer to another question: a notice of SQLite is itself a write, which
    the others poll for."""
    return not store.url.startswith("sqlite:")


def is_shared(store: Store) -> bool:
    """Whether other processes use it."""
    return store.url != "memory:"


def line_of(store: Store) -> "TurnLine | None":
    """The line at this store, if this process has one."""
    return _lines.get(store)


def begin_line(store: Store) -> "TurnLine | None":
    """The line at this store, listened to from now on; None where waiting takes no notices."""
    if not has_notices(store):
        return None
    line = _lines.get(store)
    if line is None:
        line = _lines[store] = TurnLine()
    line.begin(store)
    return line


class TurnLine:
    """What this process knows of those who wait for turns at one store."""

    def __init__(self) -> None:
        self._me = secrets.token_hex(8)
        self._store: Callable[[], Store | None] = lambda: None
        self._listening: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[bool] | None = None
        self._used = 0.0
        self._failed: float | None = None
        self._others: dict[Key, dict[str, tuple[float, float]]] = {}
        """By process since when its first one waits, and when it said so."""
        self._said: dict[Key, tuple[float, float]] = {}
        """What this process has said last, and when."""
        self._news: dict[Key, int] = {}
        self._waiters: dict[Key, set[asyncio.Future[None]]] = {}
        self._saying: set[asyncio.Task[None]] = set()

    # Listening

    @property
    def is_listening(self) -> bool:
        """Whether a notice that is sent now arrives here."""
        return self._ready is not None and self._ready.done() and not self._ready.cancelled() and self._ready.result()

    def begin(self, store: Store) -> None:
        """Listen, unless that is done or has just failed."""
        self._used = time.monotonic()
        if self._listening is not None and not self._listening.done():
            return
        if self._failed is not None and self._used - self._failed < RETRY_SECONDS:
            return
        loop = asyncio.get_running_loop()
        self._store, self._ready = weakref.ref(store), loop.create_future()
        self._listening = loop.create_task(self._listen(store, self._ready), name="listen for turns")

    async def listens(self, seconds: float) -> bool:
        """Whether it is listened to, after waiting for that at most so long."""
        if self._ready is None:
            return False
        await asyncio.wait([self._ready], timeout=seconds)
        return self.is_listening

    async def _listen(self, store: Store, ready: asyncio.Future[bool]) -> None:
        try:
            async with store.listen(TURNS, WAITING) as notices:
                ready.set_result(True)
                while time.monotonic() - self._used < LINGER_SECONDS or self._waiters:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LINGER_SECONDS):
                            self._hear(await anext(notices))
        except HoldfastError as error:  # the store was closed, or takes no listeners: waiters ask now and then
            if not ready.done():
                self._failed = time.monotonic()
                log.info("turns at %s are waited for without notices: %s", store.url, error.what)
        finally:
            if self._ready is ready:
                self._ready = None
            if not ready.done():
                ready.set_result(False)
            self._others.clear()
            self._said.clear()
            self._wake(list(self._waiters))

    def _hear(self, notice: NoticeOrGap) -> None:
        if not isinstance(notice, Notice):
            self._wake(list(self._waiters))
            return
        data = members(notice.data)
        kind, id, by = data.get("kind"), data.get("id"), data.get("by")
        if not isinstance(kind, str) or not isinstance(id, str) or by == self._me:
            return
        key, age, now = (kind, id), data.get("age"), time.monotonic()
        if notice.topic == WAITING and isinstance(by, str):
            others = self._others.setdefault(key, {})
            if isinstance(age, int | float):
                others[by] = now - age, now
            else:
                others.pop(by, None)
            if not others:
                del self._others[key]
        if notice.topic == TURNS or data.get("free") is True:
            self._wake([key])
        if len(self._news) + len(self._others) + len(self._said) > _MOST_NAMES:
            self._news.clear()
            self._others.clear()
            self._said.clear()

    def _wake(self, keys: Collection[Key]) -> None:
        for key in keys:
            self._news[key] = self._news.get(key, 0) + 1
            for waiter in self._waiters.get(key, ()):
                if not waiter.done():
                    waiter.set_result(None)

    # Waiting

    def is_next(self, keys: Collection[Key], since: float) -> bool:
        """Whether no other process has waited for one of these for longer."""
        return not any(first < since for key in keys for first in self._firsts(key))

    def _firsts(self, key: Key) -> list[float]:
        others = self._others.get(key)
        if not others:
            return []
        old = time.monotonic() - FORGOTTEN_SECONDS
        return [since for since, said in others.values() if said > old]

    def news(self, keys: Collection[Key]) -> int:
        """A number that grows with each release of one of these."""
        return sum(self._news.get(key, 0) for key in keys)

    async def let_pass(self, keys: Collection[Key], since: float, seconds: float) -> None:
        """Wait for those of other processes who wait longer, as long as they can be expected to ask."""
        if self.is_next(keys, since):
            return
        self.say(keys, since)
        deadline = time.monotonic() + min(seconds, PRECEDENCE_SECONDS)
        while not self.is_next(keys, since) and (left := deadline - time.monotonic()) > 0:
            await self.wait(keys, self.news(keys), left)

    async def wait(self, keys: Collection[Key], news: int, seconds: float) -> bool:
        """Wait until one of these is released, at most so long; at once if there is more news than `news`."""
        self._used = time.monotonic()
        if self.news(keys) != news:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for key in keys:
            self._waiters.setdefault(key, set()).add(waiter)
        try:
            done, _ = await asyncio.wait([waiter], timeout=seconds)
            return bool(done)
        finally:
            for key in keys:
                self._waiters[key].discard(waiter)
                if not self._waiters[key]:
                    del self._waiters[key]

    # Saying

    def say(self, keys: Collection[Key], since: float) -> None:
        """Let other processes know that one here waits, unless they do."""
        now = time.monotonic()
        for key in keys:
            said = self._said.get(key)
            if said is None or said[0] != since or now - said[1] > SAID_SECONDS:
                self._said[key] = since, now
                self._publish(key, now - since, free=False)

    def released(self, key: Key, next_since: float | None) -> None:
        """A turn was given up: the next process may ask. `next_since` is when the next one here began to wait."""
        said = self._said.pop(key, None)
        if not self.is_listening or (said is None and key not in self._others):
            return
        now = time.monotonic()
        if next_since is not None:
            self._said[key] = next_since, now
        self._publish(key, None if next_since is None else now - next_since, free=True)

    def _publish(self, key: Key, age: float | None, *, free: bool) -> None:
        store = self._store()
        if store is None or not self.is_listening or not is_shared(store):
            return
        data: dict[str, JSON] = {"kind": key[0], "id": key[1], "by": self._me, "age": age, "free": free}
        task = asyncio.get_running_loop().create_task(
            cast("Coroutine[Any, Any, None]", _hinted(store, data)), name="say who waits"
        )
        self._saying.add(task)
        task.add_done_callback(self._saying.discard)


async def _hinted(store: Store, data: JSON) -> None:
    with suppress(HoldfastError):  # a hint
        await store.publish(WAITING, data)
