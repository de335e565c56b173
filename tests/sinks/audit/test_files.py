"""The file of the audit trail: whole lines, rotation, several writers, a full disk."""

import os
import threading
from pathlib import Path

import pytest

from holdfast.sinks.audit.files import AuditFile


@pytest.mark.promise("observe.audit-file")
def test_a_full_file_gets_a_number_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    file = AuditFile(path, max_bytes=10, keep=2)
    for number in range(8):
        file.write(b"line %d\n" % number)
    file.close()
    assert path.with_name("audit.jsonl.1").read_bytes() == b"line 6\nline 7\n"
    assert path.with_name("audit.jsonl.2").read_bytes() == b"line 4\nline 5\n"
    assert sorted(each.name for each in path.parent.iterdir()) == ["audit.jsonl.1", "audit.jsonl.2"]
    assert path.with_name("audit.jsonl.1").stat().st_mode & 0o777 == 0o600


@pytest.mark.promise("observe.audit-file")
def test_a_line_that_a_killed_process_began_is_ended_first(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"whole\nbeg")
    file = AuditFile(path, max_bytes=1000, keep=2)
    file.write(b"next\n")
    file.close()
    assert path.read_bytes() == b"whole\nbeg\nnext\n"


@pytest.mark.promise("observe.audit-file")
def test_writers_of_one_file_lose_no_line_while_it_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    def write(who: int) -> None:
        file = AuditFile(path, max_bytes=500, keep=1000)
        for number in range(200):
            file.write(b"%d %d\n" % (who, number))
        file.close()

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [line for each in tmp_path.iterdir() for line in each.read_text().splitlines()]
    assert sorted(found) == sorted(f"{who} {number}" for who in range(4) for number in range(200))


@pytest.mark.promise("observe.audit-file")
def test_what_a_full_disk_took_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, max_bytes=1000, keep=2)
    file.write(b"one\n")
    real, calls = os.write, 0

    def full(fd: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real(fd, bytes(data[:3]))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"two is longer\n")
    assert path.read_bytes() == b"one\n"
    file.write(b"three\n")
    file.close()
    assert path.read_bytes() == b"one\nthree\n"
