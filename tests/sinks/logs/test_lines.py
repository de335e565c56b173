"""Which events are lines: all of them are accounted for, and what they show is safe to show."""

import logging
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

from holdfast import events
from holdfast.sinks.logs.lines import fields_of, line_of

HOSTILE = "evil\x1b[2J\r\n2026-01-01T00:00:00Z ERROR forged\u202e"
SILENT = {
    # logged where they happen, with more than the event holds
    events.BackendFailed, events.BackendItemLeftOut, events.MemoryFailed, events.SessionNotOffered,
    events.StoreWarned, events.StrayMessage,
    # too many, or nobody's business: what a program writes to stderr may hold anything
    events.ChildStderr, events.ServerCounted, events.StoreAnswered, events.TurnTaken,
}  # fmt: skip
EVENTS: tuple[type[Any], ...] = get_args(events.Event)


def made(kind: type[Any], text: str) -> Any:
    """An event of the kind with this text wherever it has one."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in fields(kind):
        hint = str(hints[field.name])
        if field.name == "trace":
            values[field.name] = f"00-{'a' * 32}-{'b' * 16}-01"
        elif "tuple" in hint:
            values[field.name] = (text,)
        elif "Mapping" in hint:
            values[field.name] = {"argument": text}
        elif "str" in hint:
            values[field.name] = text
        else:
            values[field.name] = 1
    return kind(**values)


@pytest.mark.promise("observe.logs")
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_is_a_line_or_is_left_out_for_a_reason(kind: type[Any]) -> None:
    event = made(kind, "x")
    if kind is events.ConfigurationRead:
        assert line_of(event) is None  # the mistake is logged with its text
        event = events.ConfigurationRead(1.0, "digest", None, ("a",), (), ())
    assert (line_of(event) is None) == (kind in SILENT)


@pytest.mark.promise("observe.logs")
@pytest.mark.parametrize("kind", [each for each in EVENTS if each not in SILENT], ids=lambda kind: kind.__name__)
def test_a_hostile_name_stays_on_its_line_and_a_record_takes_all_fields(kind: type[Any]) -> None:
    event = made(kind, HOSTILE)
    if (found := line_of(event)) is None:
        assert kind is events.ConfigurationRead
        return
    name, line = found
    assert line.text.isprintable(), line.text
    record = logging.getLogger(name).makeRecord(name, line.level, "", 0, line.text, (), None, extra=fields_of(event))
    assert record.event == kind.__name__  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.promise("observe.logs")
def test_session_ids_of_servers_are_shortened_and_arguments_are_not_shown() -> None:
    secret = "0123456789-whole-id"
    for kind in EVENTS:
        event = made(kind, secret)
        shown = {**fields_of(event), "text": line_of(event)}
        if kind in (events.HandshakeDone, events.LinkClosed, events.RequestSent, events.LinkSessionReplaced):
            for name in ("session", "old", "new"):
                assert shown.get(name, "0123…") == "0123…"
        assert "argument" not in str(shown)
    replaced = events.LinkSessionReplaced(1.0, "s", secret, secret, 2, True, False)
    assert secret not in f"{fields_of(replaced)} {line_of(replaced)}"
