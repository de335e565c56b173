"""The change to another configuration: which backends go on, and how those that do not are closed.

It owns the links to servers that are no longer configured, until their calls are over.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.events import ConfigurationRead
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.links.link import BackendLink
from holdfast.gateway.config.file import Config, ServerEntry
from holdfast.gateway.config.settings import Settings
from holdfast.gateway.sessions.session import GatewaySession

LOOK_SECONDS = 0.05  # between two looks at calls under way


def goes_on(backend: Backend, entry: ServerEntry) -> bool:
    """Does a backend go on with a new entry? With the same server, it takes any other policy."""
    return backend.entry.server == entry.server


def configuration_read(before: Config | None, now: Config, error: HoldfastError | None) -> ConfigurationRead:
    """The event that the file was read. `before` is what was taken over until now; None at the start."""
    old: Mapping[str, ServerEntry] = before.entries if before is not None else {}
    both = [name for name in now.entries if name in old]
    changed = [name for name in both if now.entries[name] != old[name]]
    if before is not None:
        changed += [
            name for name in Settings.model_fields if getattr(now.settings, name) != getattr(before.settings, name)
        ]
    return ConfigurationRead(
        time.time(),
        _digest(now.path),
        None if error is None else type(error).__name__,
        tuple(name for name in now.entries if name not in old),
        tuple(name for name in old if name not in now.entries),
        tuple(changed),
    )


def _digest(path: Path | None) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path is not None else ""
    except OSError:
        return ""


class OutdatedBackends:
    """Backends that a new configuration has no longer, or has with another server. `fresh`: those that it has."""

    def __init__(self, before: Mapping[str, Backend], fresh: Mapping[str, Backend]) -> None:
        self._backends = [backend for name, backend in before.items() if fresh.get(name) is not backend]
        self._fresh = fresh
        self._links: list[tuple[Backend, BackendLink]] = []

    def _ends(self, backend: Backend) -> bool:
        """Do the sessions at the server end? Not where only its settings changed: new links take the sessions up."""
        after = self._fresh.get(backend.name)
        return after is None or after.at != backend.at

    def take_links(self, sessions: Iterable[GatewaySession]) -> None:
        """Take the links of live sessions to these backends."""
        for session in sessions:
            for backend in self._backends:
                backend_link = session.links.drop(backend.name)
                if backend_link is not None:
                    self._links.append((backend, backend_link))

    async def close(self, drain: float) -> None:
        """Close each link when its calls are over, or have had their time; then the backends."""
        waiting: list[Coroutine[Any, Any, None]] = [self._close(*each, drain) for each in self._links]
        waiting += [_quiet(backend.links.in_flight, drain) for backend in self._backends]
        await asyncio.gather(*waiting, return_exceptions=True)
        for backend in self._backends:
            await backend.close("reconfigured", end=self._ends(backend), leaves_loss=True)
            await backend.close_pool()

    async def _close(self, backend: Backend, backend_link: BackendLink, drain: float) -> None:
        await _quiet(lambda: backend_link.link.statistics().in_flight, drain)
        await backend_link.close("reconfigured", end=self._ends(backend), leaves_loss=True)


async def _quiet(in_flight: Callable[[], int], seconds: float) -> None:
    """Wait until no call is under way, or the time is over."""
    until = time.monotonic() + seconds
    while in_flight() and time.monotonic() < until:
        await asyncio.sleep(LOOK_SECONDS)
