"""The gateway processes that use a store, by their records, and how to reach those of this machine."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.models import Record
from holdfast.core.values import members
from holdfast.gateway.backends.ownership import has_ended, place

ELSEWHERE = "it runs on another machine or in another container"
NO_SOCKET = "it has no admin socket (there is none on Windows)"


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A gateway process, as its record describes it."""

    id: str
    address: str
    pid: int | None
    host: str
    socket: str | None
    """Its admin socket, if it can be reached from here."""
    why: str | None
    """Why it can't be reached."""
    seen: float
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Host and port, or its number where it has none: over stdio."""
        return self.address.removeprefix("http://").partition("/")[0] or f"pid {self.pid}"


def process_of(record: Record) -> GatewayProcess | None:
    """The process of a record; None if it has ended, as one that was killed here."""
    data = members(record.data)
    if has_ended(data):
        return None
    pid, path, host = data.get("pid"), data.get("admin"), str(data.get("host") or "?")
    is_here = data.get("place") == place() and host == socket.gethostname()
    path = path if isinstance(path, str) and is_here else None
    why = None if path is not None else NO_SOCKET if is_here else ELSEWHERE
    return GatewayProcess(
        record.id,
        str(data.get("address") or ""),
        pid if isinstance(pid, int) else None,
        host,
        path,
        why,
        record.touched,
        data,
    )
