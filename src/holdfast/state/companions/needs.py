"""The conditions on a companion under which a server's tools run, and which tools can be called next."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.core.phases import PhaseTable
from holdfast.errors import UsageError
from holdfast.state.calls.request import ENDS_SO, known_as


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a tool: a companion in one of these phases, and a predicate that must be true."""

    phases: tuple[str, ...] = ()
    when: Callable[[Any], object] | None = None
    say: str = ""


class ToolNeeds:
    """The needs of all tools that use one kind of companion."""

    def __init__(self, table: PhaseTable) -> None:
        self._table = table
        self._by_tool: dict[str, Needs] = {}

    def checked(self, needs: Needs) -> Needs:
        """Create the needs, after checking that their phases exist."""
        self._table.check(*needs.phases)
        if not needs.phases and needs.when is None:
            raise UsageError("a tool that needs nothing needs no guard", remedy="name phases, or a predicate")
        return needs

    def add(self, tool: str, needs: Needs) -> None:
        self._by_tool[tool] = self.checked(needs)

    def get(self, tool: str) -> Needs | None:
        return self._by_tool.get(tool)

    def next_step(self, phase: str, refused: str | None = None) -> str:
        """A text that says what can be called in a phase."""
        others = {tool: needs for tool, needs in self._by_tool.items() if tool != refused}
        ready = [tool for tool, needs in others.items() if phase in needs.phases]
        ready = ready or [tool for tool, needs in others.items() if not needs.phases]
        if ready:
            return f"call {known_as(*ready)} next {ENDS_SO}"
        following = self._table.steps[phase]
        return f"next comes {' or '.join(repr(each) for each in following)}" if following else "its work is done"
