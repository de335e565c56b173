"""What the client of a session gets that belongs to none of its calls: changes of lists and resources, and the like.

It owns the streams of a 2025 client, and the notices that wait until the client listens. A 2026 client listens apart
from its session.
"""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.eras import Era
from holdfast.core.models import Principal
from holdfast.gateway.backends.lists.looks import NOTIFICATIONS
from holdfast.gateway.fronts.http.streams import Stream, Streams
from holdfast.gateway.lists.listeners import Listeners, RecentKinds
from holdfast.gateway.sessions.record import SessionRecord


class ClientNotices:
    """The notices of one session."""

    __slots__ = ("_changed", "_era", "_listeners", "_new_streams", "_principal", "_recent", "_record", "_streams")

    def __init__(
        self,
        era: Era,
        principal: Principal,
        record: SessionRecord,
        listeners: Listeners,
        new_streams: Callable[[], Streams],
    ) -> None:
        self._era = era
        self._principal = principal
        self._record = record
        self._listeners = listeners
        self._new_streams = new_streams
        self._streams: Streams | None = None
        self._changed: set[str] = set()
        """Kinds of lists that changed while the client did not listen."""
        self._recent = RecentKinds()

    # The client's own stream

    @property
    def is_read(self) -> bool:
        """Does the client read its own stream?"""
        return self.read_stream is not None

    @property
    def read_stream(self) -> Stream | None:
        """The client's own stream, if the client reads it."""
        return self._streams.own if self._streams is not None and self._streams.own.is_read else None

    def open_streams(self) -> Streams:
        """The streams of a 2025 client, made at first use."""
        if self._streams is None:
            self._streams = self._new_streams()
        return self._streams

    def push(self, message: Mapping[str, Any]) -> None:
        """Send something to the client on its own stream; it is kept there until the client listens."""
        if self._era is Era.Y2025:
            self.open_streams().own.add({"jsonrpc": "2.0", **message})

    def push_changes(self) -> None:
        """The client listens now: send it the notices that had to wait."""
        for method in sorted(NOTIFICATIONS[kind] for kind in self._changed):
            self.push({"method": method})
        self._changed.clear()

    def end_streams(self) -> None:
        """No more events come."""
        if self._streams is not None:
            self._streams.end()

    def close(self) -> None:
        """The session is gone, so that no stream of it is resumed."""
        if self._streams is not None:
            self._streams.end()
            self._streams.forget()

    # What has changed for all sessions

    def announce(self, kinds: tuple[str, ...]) -> None:
        """Lists of these kinds have changed; a client that does not listen gets the notice when it does."""
        if self._era is Era.Y2026:
            return
        self._recent.note(kinds)
        if self.is_read:
            for kind in kinds:
                self.push({"method": NOTIFICATIONS[kind]})
        else:
            self._changed.update(kinds)

    def announce_unseen(self, kinds: tuple[str, ...]) -> None:
        """A server announced changes of its lists that do not show. It may have done so on several links."""
        self.announce(self._recent.without(kinds))

    # What has changed for this session

    def lists_changed(self, kinds: tuple[str, ...], *, seen: bool = True) -> None:
        """The lists of this session have changed; `seen`: so that a difference shows."""
        if self._era is Era.Y2026:
            changed = self._listeners.lists_changed if seen else self._listeners.lists_announced
            changed(kinds, self._principal, self._record.key)
        else:
            (self.announce if seen else self.announce_unseen)(kinds)

    def resource_updated(self, uri: str, params: Mapping[str, Any], *, unasked: bool = False) -> None:
        """A server announced a change of a resource to this session. `unasked`: to be passed on in any case."""
        if self._era is Era.Y2026:
            self._listeners.resource_updated(uri, params, self._principal, self._record.key)
        elif unasked or uri in self._record.subscriptions:
            self.push({"method": "notifications/resources/updated", "params": dict(params)})
