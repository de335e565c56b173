"""How many calls of one caller may wait for answers, and how many bytes they may hold."""

from collections.abc import Hashable

from holdfast.core.models import Principal
from holdfast.errors import LimitReached


class Places:
    """The places of all callers. A call keeps its place from its first question to its end."""

    def __init__(self, calls: int, bytes: int) -> None:
        self._calls = calls
        self._bytes = bytes
        self._taken: dict[Principal, dict[Hashable, int]] = {}

    def __len__(self) -> int:
        return sum(len(calls) for calls in self._taken.values())

    def resize(self, calls: int, bytes: int) -> None:
        """Other limits; who has a place keeps it."""
        self._calls, self._bytes = calls, bytes

    def take(self, call: Hashable, principal: Principal, size: int) -> LimitReached | None:
        """A place for a call that has none, and bytes for it; or the error that says which limit is reached."""
        taken = self._taken.get(principal, {})
        if call not in taken and len(taken) >= self._calls:
            return LimitReached(
                f"{len(taken)} calls of {principal!r} wait for answers of their client",
                limit=self._calls,
                actual=len(taken),
                remedy="raise sessions.parked_per_principal, or lower sessions.park",
            )
        used = sum(taken.values())
        if used + size > self._bytes:
            return LimitReached(
                f"calls of {principal!r} that wait for answers hold {used} bytes, and {size} more are needed",
                limit=self._bytes,
                actual=used + size,
                remedy="raise sessions.parked_bytes, or lower sessions.park",
            )
        taken[call] = taken.get(call, 0) + size
        self._taken[principal] = taken
        return None

    def give_back(self, call: Hashable, principal: Principal, size: int) -> None:
        """Bytes that a call does not need any longer."""
        taken = self._taken.get(principal)
        if taken is not None and call in taken:
            taken[call] -= size

    def release(self, call: Hashable, principal: Principal) -> None:
        """The call is over."""
        taken = self._taken.get(principal)
        if taken is not None and taken.pop(call, None) is not None and not taken:
            del self._taken[principal]
