"""The exception tree: four families, fields instead of prose, and safe to send between processes."""

import pickle

import pytest

import holdfast
from holdfast import errors

FAMILIES = {
    "Unavailable": "ConnectFailed StartTimeout StoreDown CircuitOpen PoolFull Busy NoBackend RunsElsewhere",
    "OutcomeUnknown": "ConnectionLost AnswerTimeout BadAnswer ParkedElsewhere ChildDied WriteUnsettled",
    "Rejected": "ErrorAnswer Unauthorized SessionReplaced SessionExpired Forbidden NotFound Conflict WrongPhase Ended "
    "QuestionRefused LimitReached CorruptRecord",
    "UsageError": "LeaseClosed CallbackFailed UnstorableValue ConfigError",
}
_ALL = [name for members in FAMILIES.values() for name in members.split()]


@pytest.mark.promise("errors.tree")
def test_the_tree_is_exactly_the_four_families_and_all_of_it_is_public() -> None:
    for family, members in FAMILIES.items():
        parent = getattr(holdfast, family)
        assert parent.__bases__ == (holdfast.HoldfastError,)
        assert {cls.__name__ for cls in parent.__subclasses__() if cls is getattr(errors, cls.__name__, None)} == set(
            members.split()
        )
    public = {name for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, Exception)}
    assert public - {"HoldfastError", *FAMILIES} == set(_ALL)


@pytest.mark.promise("errors.tree")
@pytest.mark.parametrize("name", _ALL)
def test_an_error_keeps_its_fields_and_survives_pickling(name: str) -> None:
    cls = getattr(errors, name)
    extra = {"path": "data.x"} if name == "UnstorableValue" else {}
    error = cls("it broke", remedy="mend it", server="github", status=503, retry_after=2.0, stderr_tail="boom", **extra)
    assert str(error) == "it broke; mend it\n--- last lines of stderr ---\nboom"
    assert (error.server, error.status, error.retry_after, error.session) == ("github", 503, 2.0, None)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert vars(again) == vars(error)
    assert (str(again), again.args) == (str(error), error.args)


SECRET = "hunter2"


@pytest.mark.promise("errors.public")
@pytest.mark.parametrize("name", [*_ALL, *FAMILIES, "HoldfastError"])
def test_what_a_model_may_read_is_kind_server_and_remedy_and_no_secret(name: str) -> None:
    cls = getattr(errors, name)
    extra = {"path": SECRET} if name == "UnstorableValue" else {}
    error = cls(
        f"ran: npx --token {SECRET}", remedy=f"chmod +x /home/{SECRET}", server="github", status=503, retry_after=2.0,
        attempts=3, stderr_tail=SECRET, session=SECRET, new_session=SECRET, store=SECRET, id=SECRET, **extra,
    )  # fmt: skip
    text = error.public_text()
    assert text.startswith(f"{name}: 'github' ")
    assert "HTTP 503" in text
    assert "wait 2 s" in text
    assert cls.advice in text
    assert SECRET not in text
    fields = error.public_fields()
    assert SECRET not in str(fields)
    assert fields["error"] == name
    assert (fields["status"], fields["attempts"], fields["retry_after"]) == (503, 3, 2.0)
    # Where nobody gave the server a name it is called by its address, and that is not for everybody.
    assert "example.com" not in cls("x", server="https://example.com/mcp", **extra).public_text()


@pytest.mark.promise("errors.public")
def test_a_servers_own_words_are_public() -> None:
    error = holdfast.errors.ErrorAnswer("it broke", message="Unknown tool: adde", code=-32602, server="calc")
    assert "Unknown tool: adde" in error.public_text()
