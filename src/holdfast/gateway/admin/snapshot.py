"""How a gateway process is right now: sessions, backends, calls. Names are as others gave them: readers escape them."""

import asyncio
import os
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

from holdfast.core.exact import plain
from holdfast.core.lifecycle import CircuitState
from holdfast.gateway.admin.rates import Rates
from holdfast.gateway.admin.shown import KEY_SHOWN, short
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.children import Children
from holdfast.gateway.observer import client_text
from holdfast.gateway.process.lifecycle import GatewayLifecycle
from holdfast.gateway.sessions.registry import Sessions
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.version import __version__

AT_ONCE = 200  # links that are looked at before calls go on
SESSIONS = 200  # that are shown if a reader does not say how many
MOST_SESSIONS = 5_000
_NO_CALLS: Mapping[str, Any] = {"per_second": 0.0, "p50": None, "p99": None}


class Snapshots:
    """Makes snapshots of one gateway."""

    def __init__(
        self,
        sessions: Sessions,
        backends: Mapping[str, Backend],
        children: Children,
        lifecycle: GatewayLifecycle,
        address: str,
    ) -> None:
        self.rates = Rates()
        self._sessions = sessions
        self._backends = backends
        self._children = children
        self._lifecycle = lifecycle
        self._address = address
        self._began = time.monotonic()

    async def take(self, sessions: int = SESSIONS) -> dict[str, Any]:
        """A snapshot, with those `sessions` that were used last."""
        live, lifecycle = self._sessions.live, self._lifecycle
        calls, by_backend = self.rates.figures()
        children = self._children.by_server()
        latest = [live[id] for id in islice(reversed(list(live)), max(0, min(sessions, MOST_SESSIONS)))]
        backends = {
            name: {**await self._backend(backend), "children": children[name], **by_backend.get(name, _NO_CALLS)}
            for name, backend in list(self._backends.items())
        }
        return {
            "process": self._sessions.owner,
            "version": __version__,
            "pid": os.getpid(),
            "address": self._address,
            "state": lifecycle.state.value,
            "up_seconds": round(time.monotonic() - self._began, 1),
            "in_flight": lifecycle.calls,
            "children": self._children.count,
            "calls": calls,
            "replaced": sum(each["replaced"] for each in backends.values()),
            "unknown": sum(each["unknown"] for each in backends.values()),
            "backends": backends,
            "live_sessions": len(live),
            "sessions": [self._session(session) for session in latest],
        }

    async def _backend(self, backend: Backend) -> dict[str, Any]:
        in_flight, circuits = 0, set[CircuitState]()
        links = backend.counts.links
        replaced, unknown = backend.counts.of_closed
        for number, link in enumerate(links):
            if number and number % AT_ONCE == 0:
                await asyncio.sleep(0)
            statistics = link.statistics()
            in_flight += statistics.in_flight
            replaced += statistics.replacements
            unknown += statistics.unknown_outcomes
            circuits.add(link.circuit)
        why = plain(backend.health.why)
        return {
            "state": backend.health.state,
            "since": backend.health.since,
            "why": short(why) if isinstance(why, str) else None,
            "era": backend.era.value if backend.era is not None else None,
            "circuit": _worst(circuits),
            "links": len(links),
            "in_flight": in_flight,
            "replaced": replaced,
            "unknown": unknown,
        }

    def _session(self, session: GatewaySession) -> dict[str, Any]:
        return {
            "session": session.key[:KEY_SHOWN],
            "principal": session.principal,
            "client": client_text(session.client.info),
            "era": session.era.value,
            "idle_seconds": round(max(0.0, self._sessions.clock.monotonic() - session.usage.used), 1),
            "in_flight": len(session.calls),
            "backends": sorted(session.links),
        }


def _worst(circuits: set[CircuitState]) -> str | None:
    """Of circuits that callers have of their own, the one that is open; None where no link has one."""
    for state in (CircuitState.OPEN, CircuitState.HALF_OPEN, CircuitState.CLOSED):
        if state in circuits:
            return state.value
    return None
