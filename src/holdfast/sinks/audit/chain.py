"""The chain of one process's audit lines: each line has its number, the hash of the line before, and its own hash.

A line is `{…,"chain":"…","seq":7,"prev":"…","hash":"…"}`; its hash is the SHA-256 of it without `,"hash":"…"`. Who
changes, removes or swaps a line breaks the chain after it. Lines of several processes may stand in one file.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from holdfast.sinks.audit.entries import json_of

FIRST = "0" * 64  # the hash before the first line
_HASH = b',"hash":"'
_TAIL = len(_HASH) + 64 + len(b'"}')


class Chain:
    """Makes the lines of one chain."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self._seq = 0
        self._prev = FIRST

    @property
    def is_begun(self) -> bool:
        return self._seq > 0

    def mark(self) -> tuple[int, str]:
        """Where the chain is."""
        return self._seq, self._prev

    def back_to(self, mark: tuple[int, str]) -> None:
        """Take back the lines since then: they were not written."""
        self._seq, self._prev = mark

    def line(self, entry: Mapping[str, Any]) -> bytes:
        """The next line, with its newline."""
        body = json_of({**entry, "chain": self.id, "seq": self._seq, "prev": self._prev}).encode()
        hashed = hash_of(body)
        self._seq += 1
        self._prev = hashed
        return body[:-1] + _HASH + hashed.encode() + b'"}\n'


def hash_of(body: bytes) -> str:
    """The hash of a line without its hash."""
    return hashlib.sha256(body).hexdigest()


def parts_of(line: bytes) -> tuple[bytes, str] | None:
    """A line without its hash, and the hash; None if it has not the form of one."""
    line = line.rstrip(b"\r\n")
    tail = line[-_TAIL:]
    if not tail.startswith(_HASH) or not tail.endswith(b'"}'):
        return None
    return line[:-_TAIL] + b"}", tail[len(_HASH) : -2].decode("latin-1")
