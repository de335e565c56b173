"""Log messages of a server for one call: a 2026 client names a level with each, a 2025 client one for its session."""

from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.core.values import members

MESSAGE = "notifications/message"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the least severe."""
USUAL = "info"
"""The level of a 2025 client that has set none, where its server sends what others want."""


class Channel(Protocol):
    """The way to the client that made a call."""

    def send(self, message: Mapping[str, Any]) -> None: ...


def is_lower(level: object, than: object) -> bool:
    """Is a level less severe than another one? Levels that are not known are not."""
    return level in LEVELS and than in LEVELS and LEVELS.index(str(level)) < LEVELS.index(str(than))


class CallLog:
    """The log messages of one call, from its level on."""

    __slots__ = ("_channel", "level")

    def __init__(self, channel: Channel, level: object) -> None:
        self._channel = channel
        self.level = level if level in LEVELS else None
        """None: the client's level is not known, and every message is sent."""

    def take(self, params: Mapping[str, Any] | None) -> None:
        """Send a message on the call's own stream, if it is severe enough."""
        if not is_lower(members(params).get("level"), self.level):
            self._channel.send({"jsonrpc": "2.0", "method": MESSAGE, "params": dict(params or {})})
