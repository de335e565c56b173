"""Verifies audit lines: does each follow the one before it in its chain, unchanged?"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.sinks.audit.chain import FIRST, hash_of, parts_of
from holdfast.sinks.audit.entries import Entry

END = "audit_ended"  # the type of a chain's last line, if its process ended in order


@dataclass(slots=True)
class ChainReport:
    """What was found of one chain."""

    id: str
    first: int
    """The number of its first line here. Over 0, the lines before it are in files that were not given."""
    last: int
    lines: int = 1
    ended: bool = False
    """Its process ended in order. Otherwise it still runs or was killed, and lines at the end may be missing."""
    at: str = ""
    """The time of the last line."""
    hash: str = ""
    dropped: int = 0
    """Events that could not be written, as the trail itself says."""


@dataclass(slots=True)
class Report:
    """What was found."""

    lines: int = 0
    chains: dict[str, ChainReport] = field(default_factory=dict[str, ChainReport])
    faults: list[str] = field(default_factory=list[str])
    torn: list[str] = field(default_factory=list[str])
    """Lines that are not whole: a killed process began them."""

    @property
    def holds(self) -> bool:
        return not self.faults


def verify(lines: Iterable[tuple[str, bytes]]) -> Report:
    """Verify lines, given with their places, the oldest first."""
    report = Report()
    for where, line in lines:
        if line.strip():
            _take(report, where, line)
    return report


def _take(report: Report, where: str, line: bytes) -> None:
    parts = parts_of(line)
    entry = None if parts is None else _entry(parts[0])
    if parts is None or entry is None:
        report.torn.append(where)
        return
    report.lines += 1
    body, hashed = parts
    id, seq, prev = str(entry.get("chain")), entry.get("seq"), entry.get("prev")
    if not isinstance(seq, int) or hash_of(body) != hashed:
        report.faults.append(f"{where}: the line was changed: its hash is another one")
        return
    chain = report.chains.get(id)
    if chain is None:
        chain = report.chains[id] = ChainReport(id, seq, seq, 0)
        if seq == 0 and prev != FIRST:
            report.faults.append(f"{where}: the first line of chain {id} follows another one")
    elif seq != chain.last + 1:
        expected = chain.last + 1
        what = f"lines {expected} to {seq - 1} are missing" if seq > expected else "it stands in another place"
        report.faults.append(f"{where}: line {seq} of chain {id} follows line {chain.last}: {what}")
    elif prev != chain.hash:
        report.faults.append(f"{where}: line {seq} of chain {id} does not follow the line before it, which was changed")
    if seq < chain.last:
        return  # what follows is compared with the line that it followed when it was written
    chain.last, chain.hash, chain.at = seq, hashed, str(entry.get("at"))
    chain.lines += 1
    chain.ended = entry.get("type") == END
    dropped = entry.get("dropped")
    chain.dropped += dropped if isinstance(dropped, int) else 0


def _entry(body: bytes) -> Entry | None:
    try:
        found: Any = json.loads(body)
    except ValueError:
        return None
    return cast("Entry", found) if isinstance(found, dict) else None
