"""One client's session in this process: its links, its notices, its calls under way. What lasts of it is its record.

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
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.fronts.http.streams import Streams
from holdfast.gateway.lists.listeners import Listeners
from holdfast.gateway.names.offers import Offers
from holdfast.gateway.names.seen_uris import SeenUris
from holdfast.gateway.sessions.ending.lifetimes import Lifetimes, Usage
from holdfast.gateway.sessions.links import SessionLinks
from holdfast.gateway.sessions.lists import SessionLists
from holdfast.gateway.sessions.notices import ClientNotices
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
        "_host",
        "_started_in",
        "_tasks",
        "calls",
        "client",
        "era",
        "id",
        "key",
        "links",
        "lists",
        "notices",
        "outbox",
        "parked",
        "principal",
        "questions",
        "record",
        "seen",
        "state",
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
        self.notices = ClientNotices(era, principal, self.record, host.listeners, host.new_streams)
        self.links = SessionLinks(self, host.backends)
        self.lists = SessionLists(self.links, self.notices, host.offers)
        self.tasks = SessionTasks(host.task_ids, scope_of(principal, self.key if era is Era.Y2025 else None), self.key)
        self.questions = Questions(client.capabilities, self.notices, self.tasks, lambda: host.settings.ask)
        self.outbox = Outbox(self.start)
        self.seen = SeenUris()
        self.calls: dict[str | int, asyncio.Task[Any]] = {}
        self.parked: set[asyncio.Task[Any]] = set()
        """Those of the calls that wait for their client; the session's end does not."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._started_in: Any = None

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
        return bool(self.calls) or self.questions.has_channels or self.notices.is_read

    @property
    def may_rest(self) -> bool:
        return not self.in_use and not any(backend_link.link.keeps_child for backend_link in self.links.values())

    def started_in(self, span: Any) -> None:
        """Keep the context of the span in which it started, for its first call."""
        self._started_in = span

    def take_start(self) -> Any:
        """The context of the span in which it started, given once."""
        start, self._started_in = self._started_in, None
        return start

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
            log.warning("session %s: %s: %s", self.key[:8], task.get_name(), error, extra={"session": self.key})

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
        self.notices.close()
        await self.links.close(reason, end=end)
