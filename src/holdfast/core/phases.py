"""The phases of a companion, as a table of which may follow which. An unreachable phase is an error.

`PhaseTable({"empty": ["drafted"], "drafted": ["criticised"], …})`: a new companion is in the first phase.
"""

from collections.abc import Iterable, Mapping

from holdfast.errors import UsageError


class PhaseTable:
    """The declared phases and the transitions between them."""

    def __init__(self, owner: str, phases: Mapping[str, Iterable[str]]) -> None:
        self.owner = owner
        if not phases:
            raise UsageError(f"{owner} has no phases", remedy='declare phases = {"start": ["next", …], …}')
        self.steps: dict[str, tuple[str, ...]] = {}
        for phase, following in phases.items():
            if isinstance(following, str):
                raise UsageError(
                    f"{owner}: {phase!r} must lead to a list of phases, not to a str", remedy=f"write [{following!r}]"
                )
            self.steps[phase] = tuple(following)
        self.start = next(iter(self.steps))
        for phase, following in self.steps.items():
            for then in following:
                if then not in self.steps:
                    raise UsageError(
                        f"{owner}: {phase!r} leads to {then!r}, which is not declared",
                        remedy=f"declare {then!r}, or use one of {', '.join(self.steps)}",
                    )
        reached, waiting = {self.start}, [self.start]
        while waiting:
            for then in self.steps[waiting.pop()]:
                if then not in reached:
                    reached.add(then)
                    waiting.append(then)
        lost = [phase for phase in self.steps if phase not in reached]
        if lost:
            raise UsageError(
                f"{owner}: nothing leads from {self.start!r} to {', '.join(repr(phase) for phase in lost)}",
                remedy="add a step that leads there, or remove it",
            )

    def check(self, *phases: str) -> None:
        """Raise `UsageError` for a phase that is not declared."""
        for phase in phases:
            if phase not in self.steps:
                raise UsageError(f"{self.owner} has no phase {phase!r}", remedy=f"use one of {', '.join(self.steps)}")

    def allows(self, phase: str, then: str) -> bool:
        """Whether `then` may follow `now`; a phase may follow itself only if the table says so."""
        return then in self.steps[phase]
