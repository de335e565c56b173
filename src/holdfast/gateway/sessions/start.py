"""The start of a session's backends: all eager ones at once.

Whatever one of them does, the others serve and the session opens.
"""

import asyncio
import logging
from collections.abc import Iterable

from holdfast.errors import HoldfastError
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.sessions.session import GatewaySession

log = logging.getLogger("holdfast.gateway")


def starts_with_session(backend: Backend) -> bool:
    """Is a backend started, or looked at, when a session begins?"""
    if backend.policy.start == "lazy" or backend.health.resting or backend.is_per_caller:
        return False
    return backend.policy.reuse == "session" or backend.catalogue is None


async def start_backends(session: GatewaySession, backends: Iterable[Backend], seconds: float) -> None:
    """Start the eager backends; late ones go on starting when the time is over."""
    starting = [
        session.start(_start(session, backend), f"start {backend.name}")
        for backend in backends
        if starts_with_session(backend)
    ]
    if starting:
        await asyncio.wait(starting, timeout=seconds)


async def _start(session: GatewaySession, backend: Backend) -> None:
    try:
        if backend.policy.reuse != "session":
            await backend.check()
            return
        backend_link = await session.links.to(backend)
        await backend_link.start()
        if backend.catalogue is None or backend.known_lists.is_stale:
            await backend.lists.refresh(backend_link.link)
        backend.spares.warm_up(session.client.ours)
    except HoldfastError as error:
        log.info(
            "session %s: %s did not start: %s",
            session.key[:8],
            backend.name,
            error.what,
            extra={"session": session.key},
        )
