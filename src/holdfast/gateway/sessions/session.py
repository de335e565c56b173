"""One client's session in this process: its links, its streams, its calls under way. What lasts of it is its record.

It owns what the client relies on in this process. Another process may serve the same session next, so whatever matters
is in the store first.
"""

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from holdfast.core.clock import Clock
from holdfast.core.eras import Era
from holdfast.core.lifecycle import GATEWAY_SESSION, GatewaySessionEvent, GatewaySessionState
from holdfast.core.models import FrontSessionId, Principal
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.lists.fetching import NOTIFICATIONS
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.fronts.http.streams import Stream, Streams
from holdfast.gateway.lists.listeners import Listeners, RecentKinds
from holdfast.gateway.names.offers import Offers
from holdfast.gateway.names.seen_uris import SeenUris
from holdfast.gateway.sessions.ending.lifetimes import Lifetimes, Usage
from holdfast.gateway.sessions.links import SessionLinks
from holdfast.gateway.sessions.lists import SessionLists
from holdfast.gateway.sessions.outbox import Outbox
from holdfast.gateway.sessions.questions import Questions, ReplyChannel
from holdfast.gateway.sessions.record import Client, SessionRecord
from holdfast.gateway.tasks.ids import TaskIds, scope_of
from holdfast.gateway.tasks.session_tasks import SessionTasks
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

CANCEL_SECONDS = 5.0  # for calls and tasks of a session that ends to take their cancellation


class SessionHost(Protocol):
    """What a session uses of the gateway that it lives in."""

    @property
    def store(self) -> Store: ...
    @property
    def owner(self) -> str: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def lifetimes(self) -> Lifetimes: ...
    @property
    def backends(self) -> Mapping[str, Backend]: ...
    @property
    def offers(self) -> Offers: ...
    @property
    def task_ids(self) -> TaskIds: ...
    @property
    def listeners(self) -> Listeners: ...
    def new_streams(self) -> Streams: ...


