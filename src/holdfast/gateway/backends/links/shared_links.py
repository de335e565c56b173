"""Links of one backend that belong to no session: one for all clients, one for 2026 clients, one for each principal.

It owns these links and closes idle ones. A principal's session at a server may be in use by another process, so it is
left to the reaper of records.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

from holdfast.core.eras import Era
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.gateway.backends.links.link import BackendLink, LinkOwner, close_all
from holdfast.gateway.backends.links.memories import SessionMemory, SharedMemory, principal_link, principal_memory
from holdfast.gateway.backends.links.stateless import Stateless
from holdfast.gateway.backends.links.subscriptions import Subscriptions
from holdfast.links.calls.handlers import OnNotification
from holdfast.links.options import EraChoice
from holdfast.stores.contract import Store


class LinkFactory(LinkOwner, Protocol):
    """The backend, as a maker of links."""

    @property
    def at(self) -> str: ...
    @property
    def is_per_caller(self) -> bool: ...
    def new(
        self,
        *,
        memory: SessionMemory | SharedMemory | None = None,
        principal: Principal = ANONYMOUS,
        program: str | None = None,
        caller: Principal | None = None,
        on_notification: OnNotification | None = None,
        stream: bool = False,
        passed: Mapping[str, str] | None = None,
        era: EraChoice | None = None,
    ) -> BackendLink: ...
    def on_notification(
        self, method: str, params: Mapping[str, Any] | None, principal: Principal | None = None
    ) -> None: ...


class SharedLinks:
    """The shared links of one backend; each is opened by its first use."""

    def __init__(self, backend: LinkFactory, store: Store) -> None:
        self._backend = backend
        self._store = store
        self._common: BackendLink | None = None
        self._subscriptions: dict[Principal | None, Subscriptions] = {}
        self._stateless = Stateless(lambda: backend.new(era="2026", on_notification=backend.on_notification))
        self._of_stateless: Subscriptions | None = None
        self._principals: dict[Principal, BackendLink] = {}

    @property
    def has_common(self) -> bool:
        return self._common is not None

    def common(self) -> BackendLink:
        """The link for all clients: for backends that keep nothing, for lists and for health."""
        if self._common is None:
            backend = self._backend
            id = f"gateway/{backend.name}/shared" if backend.policy.reuse == "shared" else None
            memory = None if id is None else SharedMemory(self._store, id, backend.at, principal=ANONYMOUS)
            self._common = backend.new(memory=memory, program=id, on_notification=backend.on_notification, stream=True)
        self._common.mark_used()
        return self._common

    def subscriptions(self, backend_link: BackendLink, principal: Principal | None = None) -> Subscriptions:
        """The resources that clients subscribe to over the link for all of them, or over a principal's."""
        known, link = self._subscriptions.get(principal), backend_link.link
        if known is None or known.link is not link:
            known = self._subscriptions[principal] = Subscriptions(link)
        return known

    async def stateless_subscriptions(self) -> Subscriptions | None:
        """The resources that clients subscribe to over the link that 2026 clients share, if there can be one."""
        backend_link = await self.stateless(keep=True)
        if backend_link is None:
            return None
        if self._of_stateless is None or self._of_stateless.link is not backend_link.link:
            self._of_stateless = Subscriptions(backend_link.link)
        return self._of_stateless

    async def end_look(self) -> None:
        """Close the link for all clients if it holds a program that was started for a look only."""
        common = self._common
        if common is None or not self._backend.is_child or self._backend.policy.reuse == "shared":
            return
        subscribed = self._subscriptions.get(None)
        if common.link.era is not Era.Y2026 and not subscribed and not common.link.statistics().in_flight:
            self._common = None
            self._subscriptions.pop(None, None)
            await common.close("looked at", end=True)

    async def stateless(self, *, keep: bool = False) -> BackendLink | None:
        """The link that 2026 clients without a session share. `keep`: also while no call uses it. None where the
        backend does not offer 2026, wants each caller's own headers, or is a program: what its process keeps would be
        shared by all clients."""
        backend = self._backend
        if backend.is_child or backend.is_per_caller or backend.entry.server.era == "2025":
            return None
        self._stateless.is_kept = self._stateless.is_kept or keep
        return await self._stateless.get()

    def for_principal(self, principal: Principal, idle: float, passed: Mapping[str, str] | None = None) -> BackendLink:
        """The link that a principal's clients share."""
        backend_link = self._principals.get(principal)
        if backend_link is None:
            backend = self._backend
            backend_link = self._principals[principal] = backend.new(
                memory=principal_memory(self._store, backend.name, backend.at, principal, idle),
                principal=principal,
                program=principal_link(backend.name, principal),
                caller=principal,
                on_notification=partial(backend.on_notification, principal=principal),
                stream=True,
                passed=passed,
            )
        else:
            backend_link.pass_next(passed)
        backend_link.mark_used()
        return backend_link

    def has_principal(self, principal: str) -> bool:
        """Does a principal have a link in this process?"""
        return principal in self._principals

    def in_flight(self) -> int:
        """Calls under way on these links."""
        own = (*self._principals.values(), self._common, self._stateless.backend_link)
        return sum(backend_link.link.statistics().in_flight for backend_link in own if backend_link is not None)

    async def close_idle(self, idle: float, has_session: Callable[[Principal], Awaitable[bool]]) -> None:
        """Close links that their principals have not used for `idle` seconds. A principal with a session may come back
        to its link, which is kept and touched."""
        for principal, backend_link in list(self._principals.items()):
            if time.monotonic() - backend_link.used <= idle / 2 or backend_link.link.statistics().in_flight:
                continue
            if await has_session(principal):
                await backend_link.link.saved.touch()
                continue
            if time.monotonic() - backend_link.used > idle and not backend_link.link.statistics().in_flight:
                self._principals.pop(principal, None)
                self._subscriptions.pop(principal, None)
                await backend_link.close("idle", end=self._backend.is_child, leaves_loss=True)
        await self._stateless.close_idle(idle)

    async def close(self, reason: str, *, end: bool, leaves_loss: bool) -> None:
        """`end=False` leaves sessions at the server that the store remembers for the next process."""
        principals, self._principals = self._principals, {}
        common, self._common = self._common, None
        closing = [link.close(reason, end=end, leaves_loss=leaves_loss) for link in principals.values()]
        closing.append(self._stateless.close(reason))
        if common is not None:
            remembered = self._backend.policy.reuse == "shared"
            closing.append(common.close(reason, end=end or not remembered, leaves_loss=leaves_loss))
        await close_all(self._backend.name, closing)
