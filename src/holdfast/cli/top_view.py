"""The screen of `holdfast top`: gateways, their backends, the sessions that were used last."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.cli.output import aligned, moment
from holdfast.cli.terminal import BOLD, DIM, RED, YELLOW, Styled, cut, inline
from holdfast.core.values import members
from holdfast.gateway.admin.processes import GatewayProcess

_GATEWAYS = ("gateway", "sessions", "open", "calls/s", "p50", "p99", "replaced", "unknown")
_BACKENDS = ("backend", "gateway", "state", "era", "open", "calls/s", "p99", "replaced", "unknown")
_SESSIONS = ("session", "principal", "client", "era", "idle", "open", "backends")
_GATEWAY_FIGURES, _BACKEND_FIGURES = 64, 67  # columns of what stands beside a name; a long name gives way to it


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway process, with its snapshot where it could be had, or why not."""

    process: GatewayProcess
    snapshot: Mapping[str, Any] | None
    why: str | None

    def to_json(self) -> dict[str, Any]:
        process = self.process
        record = {key: value for key, value in process.data.items() if key not in ("admin", "place")}
        return {
            "process": process.id,
            "address": process.address,
            "pid": process.pid,
            "host": process.host,
            "seen": process.seen,
            "why_no_snapshot": self.why,
            "snapshot": self.snapshot,
            "record": record,
        }

    @property
    def figures(self) -> Mapping[str, Any]:
        """What is known: the snapshot, or what the record says."""
        if self.snapshot is not None:
            return self.snapshot
        return {"live_sessions": self.process.data.get("sessions"), "backends": self.process.data.get("backends")}


def screen(found: list[Gateway], url: str, width: int | None, height: int | None) -> list[str | Styled]:
    """The lines, at most `height` of at most `width` columns; sessions give way first, then backends."""
    shown = [_cut(line, width) for line in _lines(found, url, width, height or 10**9)]
    return shown if height is None else shown[:height]


def _cut(line: str | Styled, width: int | None) -> str | Styled:
    text = inline(line if isinstance(line, str) else line.text)
    text = text if width is None else cut(text, width)
    return text if isinstance(line, str) else Styled(text, line.style)


def _lines(found: list[Gateway], url: str, width: int | None, height: int) -> Iterator[str | Styled]:
    count = f"{len(found)} gateway{'' if len(found) == 1 else 's'}"
    head = f"holdfast top: {count} on {url}" if found else f"holdfast top: no gateway uses {url}"
    yield Styled(head, BOLD)
    left = height - 1
    if not found:
        return
    for number, (lines, share) in enumerate(_tables(found, width)):
        room = left - 1 if number == 2 else int((left - 1) * share)
        if room < 2:
            return
        yield ""
        yield Styled(lines[0][0], BOLD)
        body = lines[1:] if len(lines) <= room else lines[1 : room - 1]
        for text, style in body:
            yield Styled(text, style) if style else text
        left -= 2 + len(body)
        if len(lines) - 1 > len(body):
            yield Styled(f"… {len(lines) - 1 - len(body)} more", DIM)
            left -= 1


def _tables(found: list[Gateway], width: int | None) -> Iterator[tuple[list[tuple[str, str]], float]]:
    """The three tables, as lines with their styles, and the share of the free lines that each may take."""
    yield _gateways(found, width), 0.4
    yield _backends(found, width), 0.6
    yield _sessions(found, width), 1.0


def _gateways(found: list[Gateway], width: int | None) -> list[tuple[str, str]]:
    rows = [(_name(each.process.name, width, _GATEWAY_FIGURES), *_of_gateway(each.figures)) for each in found]
    lines = [(line, "") for line in aligned(_GATEWAYS, rows, width, _GATEWAYS)]
    notes = [
        (f"  {each.process.name}: from its record of {moment(each.process.seen)}: {each.why}", YELLOW)
        for each in found
        if each.why is not None
    ]
    return lines + notes


def _of_gateway(figures: Mapping[str, Any]) -> tuple[str, ...]:
    calls = members(figures.get("calls"))
    return (
        _number(figures.get("live_sessions")),
        _number(figures.get("in_flight")),
        _rate(calls.get("per_second")),
        _milliseconds(calls.get("p50")),
        _milliseconds(calls.get("p99")),
        _number(figures.get("replaced")),
        _number(figures.get("unknown")),
    )


def _backends(found: list[Gateway], width: int | None) -> list[tuple[str, str]]:
    rows: list[tuple[str, ...]] = []
    styles: list[str] = []
    for each in found:
        for name, known in members(each.figures.get("backends")).items():
            backend = members(known)
            rows.append(
                (
                    _name(name, width, _BACKEND_FIGURES),
                    each.process.name,
                    _state(backend),
                    str(backend.get("era") or "?"),
                    _number(backend.get("in_flight")),
                    _rate(backend.get("per_second")),
                    _milliseconds(backend.get("p99")),
                    _number(backend.get("replaced")),
                    _number(backend.get("unknown")),
                )
            )
            styles.append(RED if backend.get("state") == "down" else "")
    return list(
        zip(
            aligned(_BACKENDS, rows, width, [head for head in _BACKENDS if head != "gateway"]),
            ("", *styles),
            strict=True,
        )
    )


def _sessions(found: list[Gateway], width: int | None) -> list[tuple[str, str]]:
    known = [members(session) for each in found for session in each.figures.get("sessions") or ()]
    known.sort(key=lambda session: _seconds(session.get("idle_seconds")))
    rows = [
        (
            str(session.get("session")),
            str(session.get("principal")),
            str(session.get("client")),
            str(session.get("era")),
            f"{_seconds(session.get('idle_seconds')):.0f} s",
            _number(session.get("in_flight")),
            ", ".join(map(str, session.get("backends") or ())),
        )
        for session in known
    ]
    return [(line, "") for line in aligned(_SESSIONS, rows, width, ("era", "idle", "open"))]


def _name(name: str, width: int | None, figures: int) -> str:
    return name if width is None else cut(inline(name), max(width - figures, 10))


def _state(backend: Mapping[str, Any]) -> str:
    """Up or down, and its circuit if that is not closed."""
    circuit = backend.get("circuit")
    return f"{backend.get('state')}" + (f", {circuit}" if circuit not in (None, "closed") else "")


def _number(value: object) -> str:
    return str(value) if isinstance(value, int) else "?"


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _rate(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, int | float) else "?"


def _milliseconds(value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"