class GatewaySession:
    """A session that this process holds live."""

    __slots__ = (
        "_changed",
        "_host",
        "_recent",
        "_tasks",
        "calls",
        "client",
        "era",
        "id",
        "key",
        "links",
        "lists",
        "outbox",
        "parked",
        "principal",
        "questions",
        "record",
        "seen",
        "state",
        "streams",
        "tasks",
        "usage",
    )

    def __init__(self, host: SessionHost, id: FrontSessionId, principal: Principal, client: Client, era: Era) -> None:
        self._host = host
        self.id = id
        self.principal = principal
        self.client = client
        self.era = era
        self.state = GATEWAY_SESSION.initial
        self.record = SessionRecord(host.store, host.owner, host.lifetimes, id, principal, client, era)
        self.key = self.record.key
        self.usage = Usage(host.clock.monotonic())
        self.links = SessionLinks(self, host.backends)
        self.lists = SessionLists(self, host.offers)
        self.tasks = SessionTasks(host.task_ids, scope_of(principal, self.key if era is Era.Y2025 else None), self.key)
        self.questions = Questions(self)
        self.outbox = Outbox(self.start)
        self.seen = SeenUris()
        self.calls: dict[str | int, asyncio.Task[Any]] = {}
        self.parked: set[asyncio.Task[Any]] = set()
        """Those of the calls that wait for their client; the session's end does not."""
        self.streams: Streams | None = None
        self._changed: set[str] = set()
        """Kinds of lists that changed while the client did not listen."""
        self._recent = RecentKinds()
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return (
            f"<GatewaySession {self.key[:8]} {self.state.name} backends={sorted(self.links)} calls={len(self.calls)}>"
        )

    # State

    def step(self, event: GatewaySessionEvent) -> None:
        self.state = GATEWAY_SESSION.next(self.state, event)

    @property
    def goes_on(self) -> bool:
        """Here, or elsewhere after a rest; it is not ending."""
        return self.state in (GatewaySessionState.OPEN, GatewaySessionState.DETACHED)

    @property
    def in_use(self) -> bool:
        """A call is under way, or the client listens: then it is not idle."""
        return bool(self.calls) or self.questions.has_channels or self.is_read

    @property
    def may_rest(self) -> bool:
        return not self.in_use and not any(backend_link.link.keeps_child for backend_link in self.links.values())

    # Calls

    def begin_call(self, id: str | int, reply_channel: ReplyChannel | None = None) -> None:
        """The current task answers a call of this session: it is not idle, and its end waits for the call."""
        task = asyncio.current_task()
        assert task is not None
        self.calls[id] = task
        if reply_channel is not None:
            self.questions.open_channel(reply_channel)

    def end_call(self, id: str | int, reply_channel: ReplyChannel | None = None) -> None:
        """The call is over, and the session idles from now on."""
        if reply_channel is not None:
            self.questions.close_channel(reply_channel)
        self.calls.pop(id, None)
        self.usage.mark_used(self._host.clock.monotonic())

    @contextmanager
    def calling(self) -> Generator[None]:
        """A call without an id that its client could cancel it by."""
        id = f"call-{secrets.token_hex(8)}"
        self.begin_call(id)
        try:
            yield
        finally:
            self.end_call(id)

    def was_cut(self) -> bool:
        """Was the current call cancelled because the session ends? Then it goes on, to answer what is known of it."""
        task = asyncio.current_task()
        starting_or_open = self.state in (GatewaySessionState.OPEN, GatewaySessionState.STARTING)
        if starting_or_open or task is None or task.cancelling() != 1:
            return False
        task.uncancel()
        return True

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Start a task of the session's own; it ends with the session."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("session %s: %s: %s", self.key[:8], task.get_name(), error)

    # The client's own stream

    @property
    def is_read(self) -> bool:
        """Does the client read its own stream?"""
        return self.read_stream is not None

    @property
    def read_stream(self) -> Stream | None:
        """The client's own stream, if the client reads it."""
        return self.streams.own if self.streams is not None and self.streams.own.is_read else None

    def open_streams(self) -> Streams:
        """The streams of a 2025 client, made at first use."""
        if self.streams is None:
            self.streams = self._host.new_streams()
        return self.streams

    def push(self, message: Mapping[str, Any]) -> None:
        """Send something to the client on its own stream; it is kept there until the client listens."""
        if self.era is Era.Y2025:
            self.open_streams().own.add({"jsonrpc": "2.0", **message})

    def announce(self, kinds: tuple[str, ...]) -> None:
        """Lists of these kinds have changed; a client that does not listen gets the notice when it does. A 2026 client
        listens apart from its session."""
        if self.era is Era.Y2026:
            return
        self._recent.note(kinds)
        if self.is_read:
            for kind in kinds:
                self.push({"method": NOTIFICATIONS[kind]})
        else:
            self._changed.update(kinds)

    def announce_unseen(self, kinds: tuple[str, ...]) -> None:
        """A server announced changes of its lists that do not show. It may have done so on several links."""
        self.announce(self._recent.without(kinds))

    def own_lists_changed(self, kinds: tuple[str, ...], *, seen: bool = True) -> None:
        """Lists have changed for this session; `seen`: so that a difference shows."""
        if self.era is Era.Y2026:
            listeners = self._host.listeners
            changed = listeners.lists_changed if seen else listeners.lists_announced
            changed(kinds, self.principal, self.key)
        else:
            (self.announce if seen else self.announce_unseen)(kinds)

    def own_resource_updated(self, uri: str, params: Mapping[str, Any], *, unasked: bool = False) -> None:
        """A server announced a change of a resource to this session. `unasked`: to be passed on in any case."""
        if self.era is Era.Y2026:
            self._host.listeners.resource_updated(uri, params, self.principal, self.key)
        elif unasked or uri in self.record.subscriptions:
            self.push({"method": "notifications/resources/updated", "params": dict(params)})

    def push_changes(self) -> None:
        """The client listens now: send it the notices that had to wait."""
        for method in sorted(NOTIFICATIONS[kind] for kind in self._changed):
            self.push({"method": method})
        self._changed.clear()

    # Questions

    @property
    def can_be_asked(self) -> Mapping[str, Any]:
        return self.client.capabilities

    @property
    def ask_seconds(self) -> float:
        return self._host.settings.ask

    @property
    def idle_seconds(self) -> float:
        return self._host.settings.idle

    # The end

    def unopened(self) -> dict[str, Any]:
        """What the record keeps for backends that this process has not used yet, or that went with another process."""
        return {
            name: entry
            for name, entry in self.record.backends.items()
            if name not in self.links or self.links[name].link.handshake is None
        }

    async def drain(self, seconds: float) -> None:
        """Wait for calls under way, but for the one that ends the session."""
        calls = [task for task in self.calls.values() if task not in (asyncio.current_task(), *self.parked)]
        if calls:
            await asyncio.wait(calls, timeout=seconds)

    async def close(self, reason: str, *, end: bool) -> None:
        """Close everything in this process. `end=False`: the record stays for another process, or for later."""
        self.lists.close()
        tasks = [task for task in (*self.calls.values(), *self._tasks) if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        if self.streams is not None:
            self.streams.end()
            self.streams.forget()
        await self.links.close(reason, end=end)
