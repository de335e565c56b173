"""The kinds of records of sessions, and what a log entry stores of the previous state."""

import json
from collections.abc import Mapping
from typing import Any, cast

from holdfast.core.values import members

KIND = "state"
COMPANIONS = "state-companions"  # which companions a session has
POINTERS = "state-key"  # what a principal or a connection stands for
RESULTS = "state-result"  # the answer to a call with an idempotency key
OUTLINES = "state-outline"  # what remains of an ended session: its steps, without what it held
UNDO = "undo"
REDO = "redo"
RESTORE = "restore"
PAGE = 100


def same(one: object, other: object) -> bool:
    """Whether two values are equal as JSON: in Python 1, 1.0 and True are equal."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The previous values of the changed fields, and the names of added ones."""
    changed = {name: before[name] for name in before if name not in after or not same(before[name], after[name])}
    return {"set": changed, "new": [name for name in after if name not in before]}


def back(stored: dict[str, Any], was: Mapping[str, Any]) -> dict[str, Any]:
    """The version and state before an entry, computed from those after it."""
    if "state" in was:  # written by newer code than the previous state, which is stored whole
        return {"v": was.get("v"), "state": members(was.get("state"))}
    new = set(cast("list[str]", was.get("new") or []))
    state = {name: value for name, value in members(stored.get("state")).items() if name not in new}
    return {"v": stored.get("v"), "state": state | members(was.get("set"))}
