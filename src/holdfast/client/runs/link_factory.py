"""Links made from declarations: options, handlers and memory put together. Nothing here keeps or closes a link."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast.client import hints
from holdfast.client.callbacks import Callbacks
from holdfast.client.declaration import MemoryFactory, ServerDeclaration
from holdfast.core.clock import SYSTEM
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.events import MemoryFailed, Sink
from holdfast.links.calls.handlers import OnNotification, OnRequest
from holdfast.links.link import Link
from holdfast.links.memory.store import Memory
from holdfast.links.options import Options

log = logging.getLogger("holdfast.client")


def make_link(
    server: ServerDeclaration,
    principal: Principal,
    memory: Memory | None,
    callbacks: Callbacks,
    on_request: OnRequest,
    on_notification: OnNotification,
    on_event: Sink | None,
) -> Link:
    """A link as the server's declaration has it. `callbacks` says what the server may ask for."""
    options = Options(
        era=server.era,
        stateful=server.stateful,
        capabilities=callbacks.capabilities,
        log_level=callbacks.asked_level,
        principal=principal,
        memory=memory,
        limits=server.limits,
        verdict_rules=server.verdict_rules,
        on_request=on_request,
        on_notification=forgetting_hints(server, principal, on_notification),
        on_event=on_event,
    )
    return Link(server.target, options, name=server.name)


def make_single_link(
    server: ServerDeclaration, principal: Principal, callbacks: Callbacks, memory: Memory | None, sink: Sink | None
) -> Link:
    """A link for one call, that nothing else uses."""
    merged = server.callbacks.over(callbacks) if server.callbacks is not None else callbacks
    answer = partial(merged.answer, server=server.name)
    return make_link(server, principal, memory, merged, answer, merged.notify, sink)


def make_link_outside_runs(server: ServerDeclaration) -> Link:
    """A link for one call outside any run; a server with a memory of its own goes on with what that has."""
    return make_single_link(server, ANONYMOUS, Callbacks(), make_memory(server, None, None, ANONYMOUS, None), None)


def make_memory(
    server: ServerDeclaration, factory: MemoryFactory | None, id: str | None, principal: Principal, sink: Sink | None
) -> Memory | None:
    """What a factory makes. If it raises, the call goes on without a memory."""
    make = server.memory or factory
    if make is None:
        return None
    try:
        return make(server, id, principal)
    except Exception as error:
        log.exception("memory= of %s raised; its session is not kept", server.name)
        if sink is not None:
            sink(MemoryFailed(SYSTEM.now(), server.name, f"memory= raised {error!r:.200}"))
        return None


def forgetting_hints(server: ServerDeclaration, principal: Principal, then: OnNotification) -> OnNotification:
    """A handler of notifications that first forgets the hints about tools that changed."""

    def on_notification(method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/tools/list_changed":
            hints.forget(server, principal)
        then(method, params)

    return on_notification
