"""The settings of a link's sessions: principal, era, and the requests with which each session begins.

They are frozen and replaced as a whole; `CurrentSettings` holds the current ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from holdfast.core.eras import Era
from holdfast.core.handshake import Handshake, Ours, Saved
from holdfast.core.models import Principal

Requests: TypeAlias = tuple[tuple[str, dict[str, Any]], ...]
"""The method and parameters of each request."""

REMEMBERED = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Requests that must be repeated in a new session."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of a link's sessions."""

    ours: Ours
    principal: Principal
    pinned: Era | None = None
    """The pinned era, or None."""
    prefers: Era = Era.Y2025
    """The era to use where the server offers both."""
    log_level: str | None = None
    subscriptions: tuple[str, ...] = ()
    assumed: str | None = None
    """A version of 2026 that the server is known to speak: the first session needs no handshake."""
    asked: bool = False
    """The user asked for the era in `prefers`: it is taken also where the server holds no session in it."""

    def fits(self, saved: Saved) -> bool:
        """Whether a saved session can be used with these settings."""
        return saved.fits(self.ours, self.principal, self.pinned)

    def introduced(self, info: Mapping[str, Any], capabilities: Mapping[str, Any]) -> "SessionSettings":
        """A copy with another client info and more capabilities."""
        return replace(self, ours=Ours(info, {**self.ours.capabilities, **capabilities}))

    def after(self, method: str, params: Mapping[str, Any]) -> "SessionSettings":
        """The settings after the server has answered this request."""
        uri = params.get("uri")
        if method == "logging/setLevel":
            return replace(self, log_level=params.get("level"))
        if method == "resources/subscribe" and isinstance(uri, str) and uri not in self.subscriptions:
            return replace(self, subscriptions=(*self.subscriptions, uri))
        if method == "resources/unsubscribe" and isinstance(uri, str):
            return replace(self, subscriptions=tuple(each for each in self.subscriptions if each != uri))
        return self

    def joined(self, saved: Saved) -> "SessionSettings":
        """The settings plus those of other links that share the session; this link's own log level is kept."""
        subscriptions = tuple(dict.fromkeys((*self.subscriptions, *saved.subscriptions)))
        return replace(self, log_level=self.log_level or saved.log_level, subscriptions=subscriptions)

    def missing_in(self, saved: Saved) -> Requests:
        """The requests to send in a saved session that was begun without these settings."""
        level = self.log_level if self.log_level != saved.log_level else None
        return _requests(level, (uri for uri in self.subscriptions if uri not in saved.subscriptions))

    def for_new(self, handshake: Handshake) -> Requests:
        """The requests to send in a new session."""
        return _requests(self.log_level if "logging" in handshake.capabilities else None, self.subscriptions)


def _requests(level: str | None, uris: Iterable[str]) -> Requests:
    levels = () if level is None else (("logging/setLevel", {"level": level}),)
    return (*levels, *(("resources/subscribe", {"uri": uri}) for uri in uris))


class CurrentSettings:
    """Holds the current settings."""

    __slots__ = ("now",)

    def __init__(self, settings: SessionSettings) -> None:
        self.now = settings

    def change(self, settings: SessionSettings) -> None:
        self.now = settings
