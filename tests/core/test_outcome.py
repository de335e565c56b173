"""The outcome of a request in one word."""

import pytest

from holdfast.core.outcome import Outcome, outcome_of_error, outcome_of_result
from holdfast.errors import (
    AnswerTimeout,
    ConfigError,
    ConnectFailed,
    ErrorAnswer,
    Forbidden,
    HoldfastError,
    SessionReplaced,
)


@pytest.mark.promise("observe.outcomes")
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConnectFailed("x"), Outcome.UNAVAILABLE),
        (AnswerTimeout("x"), Outcome.UNKNOWN),
        (SessionReplaced("x"), Outcome.REJECTED),
        (Forbidden("x"), Outcome.REJECTED),
        (ErrorAnswer("x", code=-32602), Outcome.ERROR),
        (ConfigError("x"), Outcome.FAILED),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_family_of_errors_has_an_outcome(error: HoldfastError, outcome: Outcome) -> None:
    assert outcome_of_error(error) is outcome


@pytest.mark.promise("observe.outcomes")
def test_a_tool_that_failed_has_answered() -> None:
    assert outcome_of_result({"isError": True}) is Outcome.TOOL_ERROR
    assert outcome_of_result({"isError": "true"}) is Outcome.OK
    assert outcome_of_result({}) is Outcome.OK
