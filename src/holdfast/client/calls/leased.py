"""The link for one call: its run's, or one that exists only during the call.

A run that has ended or belongs to another event loop is not used.
"""

import asyncio
import logging
from functools import partial
from types import TracebackType

from holdfast.client.callbacks import Callbacks
from holdfast.client.declaration import Reuse, ServerDeclaration, check_enabled
from holdfast.client.runs.link_factory import forgetting_hints, make_link_outside_runs
from holdfast.client.runs.run import Run
from holdfast.client.runs.scope import Scope, current_scope, inherited_principal, run_of_call
from holdfast.core.eras import Era
from holdfast.core.handshake import includes
from holdfast.core.lifecycle import LinkState
from holdfast.core.models import ANONYMOUS
from holdfast.errors import LeaseClosed, UsageError
from holdfast.links.calls.handlers import CallHandlers
from holdfast.links.link import Link

log = logging.getLogger("holdfast.client")
_warned: set[str] = set()


def run_of(server: ServerDeclaration) -> Run | None:
    """The run of a call to this server: the one that the server is bound to, or the current one."""
    bound = server.bound_to
    if not isinstance(bound, Run):
        return run_of_call()
    if not bound.here:
        raise UsageError(
            f"{server.name!r} is bound to {bound!r}, which belongs to another event loop",
            server=server.name,
            remedy="hand the call to that loop: asyncio.run_coroutine_threadsafe(server.call_tool(…), loop)",
        )
    return bound


def link_at_hand(server: ServerDeclaration, reuse: Reuse | None) -> Link | None:
    """The run's link, if it exists already, which is the usual case."""
    wanted = reuse or server.reuse
    if wanted == "call":
        return None
    if server.bound_to is None:
        scope = current_scope()
        run = None if scope is None else scope.run
    else:
        run = run_of(server)
    if run is None or run.closed or not run.here:
        return None
    return run.leases.at_hand(server, wanted)


class leased:  # noqa: N801 - `async with leased(server) as (link, …)`
    """A link for one call: the run's, or one for this call only.
    `timeout`: seconds to wait where the number of links is limited.
    """

    def __init__(self, server: ServerDeclaration, reuse: Reuse | None, timeout: float | None = None) -> None:
        self._server = server
        self._reuse: Reuse = reuse or server.reuse
        self._timeout = timeout
        self._ephemeral: Link | None = None

    async def __aenter__(self) -> Link:
        server = self._server
        run = run_of(server) if server.bound_to is not None else _run_of_scope(server)
        if run is not None and (self._reuse != "call" or run.closed):
            return await run.link(server, self._reuse, timeout=self._timeout)
        check_enabled(server)
        if run is not None:
            self._ephemeral = run.single(server)
        else:
            if self._reuse != "call" and server.memory is None:
                _warn_once(server)
            principal = None if server.bound_to is not None else inherited_principal(current_scope())
            self._ephemeral = make_link_outside_runs(server, principal or ANONYMOUS)
        return self._ephemeral

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._ephemeral is not None:
            await self._ephemeral.close()


def _run_of_scope(server: ServerDeclaration) -> Run | None:
    scope = current_scope()
    if scope is None or not scope.run.here:
        return None
    if not scope.run.closed:
        return scope.run
    if scope.task is asyncio.current_task() and not scope.open:
        return None  # left by an abandoned generator in the task in which it ran
    raise LeaseClosed(
        f"{server.name!r} was called in a task that outlived its run {scope.run.id}",
        server=server.name,
        remedy="end such tasks before the run ends, or open a run of their own",
    )


def _warn_once(server: ServerDeclaration) -> None:
    if server.name not in _warned:
        _warned.add(server.name)
        log.warning(
            "%s is used outside a run: a session is opened for this one call only, and its state is lost; "
            "put the work inside `async with holdfast.run():`, or call through `run.bind(server)` where the run's "
            "context does not reach",
            server.name,
        )


# Callbacks of nested runs


def callbacks_of(server: ServerDeclaration) -> Callbacks:
    """The callbacks that answer input requests in a server's answer to a call of this task."""
    if server.bound_to is None:
        scope = current_scope()
        ours = scope.callbacks if scope is not None and not scope.run.closed and scope.run.here else Callbacks()
    else:
        run = run_of(server)
        ours = run.callbacks if run is not None else Callbacks()
    return server.callbacks.over(ours) if server.callbacks is not None else ours


def nested_callbacks(server: ServerDeclaration, link: Link) -> Callbacks | None:
    """The callbacks of the nested run that makes this call, if it has any:
    they answer for it, not those of another nested run that is open at the same time.
    """
    if server.bound_to is not None:
        return None
    scope = current_scope()
    if scope is None or not scope.nested:
        return None
    callbacks = callbacks_of(server)
    _state_capabilities(scope, server, link, callbacks)
    return callbacks


def call_handlers_of(server: ServerDeclaration, link: Link, callbacks: Callbacks) -> CallHandlers:
    """Handlers that call these callbacks for messages on one call's own stream."""
    return CallHandlers(
        partial(callbacks.answer, server=server.name), forgetting_hints(server, link.principal, callbacks.notify)
    )


def _state_capabilities(scope: Scope, server: ServerDeclaration, link: Link, callbacks: Callbacks) -> None:
    """Warn if a 2025 server does not know of a nested run's callbacks:
    a session declares capabilities once, when it begins; in 2026 every call declares them.
    """
    wanted = callbacks.capabilities
    if link.era is Era.Y2026 or includes(link.introduction.ours.capabilities, wanted):
        return
    if link.phase is LinkState.CLOSED:
        link.introduction.introduce(link.introduction.ours.info, wanted)
        return
    if id(link) not in scope.warned:
        scope.warned.add(id(link))
        log.warning(
            "%s: its session began before this nested run, so the server does not know that it may ask for %s; give "
            "those callbacks to the outer run, or to the server",
            server.name,
            ", ".join(sorted(set(wanted) - set(link.introduction.ours.capabilities))) or "as much",
        )
