"""Creates links from declarations, with options, handlers and memory. It does not keep or close them."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

from holdfast.client import hints
from holdfast.client.callbacks import Callbacks
from holdfast.client.declaration import MemoryFactory, ServerDeclaration
from holdfast.core.clock import SYSTEM
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.events import MemoryFailed, Sink
from holdfast.links.calls.handlers import OnNotification, OnRequest
from holdfast.links.link import Link
from holdfast.links.memory.ids import keeps_ids_alone
from holdfast.links.memory.store import Memory
from holdfast.links.options import Options
from holdfast.links.target import HttpTarget

log = logging.getLogger("holdfast.client")
_warned_of_ids: WeakSet[ServerDeclaration] = WeakSet()


def make_link(
    server: ServerDeclaration,
    principal: Principal,
    memory: Memory | None,
    callbacks: Callbacks,
    on_request: OnRequest,
    on_notification: OnNotification,
    on_event: Sink | None,
    wants_requests: Callable[[], bool] | None = None,
) -> Link:
    """A link according to the server's declaration. `callbacks` determine what the server may request."""
    options = Options(
        era=server.era,
        stateful=server.stateful,
        capabilities=callbacks.capabilities,
        log_level=callbacks.wanted_level,
        principal=principal,
        memory=memory,
        limits=server.limits,
        verdict_rules=server.verdict_rules,
        on_request=on_request,
        on_notification=forgetting_hints(server, principal, on_notification),
        on_event=on_event,
        wants_requests=wants_requests,
    )
    return Link(server.target, options, name=server.name)


def make_single_link(
    server: ServerDeclaration,
    principal: Principal,
    callbacks: Callbacks,
    memory: Memory | None,
    sink: Sink | None,
    wants_requests: Callable[[], bool] | None = None,
) -> Link:
    """A link for one call only."""
    merged = server.callbacks.over(callbacks) if server.callbacks is not None else callbacks
    answer = partial(merged.answer, server=server.name)
    return make_link(server, principal, memory, merged, answer, merged.notify, sink, wants_requests)


def make_link_outside_runs(server: ServerDeclaration, principal: Principal = ANONYMOUS) -> Link:
    """A link for one call outside any run; a server with a memory of its own continues the session stored there."""
    return make_single_link(server, principal, Callbacks(), make_memory(server, None, None, principal, None), None)


def make_memory(
    server: ServerDeclaration,
    factory: MemoryFactory | None,
    id: str | None,
    principal: Principal,
    sink: Sink | None,
    *,
    recorded: bool = False,
) -> Memory | None:
    """The memory that a factory returns.
    If it raises, the call continues without a memory. `recorded`: a run's record says that there was a program, which
    an id can't.
    """
    make = server.memory or factory
    if make is None:
        return None
    try:
        memory = make(server, id, principal)
        if not recorded and not isinstance(server.target, HttpTarget) and keeps_ids_alone(memory):
            _warn_of_ids(server)
        return memory
    except Exception as error:
        log.exception("memory= of %s raised; its session is not kept", server.name)
        if sink is not None:
            sink(MemoryFailed(SYSTEM.now(), server.name, f"memory= raised {error!r:.200}"))
        return None


def _warn_of_ids(server: ServerDeclaration) -> None:
    if server not in _warned_of_ids:
        _warned_of_ids.add(server)
        log.warning(
            "%s: its memory stores session ids, and a program or object has none: each time it begins again without a "
            "report of what is lost; use `holdfast.run(id, store=…)`, which records that there was one",
            server.name,
        )


def forgetting_hints(server: ServerDeclaration, principal: Principal, then: OnNotification) -> OnNotification:
    """A handler of notifications that first drops the hints about changed tools."""

    def on_notification(method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/tools/list_changed":
            hints.forget(server, principal)
        then(method, params)

    return on_notification
