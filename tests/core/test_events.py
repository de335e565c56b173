"""Events: every one that is declared is also sent by some module."""

import ast
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args

import pytest

import holdfast
from holdfast import events


def _name(node: ast.AST) -> str | None:
    return getattr(node, "attr", getattr(node, "id", None))


@pytest.mark.promise("core.events")
def test_every_event_is_in_the_union_and_is_sent_by_some_module() -> None:
    sent: set[str | None] = set()
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) != "isinstance":
                sent |= {
                    _name(node.func),
                    *(_name(argument) for argument in node.args),
                }  # built, or built by a reporter
    declared = {each.__name__ for each in get_args(events.Event)}
    assert declared == {
        name
        for name, value in vars(events).items()
        if isinstance(value, type) and is_dataclass(value) and not name.startswith("_")
    }
    assert declared - sent == set()
