"""One client's session in this process: its links, its streams, its calls under way. What lasts of it is a record.

It owns what the client was told it has. It refuses to be the only truth: another process may serve the same session
next, so that whatever matters is in the store before anybody relies on it.
"""

import asyncio
import copy
import hashlib
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from holdfast.core.eras import METHOD_NOT_FOUND, Era
from holdfast.core.lifecycle import GATEWAY_SESSION, GatewaySessionEvent, GatewaySessionState
from holdfast.core.models import FrontSessionId, Principal, Record
from holdfast.core.values import JSON, members
from holdfast.errors import Conflict, ErrorAnswer, HoldfastError, NotFound
from holdfast.gateway.backends.backend import LISTS, Backend
from holdfast.gateway.backends.catalogue import Catalogue, fetch
from holdfast.gateway.backends.link import BackendLink
from holdfast.gateway.backends.refetch import Refetch
from holdfast.gateway.backends.routing import Table
from holdfast.gateway.backends.subscriptions import Subscriptions
from holdfast.gateway.fronts.streams import Streams
from holdfast.gateway.sessions.memories import SessionMemory
from holdfast.links.link import Link
from holdfast.stores.contract import Store

if TYPE_CHECKING:
    from holdfast.gateway.sessions.registry import Sessions

log = logging.getLogger("holdfast.gateway")

KIND = "session"
TRIES = 20  # to write a record that other links of the session write to
CAPABILITY = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}


class ReplyChannel(Protocol):
    """The way back to whoever made a call, while it is under way."""

    can_ask: bool
    is_alone: bool
    """No other client is served: a program may wait for this one."""

    def say(self, message: Mapping[str, Any]) -> None:
        """A notification or a request, on the call's own stream, in order."""
        ...

    async def keep_up(self) -> None:
        """Wait until the client has taken most of what was said."""
        ...


def new_id() -> FrontSessionId:
    """256 bits, in characters that any header takes."""
    return FrontSessionId(secrets.token_urlsafe(32))


def record_id(id: str) -> str:
    """The name of a session's record. Not the id: whoever reads the store must not be able to use it."""
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Client:
    """What a client said of itself."""

    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    version: str = "2025-11-25"

    def to_json(self) -> JSON:
        return cast("JSON", {"info": self.info, "capabilities": self.capabilities, "version": self.version})

    @classmethod
    def from_json(cls, value: JSON) -> "Client":
        known = members(value)
        version = known.get("version")
        return cls(
            members(known.get("info")),
            members(known.get("capabilities")),
            version if isinstance(version, str) else "2025-11-25",
        )


