"""The sessions that this process holds live, in the order of their use, and those that it puts to rest in the store."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from holdfast.core.lifecycle import GatewaySessionEvent
from holdfast.gateway.sessions.session import GatewaySession


class LiveSessions(Mapping[str, GatewaySession]):
    """The live sessions of one gateway, by id. The one used last comes last."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, GatewaySession] = OrderedDict()
        self._resting: set[asyncio.Task[None]] = set()

    def __getitem__(self, id: str) -> GatewaySession:
        return self._by_id[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def by_key(self, key: str) -> GatewaySession | None:
        """The session whose record has this name."""
        return next((session for session in self._by_id.values() if session.key == key), None)

    def add(self, session: GatewaySession, most: int) -> None:
        """Hold a session that is open now. Of more than `most`, those used longest ago are put to rest."""
        session.step(GatewaySessionEvent.STARTED)
        self._by_id[session.id] = session
        extra = len(self._by_id) - most
        if extra > 0:
            for idle in [each for each in self._by_id.values() if each.may_rest and each is not session][:extra]:
                self.rest(idle, "at rest")

    def mark_used(self, session: GatewaySession) -> None:
        """Note that a session was used."""
        self._by_id.move_to_end(session.id)

    def remove(self, session: GatewaySession) -> None:
        """Take out a session that ends."""
        self._by_id.pop(session.id, None)

    def rest(self, session: GatewaySession, reason: str) -> None:
        """Take a session out of this process; its record stays."""
        self.remove(session)
        session.step(GatewaySessionEvent.HANDED_OVER)
        task = asyncio.get_running_loop().create_task(session.close(reason, end=False), name="rest session")
        self._resting.add(task)
        task.add_done_callback(self._resting.discard)

    def end_streams(self) -> None:
        """End the streams of clients that listen: this process serves them no longer."""
        for session in self._by_id.values():
            session.notices.end_streams()

    async def wait_rested(self, seconds: float) -> None:
        """Wait until no session is being put to rest, or the time is over."""
        if self._resting:
            await asyncio.wait(self._resting, timeout=seconds)
