"""Which programs a gateway process runs, for all backends together, and which of them makes room for another.

It owns the places. An idle program gives its place to one that is needed: the least recently used one, whose loss is
reported if it kept something. A program in a call is never ended.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from holdfast.core.models import Principal
from holdfast.errors import NoBackend


class Program(Protocol):
    """A link to a program, as far as places are concerned."""

    @property
    def used(self) -> float: ...
    @property
    def caller(self) -> Principal | None:
        """Whose calls it serves; None: no caller's, or all callers'."""
        ...

    @property
    def server(self) -> str: ...
    @property
    def is_spare(self) -> bool: ...
    @property
    def is_needed(self) -> bool:
        """Does a caller wait for it, so that another may have to make room?"""
        ...

    @property
    def in_call(self) -> bool: ...
    @property
    def can_go(self) -> bool:
        """Is it idle, and will its loss be reported?"""
        ...

    async def reclaim(self) -> None: ...


class Children:
    """The places of one gateway process. `per_caller`: how many of them one caller may have."""

    def __init__(self, limit: int, per_caller: int) -> None:
        self.limit = limit
        self.per_caller = per_caller
        self._held: dict[Program, None] = {}

    def resize(self, limit: int, per_caller: int) -> None:
        """Other limits, for programs that start from now on."""
        self.limit, self.per_caller = limit, per_caller

    @property
    def count(self) -> int:
        return len(self._held)

    def by_server(self) -> Counter[str]:
        """How many run of each server."""
        return Counter(program.server for program in self._held)

    async def take(self, program: Program) -> None:
        """Take a place; `NoBackend` if none is free and no idle program can make room."""
        if program in self._held:
            return
        mine = [each for each in self._held if each.caller == program.caller] if program.caller is not None else []
        going: Program | None = None
        if program.caller is not None and len(mine) >= self.per_caller:
            if (going := _least_recent(mine)) is None:
                raise self._full(
                    program,
                    f"{len(mine)} of {self.per_caller} run for {program.caller!r}, all of them in a call",
                    "wait for some to end, or raise sessions.children_per_principal",
                    "sessions.children_per_principal",
                )
        elif self.count >= self.limit:
            going = self._room_for(program)
            if going is None:
                raise self._full(
                    program,
                    f"{self.count} of {self.limit} run{self._holders()}",
                    "wait for calls to end, or raise sessions.children",
                    "sessions.children",
                )
        self._held[program] = None  # without an await before the other goes, so that no third program takes its place
        if going is not None:
            del self._held[going]
            await going.reclaim()

    def give(self, program: Program) -> None:
        self._held.pop(program, None)

    def _room_for(self, program: Program) -> Program | None:
        if not program.is_needed:
            return None
        spare = next((each for each in self._held if each.is_spare), None)
        return spare or _least_recent(self._held)

    def _full(self, program: Program, why: str, remedy: str, limit: str) -> NoBackend:
        what = f"backend {program.server!r} needs a program, and {why}"
        caller = "" if program.caller is None else str(program.caller)
        return NoBackend(what, server=program.server, phase="start", remedy=remedy, kind=limit, id=caller)

    def _holders(self) -> str:
        return "".join(
            f", {how}: " + ", ".join(f"{count} of {who}" for who, count in counts.most_common())
            for how, counts in (("in a call", self._count(True)), ("idle", self._count(False)))
            if counts
        )

    def _count(self, in_call: bool) -> Counter[str]:
        held = (each for each in self._held if each.in_call is in_call)
        return Counter("no caller" if each.caller is None else repr(each.caller) for each in held)


def _least_recent(programs: Iterable[Program]) -> Program | None:
    return min((each for each in programs if each.can_go), key=lambda each: each.used, default=None)