class Session:
    """A live one."""

    __slots__ = (
        "_asked",
        "_asks",
        "_news",
        "_roots_due",
        "_writing",
        "begun",
        "calls",
        "changed",
        "changes",
        "client",
        "data",
        "era",
        "id",
        "key",
        "links",
        "loaded",
        "overrides",
        "principal",
        "record",
        "reply_channels",
        "sessions",
        "state",
        "streams",
        "table",
        "tasks",
        "touched",
        "used",
        "watches",
    )

    def __init__(
        self, sessions: "Sessions", id: FrontSessionId, principal: Principal, client: Client, era: Era
    ) -> None:
        self.sessions = sessions
        self.id = id
        self.key = record_id(id)
        self.principal = principal
        self.client = client
        self.era = era
        self.state = GatewaySessionState.STARTING
        self.record: Record | None = None
        self.data: dict[str, JSON] = {}
        self.loaded: set[str] = set()
        self.links: dict[str, BackendLink] = {}
        self.overrides: dict[str, Catalogue] = {}
        self.table: Table | None = None
        self.calls: dict[str | int, asyncio.Task[Any]] = {}
        self.reply_channels: list[ReplyChannel] = []
        self.streams: Streams | None = None
        self.changed: set[str] = set()
        self.watches: dict[str, Subscriptions] = {}
        """By backend: of 2026 servers, which tell only whoever listens."""
        self.changes = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.begun = self.used = self.touched = sessions.clock.monotonic()
        self._asked: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._asks = itertools.count(1)
        self._writing: asyncio.Lock | None = None
        self._news: dict[str, Refetch] = {}
        self._roots_due: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<Session {self.key[:8]} {self.state.name} backends={sorted(self.links)} calls={len(self.calls)}>"

    @property
    def store(self) -> Store:
        return self.sessions.store

    @property
    def owner(self) -> str:
        return self.sessions.owner

    @property
    def goes_on(self) -> bool:
        """Here, or elsewhere after a rest; it is not ending."""
        return self.state in (GatewaySessionState.OPEN, GatewaySessionState.DETACHED)

    @property
    def backends(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.data.setdefault("backends", {}))

    @property
    def log_level(self) -> str | None:
        level = self.data.get("log_level")
        return level if isinstance(level, str) else None

    @property
    def subscriptions(self) -> dict[str, Any]:
        """Resources that the client subscribed to, and the backends that have them."""
        return members(self.data.get("subscriptions"))

    @property
    def in_use(self) -> bool:
        """A call is under way, or the client listens: then it is not idle."""
        return bool(self.calls or self.reply_channels or (self.streams is not None and self.streams.own.is_read))

    @property
    def busy(self) -> bool:
        """May not be put to rest."""
        return self.in_use or any(backend_link.link.keeps_child for backend_link in self.links.values())

    def step(self, event: GatewaySessionEvent) -> None:
        self.state = GATEWAY_SESSION.next(self.state, event)

    def begin_call(self, id: str | int, reply_channel: ReplyChannel | None = None) -> None:
        """The current task answers a call of this session: it is not idle, and its end waits for the call."""
        task = asyncio.current_task()
        assert task is not None
        self.calls[id] = task
        if reply_channel is not None:
            self.reply_channels.append(reply_channel)

    def end_call(self, id: str | int, reply_channel: ReplyChannel | None = None) -> None:
        """The call is over, and the session idles from now on."""
        if reply_channel is not None:
            self.reply_channels.remove(reply_channel)
        self.calls.pop(id, None)
        self.used = self.sessions.clock.monotonic()

    def open_streams(self) -> Streams:
        """The streams of a 2025 client, made at first use."""
        if self.streams is None:
            self.streams = self.sessions.new_streams()
        return self.streams

    def push_changes(self) -> None:
        """The client listens now: send it the notices that had to wait."""
        for method in sorted(self.changed):
            self.push({"method": method})
        self.changed.clear()

    def start(self, work: Awaitable[Any], name: str) -> None:
        """A task of the session's own; it ends with the session."""
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("session %s: %s: %s", self.key[:8], task.get_name(), error)

    # The record

    def to_record(self) -> Record:
        self.data |= {"client": self.client.to_json(), "era": self.era.value}
        idle, max_age = self.sessions.spans
        return Record(KIND, self.key, self.principal, cast("JSON", self.data), idle=idle, max_age=max_age)

    def take(self, record: Record) -> None:
        """What the store says."""
        self.record = record
        self.data = cast("dict[str, JSON]", record.data) if isinstance(record.data, dict) else {}

    async def read(self) -> None:
        record = await self.store.get(KIND, self.key)
        if record is None:
            raise NotFound(f"session {self.key[:8]} is over", kind=KIND, id=self.key)
        self.take(record)

    async def write(self, change: Callable[[dict[str, JSON]], None]) -> None:
        """Change the record, and again on what another has written meanwhile. Before the record exists, its data."""
        self.changes += 1
        if self.record is None:
            change(self.data)
            return
        if self._writing is None:
            self._writing = asyncio.Lock()
        async with self._writing:
            for _ in range(TRIES):
                fresh = copy.deepcopy(self.data)
                change(fresh)
                before, self.data = self.data, fresh
                try:
                    self.record = await self.store.commit(self.to_record(), expect=self.record.rev)
                    return
                except Conflict:
                    self.data = before
                except BaseException:
                    self.data = before  # what is not in the store must not look as if it were
                    raise
                await self.read()
            raise Conflict(f"session {self.key[:8]} is written to by too many", expect=0, actual=self.record.rev)

    async def set_level(self, level: str) -> None:
        await self.write(lambda data: data.update(log_level=level))

    async def subscribed(self, uri: str, backend: str | None) -> None:
        """The client wants to hear of a resource; None: no more."""

        def change(data: dict[str, JSON]) -> None:
            known = dict(members(data.get("subscriptions")))
            known.pop(uri, None)
            data["subscriptions"] = known if backend is None else {**known, uri: backend}

        await self.write(change)

    async def watch(self, backend: str, link: Link, uri: str) -> None:
        """Hear of a resource at a 2026 server, over one listen for all that this session wants to hear of."""
        known = self.watches.get(backend)
        if known is None or known.link is not link:
            known = self.watches[backend] = Subscriptions(link)
        if uri not in known:
            wanted = [each for each, where in self.subscriptions.items() if where == backend and each not in known]
            await known.add([uri, *wanted])

    # Links

    def backend_link(self, backend: Backend, passed: Mapping[str, str] | None = None) -> BackendLink:
        """The session's link to a backend; it comes up with its first use. `passed`: headers of that request."""
        backend_link = self.links.get(backend.name)
        if backend_link is None:
            backend_link = None if backend.name in self.backends else backend.take_spare(self.client.capabilities)
            if backend_link is None:
                backend_link = backend.new(
                    session=self.key,
                    memory=SessionMemory(self, backend.name, backend.at),
                    principal=self.principal,
                    info=self.client.info or None,
                    capabilities=self.client.capabilities,
                    program=f"{self.key}/{backend.name}",
                    caller=self.principal,
                    passed=passed,
                )
            else:
                backend_link.given_to(self.key, self.principal, SessionMemory(self, backend.name, backend.at))
            name = backend.name
            backend_link.link.handle(
                backend_link.refuse
                if self.era is Era.Y2026
                else lambda method, params, _: self.ask(method, params, None),
                lambda method, params: self.heard(name, method, params),
            )
            backend_link.link.log_level = self.log_level
            self.links[name] = backend_link
            listens = self.streams is not None and self.streams.own.is_read
            if listens or self.era is Era.Y2026 or set(CAPABILITY.values()) & self.client.capabilities.keys():
                backend_link.link.listen()  # servers ask there, too, and wait until somebody answers or refuses
        return backend_link

    def listen(self) -> None:
        """The client listens, so we do, too: also at backends that only another process has used so far."""
        for name in list(self.backends):
            backend = self.sessions.backends.get(name)
            if backend is not None and name not in self.links and not (backend.is_child or backend.is_per_caller):
                self.start(self.backend_link(backend).start(), f"listen at {name}")
        for backend_link in self.links.values():
            backend_link.link.listen()

    def heard(self, backend: str, method: str, params: Mapping[str, Any] | None) -> None:
        """A backend's word that belongs to no call."""
        if method in LISTS:
            news = self._news.get(backend)
            if news is None:
                news = self._news[backend] = Refetch(backend, lambda _: self._refresh(backend))
            news.soon()
            return
        if method == "notifications/resources/updated":
            uri = (params or {}).get("uri")
            if uri not in self.subscriptions:
                return
        self.push({"method": method, "params": dict(params or {})})

    async def _refresh(self, name: str) -> None:
        """This session sees other lists than the rest: its own from now on."""
        backend_link = self.links.get(name)
        if backend_link is None:
            return
        found = await fetch(
            backend_link.link, timeout=30.0, known=self.overrides.get(name) or backend_link.backend.catalogue
        )
        if self.links.get(name) is backend_link:
            self.overrides[name] = found
            self.sessions.retable(self)

    def push(self, message: Mapping[str, Any]) -> None:
        """To the client, on its own stream; kept there until it listens."""
        if self.era is Era.Y2025:
            if self.streams is None:
                self.streams = self.sessions.new_streams()
            self.streams.own.add({"jsonrpc": "2.0", **message})

    # Questions to the client

    async def ask(
        self, method: str, params: Mapping[str, Any] | None, reply_channel: ReplyChannel | None
    ) -> dict[str, Any]:
        """A backend's question, put to the client: on the call's stream, else on any call's, else on its own."""
        capability = CAPABILITY.get(method)
        if capability is None or capability not in self.client.capabilities:
            raise ErrorAnswer(f"{method} is not for this client", message="Method not found", code=METHOD_NOT_FOUND)
        id = f"hf-{next(self._asks)}-{secrets.token_hex(4)}"
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
        if params is not None:
            message["params"] = dict(params)
        answered = self._asked[id] = asyncio.get_running_loop().create_future()
        if reply_channel is None or not reply_channel.can_ask:
            reply_channel = next((each for each in reversed(self.reply_channels) if each.can_ask), None)
        number = 0
        try:
            if reply_channel is not None:
                reply_channel.say(message)
            elif self.streams is not None and self.streams.own.is_read:
                self.streams.own.add(message)
                number = self.streams.own.last
            else:
                raise ErrorAnswer(
                    f"{method}: the client does not listen", message="The client can't be asked now", code=-32603
                )
            async with asyncio.timeout(self.sessions.settings.ask):
                answer = await answered
        except TimeoutError:
            raise ErrorAnswer(
                f"{method}: no answer", message="The client did not answer in time", code=-32603
            ) from None
        except asyncio.CancelledError:
            self.push({"method": "notifications/cancelled", "params": {"requestId": id}})
            raise
        finally:
            self._asked.pop(id, None)
            if number and self.streams is not None:
                self.streams.own.forget(number)  # a question that is over must not be asked again
        error = answer.get("error")
        if isinstance(error, dict):
            known = cast("dict[str, Any]", error)
            code = known.get("code")
            raise ErrorAnswer(
                f"{method} was refused by the client",
                message=str(known.get("message", "")),
                code=code if isinstance(code, int) else -32603,
                data=known.get("data"),
            )
        return members(answer.get("result"))

    def answered(self, message: dict[str, Any]) -> bool:
        """A client's answer to a question. False if nobody waits for it, any more."""
        id = message.get("id")
        waiting = self._asked.get(id) if isinstance(id, str) else None
        if waiting is None or waiting.done():
            return False
        waiting.set_result(message)
        return True

    def was_cut(self) -> bool:
        """Was the current call cancelled because the session ends? Then it goes on, to answer what is known of it."""
        task = asyncio.current_task()
        if (
            self.state in (GatewaySessionState.OPEN, GatewaySessionState.STARTING)
            or task is None
            or task.cancelling() != 1
        ):
            return False
        task.uncancel()
        return True

    def roots_changed(self) -> None:
        """The client says so; each server is told, and once more if it comes while it is being told."""
        for name, backend_link in self.links.items():
            if backend_link.link.handshake is not None:
                under_way = name in self._roots_due
                self._roots_due[name] = True
                if not under_way:
                    self.start(self._tell_roots(name), "roots")

    async def _tell_roots(self, name: str) -> None:
        try:
            while self._roots_due[name] and (backend_link := self.links.get(name)) is not None:
                self._roots_due[name] = False
                try:
                    await backend_link.link.notify("notifications/roots/list_changed")
                except HoldfastError as error:
                    log.warning("session %s: roots: %s", self.key[:8], error)
        finally:
            del self._roots_due[name]

    async def cancel_calls(self) -> None:
        for news in self._news.values():
            news.close()
        tasks = [task for task in (*self.calls.values(), *self.tasks) if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)

    async def close_links(self, reason: str, *, end: bool) -> None:
        self.watches.clear()  # they end with their links
        if self.streams is not None:
            self.streams.forget()
        links, self.links = self.links, {}
        closed = await asyncio.gather(
            *(backend_link.close(reason, end=end) for backend_link in links.values()), return_exceptions=True
        )
        for failed in closed:
            if isinstance(failed, HoldfastError):
                log.warning("session %s: a link was not closed: %s", self.key[:8], failed)
            elif isinstance(failed, BaseException):
                log.error("session %s: a link was not closed", self.key[:8], exc_info=failed)
