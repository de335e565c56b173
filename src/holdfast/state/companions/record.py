"""The stored form of a companion: its phase, counts and options around the author's own state."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from holdfast.errors import UnstorableValue, UsageError
from holdfast.state.model import Migration, SessionState


class CompanionOptions(BaseModel):
    """Base class for settings of a companion, which are fixed at its first use."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CompanionRecord(SessionState):
    """The state of a companion's record; `body` is the author's state."""

    phase: str = ""
    entered: float = 0.0
    seconds: dict[str, float] = {}  # noqa: RUF012
    counts: dict[str, int] = {}  # noqa: RUF012
    converged: bool = False
    options: dict[str, Any] = {}  # noqa: RUF012
    body: Any = None

    def after_step(
        self,
        body: object,
        labels: Sequence[str],
        to: str | None,
        now: float,
        *,
        begins: tuple[str, ...],
        iterates: tuple[str, ...],
    ) -> "CompanionRecord":
        """The record that a step writes, with its counts and, if the phase changes, the time spent in the old one."""
        after = self.model_copy(deep=True)
        after.body = body
        for label in labels:
            if label in begins:
                after.counts = {**after.counts, "iteration": 0}
            if label in iterates:
                after.counts = {name: after.counts.get(name, 0) + 1 for name in ("iteration", "total")}
        if to is not None and to != self.phase:
            spent = max(0.0, now - self.entered)
            after.seconds = {**after.seconds, self.phase: after.seconds.get(self.phase, 0.0) + spent}
            after.phase, after.entered = to, now
        return after


def record_type(name: str, state: type[SessionState], start: str) -> type[CompanionRecord]:
    """Create the record's model around a state class, with its version and migrations."""
    made = create_model(
        f"{name}Record", __base__=CompanionRecord, phase=(str, start), body=(state, Field(default_factory=state))
    )
    made.version = state.version
    made.migrations = {number: _inside(step) for number, step in state.migrations.items()}
    made.ways_back = {number: _inside(step) for number, step in state.ways_back.items()}
    return made


def _inside(step: Migration) -> Migration:
    return lambda raw: {**raw, "body": step(raw["body"])}


def check_options(kind: type[CompanionOptions], given: object, owner: str) -> dict[str, Any]:
    """Options in their stored form; rejected if they would not come back equal."""
    try:
        if isinstance(given, CompanionOptions):
            whole = kind.model_validate(given)
        else:
            whole = kind.model_validate(given if given is not None else {}, by_name=True, by_alias=True)
        stored = whole.model_dump(mode="json", round_trip=True, by_alias=False)
        again = read_options(kind, stored)
    except ValueError as error:
        raise UsageError(f"{owner}: its options do not validate: {error}"[:500]) from error
    for name in kind.model_fields:
        if getattr(again, name) != getattr(whole, name):
            raise UnstorableValue(f"{owner}: the option {name} would not be read back unchanged", path=name)
    return stored


def read_options(kind: type[CompanionOptions], stored: dict[str, Any]) -> CompanionOptions:
    """Options read from their stored form, of this release or another: removed fields are ignored."""
    known = {name: value for name, value in stored.items() if name in kind.model_fields}
    return kind.model_validate(known, by_name=True, by_alias=False)
