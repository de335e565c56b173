"""Memory that requests with large bodies take, from their first bytes to their answers.

The sum is bounded, for one caller and for all: a body of four megabytes may become a hundred as Python objects, and
stays while its call runs. Requests of a common size are never refused.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.core.models import ANONYMOUS, Principal
from holdfast.gateway.fronts.refusals import Refused

MIB = 1024 * 1024
COMMON = 64 * 1024  # bytes that a request may take without being counted: connections are bounded, too
ALL = 64 * MIB  # of all requests that are counted, or one larger
OF_ONE = 32 * MIB  # of one caller with a token, so that others are let in


class RequestBodies:
    """The bytes that all requests of one gateway take."""

    def __init__(self) -> None:
        self.used = 0
        self._of: Counter[Principal] = Counter()

    def __repr__(self) -> str:
        return f"<RequestBodies {self.used} of {ALL} bytes>"

    @contextmanager
    def held_by(self, principal: Principal) -> "Generator[HeldBytes]":
        """Count one request, from no bytes up, until the block ends."""
        held = HeldBytes(self, principal)
        try:
            yield held
        finally:
            self._take(principal, -held.size)

    def grow(self, principal: Principal, size: int, to: int) -> None:
        """Count the growth of a request from one size to another. `Refused` if that is too much beside others."""
        others, own = self.used - size, self._of[principal] - size
        if (others and others + to > ALL) or (principal != ANONYMOUS and own and own + to > OF_ONE):
            what = f"other large requests that are under way take {others} bytes (yours {own}); this one has to wait"
            raise Refused.for_now(what)
        self._take(principal, to - size)

    def _take(self, principal: Principal, size: int) -> None:
        self.used += size
        self._of[principal] += size
        if not self._of[principal]:
            del self._of[principal]


class HeldBytes:
    """The bytes that one request takes."""

    def __init__(self, bodies: RequestBodies, principal: Principal) -> None:
        self.size = 0
        self._bodies = bodies
        self._principal = principal

    def grow_to(self, size: int) -> None:
        """Count that many bytes from now on. `Refused` if that is too much beside other requests."""
        if size > max(COMMON, self.size):
            self._bodies.grow(self._principal, self.size, size)
            self.size = size
