"""How lines look."""

import json
import logging
import sys

import pytest

from holdfast.sinks.logs.formats import TEXT, TRACEBACK, JsonFormatter, TextFormatter

HOSTILE = "a\x1b[31m\r\nERROR forged\x00\u2028b\ud800"


def record(text: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("holdfast.test", logging.WARNING, "x.py", 7, text, args, None)
    vars(made).update(extra)
    made.created = 0.5
    return made


@pytest.mark.promise("observe.logs")
def test_a_json_line_is_one_line_of_ascii_with_the_fields_that_are_known() -> None:
    line = JsonFormatter().format(record("%s", HOSTILE, session="abcd", backend="b\n", password="hunter2"))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == {
        "at": "1970-01-01T00:00:00.500Z", "level": "warning", "logger": "holdfast.test", "message": HOSTILE,
        "session": "abcd", "backend": "b\n",
    }  # fmt: skip


@pytest.mark.promise("observe.logs")
def test_text_is_for_terminals_and_shows_ids_that_the_message_lacks() -> None:
    plain = TextFormatter().format(record("session abcd: %s 7", HOSTILE, session="abcd", request=7, trace_id="f" * 32))
    first, second = plain.split("\n")
    assert first.startswith("1970-01-01T00:00:00.500Z WARNING holdfast.test: session abcd: a\\u001b[31m\\r")
    assert second.startswith("    ERROR forged\\u0000\\u2028b\\ud800")
    assert second.endswith(f" request=7 trace_id={'f' * 32}")
    assert "session=" not in plain
    assert "\x1b[33mWARNING\x1b[0m" in TextFormatter(colour=True).format(record("x"))


@pytest.mark.promise("observe.logs")
def test_a_line_has_a_bound_and_a_mistake_in_its_text_does_not_cost_it() -> None:
    assert len(TextFormatter().format(record("x" * 10 * TEXT))) < TEXT + 200
    assert "could not be formatted" in json.loads(JsonFormatter().format(record("%d", "no number")))["message"]
    try:
        raise ValueError("y" * 10 * TRACEBACK)
    except ValueError:
        failed = record("failed")
        failed.exc_info = sys.exc_info()
    assert len(json.loads(JsonFormatter().format(failed))["traceback"]) == TRACEBACK + 1
    assert len(TextFormatter().format(failed)) < TRACEBACK + 1_000
