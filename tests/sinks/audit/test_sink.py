"""The audit sink: what it writes, and what it does when nothing can be written."""

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.exact import Number
from holdfast.events import CallerRefused, Event, RequestServed
from holdfast.sinks.audit.entries import Entries
from holdfast.sinks.audit.files import AuditFile
from holdfast.sinks.audit.sink import AuditSink
from holdfast.sinks.audit.verify import verify
from tests.deadlines import patience


def call(number: int = 0, arguments: dict[str, Any] | None = None) -> Event:
    return RequestServed(
        1.0, "tools/call", "shop__add", "shop", 0.01, "ok", None, None, "a1b2", "alice", "agent 1", number, "2025",
        "2025-11-25", "tcp", None, arguments,
    )  # fmt: skip


class Disk:
    """A writer whose disk can be full."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.full = False
        self.tried = threading.Semaphore(0)

    def write(self, lines: bytes) -> None:
        self.tried.release()
        if self.full:
            raise OSError(28, "No space left on device")
        self.lines += lines.splitlines()

    def close(self) -> None:
        pass

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.mark.promise("observe.audit")
def test_names_and_sizes_of_arguments_are_written_and_no_values(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    sink = AuditSink(AuditFile(path, max_bytes=10_000, keep=1), Entries())
    sink(call(arguments={"article": "tea", "price": Number("1.50"), "password": "hunter2", "odd": "\ud800"}))
    sink(CallerRefused(2.0, 401, "a valid bearer token is needed", None, "127.0.0.1"))
    sink.close()
    began, added, refused, ended = (json.loads(line) for line in path.read_text().splitlines())
    assert (began["type"], ended["type"]) == ("audit_began", "audit_ended")
    assert added["arguments"] == {
        "article": {"bytes": 5},
        "price": {"bytes": 6},
        "password": {"bytes": 9},
        "odd": {"bytes": 8},
    }
    assert (added["principal"], added["outcome"], added["at"]) == ("alice", "ok", "1970-01-01T00:00:01.000Z")
    assert (refused["type"], refused["status"]) == ("refused", 401)
    assert "hunter2" not in path.read_text()
    assert verify(("", line) for line in path.read_bytes().splitlines()).holds


@pytest.mark.promise("observe.audit")
def test_values_are_written_where_configured_and_secrets_never() -> None:
    disk = Disk()
    sink = AuditSink(disk, Entries(values=True, redact=("*password*", "api_key")))
    long = "x" * 100_000
    arguments = {"user": {"name": "bob", "Password": "hunter2", "keys": [{"api_key": "s3"}]}, "long": long, "b": "tea"}
    sink(call(arguments=arguments))
    sink.close()
    shown = disk.entries[1]["arguments"]
    assert shown["user"]["value"] == {"name": "bob", "Password": "[redacted]", "keys": [{"api_key": "[redacted]"}]}
    assert shown["long"]["bytes"] == 100_002
    assert len(shown["long"]["value"]) < 5_000
    assert shown["b"]["value"] == "tea"


@pytest.mark.promise("observe.audit")
def test_what_a_full_disk_takes_is_counted_and_reported_by_the_trail(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    sink = AuditSink(disk, Entries())
    sink(call(0))
    assert disk.tried.acquire(timeout=patience(10))
    disk.full = True
    with caplog.at_level(logging.WARNING, "holdfast.audit"):
        for number in range(1, 4):
            sink(call(number))
            assert disk.tried.acquire(timeout=patience(10))
        assert not sink.is_crowded
        disk.full = False
        sink(call(4))
        sink.close()
    assert sink.dropped == 3
    assert [entry["type"] for entry in disk.entries] == ["audit_began", "call", "audit_gap", "call", "audit_ended"]
    assert disk.entries[2]["dropped"] == 3
    assert verify(("", line) for line in disk.lines).holds
    assert len([record for record in caplog.records if "can't be written" in record.message]) == 1


@pytest.mark.promise("observe.audit")
def test_where_each_call_must_be_written_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sinks.audit.sink.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("holdfast.sinks.audit.sink.QUEUED", 20)
    disk = Disk()
    disk.full = True
    sink = AuditSink(disk, Entries(), when_full="block")
    sink(call(0))
    assert disk.tried.acquire(timeout=patience(10))
    for number in range(1, 12):
        sink(call(number))
    assert sink.is_crowded
    disk.full = False
    sink.close()
    assert [entry["id"] for entry in disk.entries if entry["type"] == "call"] == list(range(12))
    assert sink.dropped == 0
