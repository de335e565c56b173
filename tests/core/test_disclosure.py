"""What a remote caller may see of an error: every class, with every field that could carry a secret."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast.errors
from holdfast.core.disclosure import disclosed, family, rpc_error
from holdfast.errors import (
    ChildDied,
    ErrorAnswer,
    HoldfastError,
    LimitReached,
    NoBackend,
    SessionReplaced,
    UnstorableValue,
)
from holdfast.gateway.calls.results import ERROR, tool_error
from holdfast.gateway.fronts.refusals import Refused

POISON = "POISON"
POISONED: dict[str, Any] = {
    name: f"{POISON} {name}"
    for name in ("remedy", "stderr_tail", "store", "session", "new_session", "phase", "kind", "id")
}


def _classes(kind: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__ == holdfast.errors.__name__:
            yield from _classes(each)


def poisoned(kind: type[HoldfastError]) -> HoldfastError:
    """An error of this class whose every text is a secret; as a driver's attribute may be, too."""
    extra: dict[str, Any] = {"path": f"{POISON} path"} if kind is UnstorableValue else {}
    what = f"{POISON} /usr/bin/prog --dsn postgresql://u:secret@10.0.0.7/db"
    error = kind(what, server="files", retry_after=2.5, attempts=3, status=500, exit_code=3, **POISONED, **extra)
    for name in ("command", "url", "address", "path"):
        setattr(error, name, f"{POISON} {name}")
    return error


@pytest.mark.promise("gateway.disclosure")
@pytest.mark.parametrize("kind", sorted(set(_classes(HoldfastError)), key=lambda kind: kind.__name__))
def test_no_text_of_an_error_reaches_a_caller(kind: type[HoldfastError]) -> None:
    error = poisoned(kind)
    refused = Refused.because(error)
    seen = [rpc_error(error), tool_error(error), refused.error, [value.decode() for _, value in refused.headers]]
    assert POISON not in json.dumps(seen)
    assert "secret" not in json.dumps(seen)
    assert "10.0.0.7" not in json.dumps(seen)
    fields = tool_error(error)["_meta"][ERROR]
    assert fields == {
        "family": family(error),
        "kind": kind.__name__,
        "server": "files",
        "retry_after": 2.5,
        "attempts": 3,
    }
    assert disclosed(error).text.strip("; ")


@pytest.mark.promise("gateway.disclosure")
def test_a_class_that_is_new_is_worded_like_its_family() -> None:
    class Novel(ChildDied):
        """A class that the table does not know."""

    novel = Novel(POISON, server="files")
    assert disclosed(novel).text.removeprefix("Novel") == disclosed(ChildDied(POISON, server="files")).text[9:]
    assert disclosed(novel).fields["kind"] == "Novel"


@pytest.mark.promise("gateway.disclosure")
def test_callers_read_what_they_can_do() -> None:
    assert "call again to continue" in disclosed(SessionReplaced(POISON, server="x")).text
    gone = disclosed(NoBackend(POISON, server="x", retry_after=2.5)).text
    assert "'x' is not running" in gone
    assert "wait 2.5 s" in gone
    assert "it may have been executed" in disclosed(ChildDied(POISON, server="x")).text
    assert "(5 of 5)" in disclosed(LimitReached(POISON, limit=5, actual=5)).text


@pytest.mark.promise("gateway.disclosure")
def test_a_backends_own_answer_is_passed_on() -> None:
    answer = ErrorAnswer(POISON, message="no such page", data={"page": 7}, code=-32042, server="x")
    assert rpc_error(answer) == {"code": -32042, "message": "no such page", "data": {"page": 7}}
    assert POISON not in json.dumps(rpc_error(ErrorAnswer(POISON, code=-32042)))
