"""A session's links to its backends: made at first use, shared by the session's calls, and closed with it.

It owns the links, what the client subscribed to over them, and the notices that go to their servers.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Protocol

from holdfast.core.eras import Era, without_subscription
from holdfast.core.models import Principal
from holdfast.core.questions import may_be_asked
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.links.link import BackendLink, close_all
from holdfast.gateway.backends.links.memories import SessionMemory
from holdfast.gateway.backends.links.subscriptions import Subscriptions
from holdfast.gateway.backends.lists.looks import LISTS
from holdfast.gateway.sessions.followed import FollowedResources, shared_subscriptions
from holdfast.gateway.sessions.lists import SessionLists
from holdfast.gateway.sessions.notices import ClientNotices
from holdfast.gateway.sessions.questions import Asker, Questions
from holdfast.gateway.sessions.record import Client, SessionRecord
from holdfast.gateway.tasks.session_tasks import SessionTasks

log = logging.getLogger("holdfast.gateway")

SUBSCRIBE_SECONDS = 30.0  # for a server to take a subscription, or its end


class LinkedSession(Protocol):
    """The session that the links belong to."""

    @property
    def record(self) -> SessionRecord: ...
    @property
    def principal(self) -> Principal: ...
    @property
    def client(self) -> Client: ...
    @property
    def era(self) -> Era: ...
    @property
    def lists(self) -> SessionLists: ...
    @property
    def questions(self) -> Questions: ...
    @property
    def goes_on(self) -> bool: ...
    @property
    def tasks(self) -> SessionTasks: ...
    @property
    def notices(self) -> ClientNotices: ...
    @property
    def idle_seconds(self) -> float: ...
    def start(self, work: Coroutine[Any, Any, Any], name: str) -> object: ...


class SessionLinks(Mapping[str, BackendLink]):
    """The links of one session, by backend."""

    __slots__ = ("_backends", "_links", "_roots_due", "_session", "_subscriptions", "followed")

    def __init__(self, session: LinkedSession, backends: Mapping[str, Backend]) -> None:
        self._session = session
        self._backends = backends
        self._links: dict[str, BackendLink] = {}
        self._subscriptions: dict[str, Subscriptions] = {}
        """At 2026 servers, which send updates only to a listen."""
        self._roots_due: dict[str, bool] = {}
        self.followed = FollowedResources()

    def __getitem__(self, backend: str) -> BackendLink:
        return self._links[backend]

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    async def to(self, backend: Backend, passed: Mapping[str, str] | None = None) -> BackendLink:
        """The session's link to a backend; it comes up with its first use. `passed`: headers of that request."""
        if backend.name not in self._links:
            await backend.spares.wait_if_scarce()
        return self._to(backend, passed)

    def _to(self, backend: Backend, passed: Mapping[str, str] | None = None) -> BackendLink:
        known = self._links.get(backend.name)
        if known is not None:
            known.pass_next(passed)
            return known
        session, name = self._session, backend.name
        record, capabilities = session.record, session.client.capabilities
        memory = SessionMemory(record, name, backend.at, lambda: session.goes_on)
        spare = None if name in record.backends else backend.spares.take(session.client.ours)
        if spare is None:
            backend_link = backend.new(
                session=record.key,
                memory=memory,
                principal=session.principal,
                info=session.client.info or None,
                capabilities=capabilities,
                program=f"{record.key}/{name}",
                caller=session.principal,
                passed=passed,
            )
        else:
            backend_link = spare
            backend_link.give_to(record.key, session.principal, memory)
        if session.era is Era.Y2025 and backend.policy.stateful:
            # A server without sessions has other texts and other messages in 2026 than this client knows.
            backend_link.link.introduction.prefer(Era.Y2025)
        asker = Asker(name, backend_link.link.notify)
        backend_link.link.inbound.handle(
            backend_link.on_question
            if session.era is Era.Y2026
            else lambda method, params, _: session.questions.ask(method, params, None, asker),
            lambda method, params: self.on_notification(name, method, params, backend_link),
        )
        backend_link.link.log_level = record.log_level
        self._links[name] = backend_link
        listens = session.notices.is_read or session.era is Era.Y2026
        if listens or may_be_asked(capabilities) or _is_extended(capabilities):
            backend_link.link.stream.want()  # servers ask there, too, and wait until they get an answer or a refusal
        return backend_link

    def on_notification(
        self, backend: str, method: str, params: Mapping[str, Any] | None, backend_link: BackendLink | None = None
    ) -> None:
        """A backend's notification that belongs to no call; `backend_link`: the link that it came over."""
        if backend_link is not None and backend_link.take_log(method, params):
            return
        if method in LISTS:
            self._session.lists.fetch_soon(backend, LISTS[method])
            return
        if method == "notifications/resources/updated":
            uri = (params or {}).get("uri")
            if params is not None and isinstance(uri, str):
                # A 2025 server decides by itself what this session is to know; over a listen, one may say too much.
                decided = backend_link is not None and backend_link.link.era is Era.Y2025 and uri not in self.followed
                self._session.notices.resource_updated(uri, without_subscription(params), unasked=decided)
            return
        passed = self._session.tasks.notice(backend, method, without_subscription(params or {}))
        if passed is not None:
            self._session.notices.push({"method": method, "params": passed})

    def listen(self) -> None:
        """The client listens, so listen at the servers: also at backends that only another process has used so far."""
        for name in list(self._session.record.backends):
            backend = self._backends.get(name)
            if backend is not None and name not in self._links and not (backend.is_child or backend.is_per_caller):
                self._session.start(self._to(backend).start(), f"listen at {name}")
        for backend_link in self._links.values():
            backend_link.link.stream.want()
        for uri, name in self._session.record.subscriptions.items():
            shared = self._shared(name) if isinstance(name, str) and uri not in self.followed else None
            if shared is not None:  # another process followed it, or this one before the session rested
                self._session.start(self.followed.add(uri, shared), f"follow at {name}")

    def _shared(self, backend: str) -> Subscriptions | None:
        known = self._backends.get(backend)
        session = self._session
        return None if known is None else shared_subscriptions(known, session.principal, session.idle_seconds)

    # What the client asks for at all servers, or at one

    async def set_log_level(self, level: str) -> None:
        """Record the level, and pass it on to the servers that are there."""
        await self._session.record.set_log_level(level)
        setting = (backend_link.set_log_level(level) for backend_link in self._links.values())
        for failed in await asyncio.gather(*setting, return_exceptions=True):
            if isinstance(failed, HoldfastError):  # the server's next session gets the level with its handshake
                log.info("a log level was not set: %s", failed.what)

    async def follow(self, uri: str, backend: Backend) -> bool | None:
        """Follow a resource over a link that is shared. False: the server does not agree; None: it has to be followed
        over the session's own link."""
        shared = self._shared(backend.name)
        if shared is None:
            return None
        if not await self.followed.add(uri, shared):
            return False
        await self._session.record.set_subscription(uri, backend.name)
        return True

    async def subscribe(self, params: Mapping[str, Any], backend_link: BackendLink) -> None:
        """Follow a resource at a server that is up; `params` are those of the client's request."""
        uri = str(params["uri"])
        link, name = backend_link.link, backend_link.backend.name
        await self._session.record.set_subscription(uri, name)
        if link.era is Era.Y2025:
            await link.request("resources/subscribe", params, timeout=SUBSCRIBE_SECONDS)
            link.stream.want()
            return
        known = self.subscriptions(backend_link)
        if uri not in known:  # one listen is for all resources of this session
            subscribed = self._session.record.subscriptions
            wanted = [each for each, where in subscribed.items() if where == name and each not in known]
            await known.add([uri, *wanted])

    def subscriptions(self, backend_link: BackendLink) -> Subscriptions:
        """What is followed over one of these links."""
        name, link = backend_link.backend.name, backend_link.link
        known = self._subscriptions.get(name)
        if known is None or known.link is not link:
            known = self._subscriptions[name] = Subscriptions(link)
        return known

    async def unsubscribe(self, uri: str) -> None:
        name = self._session.record.subscriptions.get(uri)
        await self._session.record.set_subscription(uri, None)
        if self.followed.remove(uri) or not isinstance(name, str):
            return
        known = self._subscriptions.get(name)
        if known is not None and uri in known:
            known.remove([uri])
        backend_link = self._links.get(name)
        if backend_link is not None and backend_link.link.era is Era.Y2025:
            await backend_link.link.request("resources/unsubscribe", {"uri": uri}, timeout=SUBSCRIBE_SECONDS)

    def notify_roots(self) -> None:
        """The client's roots have changed: notify each server, and again if they change meanwhile."""
        for name, backend_link in self._links.items():
            if backend_link.link.handshake is not None:
                under_way = name in self._roots_due
                self._roots_due[name] = True
                if not under_way:
                    self._session.start(self._notify_roots(name), "roots")

    async def _notify_roots(self, name: str) -> None:
        try:
            while self._roots_due[name] and (backend_link := self._links.get(name)) is not None:
                self._roots_due[name] = False
                try:
                    await backend_link.link.notify("notifications/roots/list_changed")
                except HoldfastError as error:
                    log.warning(
                        "session %s: roots: %s",
                        self._session.record.key[:8],
                        error,
                        extra={"session": self._session.record.key},
                    )
        finally:
            del self._roots_due[name]

    # The end

    def drop(self, backend: str) -> BackendLink | None:
        """Take a link out, for the caller to close: its server is no longer configured."""
        self._session.lists.drop(backend)
        return self._links.pop(backend, None)

    async def close(self, reason: str, *, end: bool) -> None:
        self.followed.close()
        self._subscriptions.clear()  # they end with their links
        links, self._links = self._links, {}
        closing = [backend_link.close(reason, end=end) for backend_link in links.values()]
        await close_all(f"session {self._session.record.key[:8]}", closing)


def _is_extended(capabilities: Mapping[str, Any]) -> bool:
    """Does a client declare what servers may send it requests and notifications about?"""
    return any(capabilities.get(name) for name in ("tasks", "extensions", "experimental"))
