"""The SDK's `ClientSession` over a run's link: opened once per link, in a task of the link, and closed with it."""

import anyio
import anyio.abc
from mcp import ClientSession
from mcp.shared.dispatcher import OnNotify, OnNotifyIntercept, OnRequest

from holdfast.client.calls.leased import run_of
from holdfast.client.declaration import ServerDeclaration
from holdfast.client.runs.scope import current_run
from holdfast.core.eras import Era
from holdfast.errors import UsageError
from holdfast.links.sdk import LinkDispatcher

_sessions: dict[int, ClientSession] = {}
"""Open sessions by the id of their link. A session references its link."""


class _Quiet(LinkDispatcher):
    """A dispatcher that lets the run's callbacks answer the server's requests."""

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        await anyio.sleep_forever()


async def session(server: ServerDeclaration) -> ClientSession:
    """Return the session over a link, opened once per link in a task of the link, and closed with it."""
    run = run_of(server)
    if run is None:
        raise UsageError(
            f"the session of {server.name!r} was requested outside a run",
            server=server.name,
            remedy="request it inside `async with holdfast.run():`",
        )
    link = await run.link(server, timeout=server.timeout)
    found = _sessions.get(id(link))
    if found is not None:
        return found
    await link.open()
    ready: anyio.Event = anyio.Event()
    opened: list[ClientSession] = []

    async def hold() -> None:
        try:
            async with ClientSession(dispatcher=_Quiet(link, sharer=current_run)) as live:
                await (live.initialize() if link.era is Era.Y2025 else live.discover())
                opened.append(_sessions.setdefault(id(link), live))
                ready.set()
                await anyio.sleep_forever()
        finally:
            _sessions.pop(id(link), None)
            ready.set()

    link.background.start(hold(), f"session {server.name}")
    await ready.wait()
    if not opened:
        raise UsageError(
            f"the session of {server.name!r} could not be opened: the run ended meanwhile", server=server.name
        )
    return opened[0]
