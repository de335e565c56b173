"""What users may import: few names at the top, the others in a handful of public modules, each with a docstring."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import holdfast

SRC = Path(__file__).parent.parent / "src" / "holdfast"
MODULES = ("errors", "events", "links", "stores", "state", "testing", "integrations.fastmcp", "integrations.langchain")
MOST_NAMES = 25  # at the top level, modules aside: as many as a reader can look through
PROTOCOLS = (holdfast.Store, holdfast.links.Memory)  # the docstrings of their methods stand there


def _public(module: Any) -> Iterator[tuple[str, Any]]:
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    for name in names:
        yield f"{module.__name__}.{name}", getattr(module, name)


def _is_described(owner: type, name: str, member: Any) -> bool:
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    if not inspect.isfunction(function):
        return True
    others = (getattr(base, name, None) for base in (*owner.__mro__[1:], *PROTOCOLS))
    return bool(function.__doc__) or any(getattr(other, "__doc__", None) for other in others)


@pytest.mark.promise("house.public-api")
def test_the_top_level_has_few_names_and_each_can_be_imported() -> None:
    names = [name for name in holdfast.__all__ if not inspect.ismodule(getattr(holdfast, name))]
    assert len(names) <= MOST_NAMES
    assert set(holdfast.__all__) <= set(dir(holdfast))


@pytest.mark.promise("house.public-api")
def test_every_event_error_and_rule_is_public() -> None:
    events = {name for name, value in vars(holdfast.events).items() if is_dataclass(value) and name[0] != "_"}
    assert "LinkSessionReplaced" in events
    assert issubclass(holdfast.errors.Busy, holdfast.Unavailable)
    assert holdfast.links.VerdictRule.__doc__
    assert holdfast.links.Verdict.__doc__


@pytest.mark.promise("house.public-api")
@pytest.mark.parametrize("name", ["", *MODULES])
def test_every_public_name_says_on_hover_what_it_is(name: str) -> None:
    silent: list[str] = []
    for path, value in _public(import_module(f"holdfast.{name}".rstrip("."))):
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        own = value.__doc__ or ""
        if not own or (is_dataclass(value) and own.startswith(f"{value.__name__}(")):
            silent.append(path)
        if inspect.isclass(value):
            members = {key: member for key, member in vars(value).items() if not key.startswith("_")}
            silent += [f"{path}.{key}" for key, member in members.items() if not _is_described(value, key, member)]
    assert silent == []


def _functions(path: str, value: Any) -> Iterator[tuple[str, Any, str]]:
    """The public functions of a name, each with the docstrings that a reader of its parameters sees."""
    if not inspect.isclass(value):
        yield path, value, inspect.getdoc(value) or ""
        return
    for key, member in vars(value).items():
        function = getattr(member, "__func__", member)
        if not inspect.isfunction(function) or (key.startswith("_") and key not in ("__init__", "__call__")):
            continue
        if "__dataclass_fields__" in vars(value) and key == "__init__":
            continue  # its fields are described where they are declared
        others = (getattr(getattr(base, key, None), "__doc__", None) or "" for base in PROTOCOLS)
        yield f"{path}.{key}", function, " ".join((value.__doc__ or "", function.__doc__ or "", *others))


@pytest.mark.promise("house.public-api")
@pytest.mark.parametrize("name", ["stores", "state", "testing"])
def test_every_public_parameter_is_described(name: str) -> None:
    silent: list[str] = []
    module = import_module(f"holdfast.{name}")
    for path, value in _public(module):
        if not (inspect.isclass(value) or inspect.isfunction(value)) or getattr(value, "_is_protocol", False):
            continue
        for where, function, described in _functions(path, value):
            words = set(re.findall(r"\w+", described))
            # `kind` and `id` name a record everywhere; what middleware is called with is the framework's matter.
            known = {"self", "cls", "kind", "id", "ctx", "call_next"}
            parameters = set(inspect.signature(function).parameters) - known
            silent += [f"{where}({each})" for each in parameters if each not in words]
    assert silent == []


@pytest.mark.promise("house.public-api")
def test_modules_import_names_from_where_they_are() -> None:
    """The top level is for users: inside, it would make every module depend on all others."""
    for path in SRC.rglob("*.py"):
        if path == SRC / "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "holdfast":
                assert {each.name for each in node.names} <= {"errors", "events"}, path
