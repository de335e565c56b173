"""`make bench-peers [ARGS="--quick --only NAME,NAME"]`: compare Holdfast with other gateways in one run.

Each peer runs alone, in front of a fresh `backend.py`: once for speed and counters, once for memory and for a backend that
loses its sessions. Where a measurement fails, the table shows the reason. The results are written to docs/benchmarks.md and
docs/peers.svg, except with `--quick` or `--only`.
"""

import argparse
import asyncio
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress

from benchmarks.peers import chart, probe, ways
from benchmarks.peers.ways import NotStarted, Peer, Running

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DOC = ROOT / "docs" / "benchmarks.md"
CHART = ROOT / "docs" / "peers.svg"
LOADS = {"1": (1, 64), "8": (8, 64), "32": (32, 64), "64 KB": (8, 65_536)}
COUNTERS = {"2025": "legacy", "default": "auto", "2026": "2026-07-28"}
FIGURES = {
    "requests/s at 1": ("1:rps", "more"),
    "requests/s at 8": ("8:rps", "more"),
    "requests/s at 32": ("32:rps", "more"),
    "64 KB at 8": ("64 KB:rps", "more"),
    "p50 at 8": ("8:p50", "less"),
    "p99 at 8": ("8:p99", "less"),
    "requests a call": ("requests", "less"),
    "initialize + list": ("opening", "less"),
    "KB an idle session": ("idle", "less"),
}

LEGEND = (
    "Each gateway runs alone in front of the same backend (`benchmarks/peers/backend.py`: raw, 2025, JSON, sessions), each in an "
    "environment of its own. Tool calls a second on one session over 1, 8 and 32 connections, and over 8 with 64 KB there "
    "and back; load from a process of its own, {rounds}; every answer's body is checked, "
    "and a round with one wrong answer is no result. *Requests a call*: at the backend, on a session in use. *Backend "
    "sessions*: opened for a client session of initialize, tools/list and 5 calls. *KB*: resident memory of all its "
    "processes for a session that was used once and left alone. *Counter*: three calls of a counter by one of two clients "
    "in turn, as a 2025 client, as `mcp.Client` by default and as one pinned to 2026-07-28; `1 2 3` is a session that holds."
)


class Row:
    """The results of one peer: figures, and texts where there are none."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.loads: dict[str, list[dict[str, float]]] = {}
        self.words: dict[str, str] = {}

    def figure(self, load: str, key: str) -> float | None:
        found = self.loads.get(load)
        return median(each[key] for each in found) if found else None


@contextmanager
def backend() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "backend.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.communicate(timeout=10)


@contextmanager
def running(start: ways.Start) -> Iterator[tuple[Running, probe.Backend]]:
    """Run a peer, its backend and a folder until the end of the block."""
    with tempfile.TemporaryDirectory() as folder, backend() as url, start(url, Path(folder)) as peer:
        yield peer, probe.Backend(url)


def measure(peer: Running, connections: int, size: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.peers.load", peer.url, str(connections), str(seconds), str(size)]
    try:
        done = subprocess.run(
            [*command, json.dumps(peer.headers)], capture_output=True, text=True, timeout=seconds + 60, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise probe.Wrong("the load did not end") from None
    if done.returncode:
        raise probe.Wrong(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)


def ask(row: Row, key: str, question: Callable[[], Awaitable[str]], deadline: float = 60) -> None:
    """Put the result of a measurement, or the reason why it failed, into the row."""

    async def bounded() -> str:
        return await asyncio.wait_for(question(), deadline)

    try:
        row.words[key] = asyncio.run(bounded())
    except Exception as error:
        row.words[key] = f"no result ({reason(error)})"


def reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join((str(error) or type(error).__name__).split()).replace("|", "/")
    if found := re.match(r"AssertionError: \(?(\d{3})\b", text):
        return f"HTTP {found[1]}"
    return text[:100]


def speed_and_state(row: Row, rounds: int, seconds: float, step: Callable[[], None]) -> None:
    few = row.peer.requests < 1_000
    with running(row.peer.start) as (peer, behind):
        at = (peer.url, peer.headers)

        async def opening() -> str:
            return f"{await probe.opening_ms(*at, 3 if few else 15):.1f}"

        async def requests() -> str:
            return f"{await probe.requests_a_call(*at, behind, 5 if few else 20):.3g}"

        ask(row, "opening", opening)
        ask(row, "requests", requests)
        ask(row, "sessions", lambda: probe.sessions_a_client(*at, behind, 2 if few else 3, 5))
        for name, mode in COUNTERS.items():
            ask(row, name, lambda mode=mode: probe.counts(*at, behind, mode))  # type: ignore[arg-type]
        step()
        for _ in range(rounds):
            for name, (connections, size) in LOADS.items():
                if f"load {name}" not in row.words:
                    try:
                        row.loads.setdefault(name, []).append(measure(peer, connections, size, seconds))
                    except probe.Wrong as error:
                        row.words[f"load {name}"] = reason(error)
                        row.loads.pop(name, None)
                step()


def memory_and_loss(row: Row, seconds: float) -> None:
    few = row.peer.requests < 1_000
    with running(row.peer.start) as (peer, behind):
        at = (peer.url, peer.headers)

        async def idle() -> str:
            limit = min(2_000, row.peer.sessions, row.peer.requests // 6)
            found, over = await probe.idle_kilobytes(*at, peer.pid, limit=limit, seconds=seconds)
            if over < 30:
                raise probe.Wrong(f"{over} sessions are too few")
            return f"{found:,.0f} (of {over:,})"

        if peer.pid:
            ask(row, "idle", idle, seconds * 3 + 60)
        else:
            row.words["idle"] = ""
        if few:
            time.sleep(61)  # its minute of requests is used up
        ask(row, "forgot", lambda: probe.after_forgetting(*at, behind), 120)
    if row.peer.named is not None:
        with running(row.peer.named) as (peer, behind):
            named = {**peer.headers, probe.NAMING_HEADER: "conversation-{client}"}
            ask(row, "named", lambda: probe.counts(peer.url, named, behind, "2026-07-28"))


def examine(peer: Peer, rounds: int, seconds: float, step: Callable[[], None]) -> Row:
    row = Row(peer)
    try:
        speed_and_state(row, rounds, seconds, step)
        memory_and_loss(row, 10 if rounds > 1 else 4)
    except (NotStarted, OSError, RuntimeError, subprocess.SubprocessError) as error:
        row.words["failed"] = str(error) or type(error).__name__
    return row


def table(rows: list[Row], rounds: int, seconds: float) -> str:
    lines = [
        "## Peers",
        "",
        LEGEND.format(
            rounds=f"median of {rounds} rounds of {seconds:g} s" if rounds > 1 else f"one round of {seconds:g} s"
        ),
        "",
        (
            "| gateway | requests/s at 1 / 8 / 32 | p50 / p99 at 8, ms | 64 KB at 8, requests/s | requests a call | "
            "backend sessions | initialize + list, ms | KB an idle session | counter: 2025 · default · 2026 | "
            "after the backend forgot the session |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if "failed" in row.words and not row.loads:
            lines.append(f"| {row.peer.title} | not started: {row.words['failed']} {'| ' * 9}|")
            continue
        words = row.words.get
        speeds = " / ".join(_speed(row, name) for name in ("1", "8", "32"))
        p50, p99 = row.figure("8", "p50"), row.figure("8", "p99")
        latency = f"{p50:.2f} / {p99:.2f}" if p50 is not None else ""
        counters = " · ".join(words(name, "") for name in COUNTERS)
        if named := words("named"):
            counters += f" (named by a header: {named})"
        cells = [row.peer.title, speeds, latency, _speed(row, "64 KB"), words("requests", ""), words("sessions", "")]
        cells += [words("opening", ""), words("idle", words("failed", "")), counters, words("forgot", "")]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "![requests a second at 8 connections](peers.svg)", "", "Versions and settings:", ""]
    for row in rows:
        if row.peer.name != "direct":
            lines.append(f"- {row.peer.title} {row.peer.version()}: {row.peer.settings}.")
    lines += ["", *_verdict(rows)]
    return "\n".join(lines)


def _speed(row: Row, name: str) -> str:
    found = row.figure(name, "rps")
    return f"{found:,.0f}" if found is not None else f"no result ({row.words.get(f'load {name}', 'not asked')})"


def _verdict(rows: list[Row]) -> list[str]:
    """Our figures compared with the goals, and every figure in which an MCP-aware peer is better."""
    by = {row.peer.name: row for row in rows}
    if "holdfast" not in by or (ours := by["holdfast"].figure("8", "rps")) is None:
        return []
    mine = by["holdfast"]
    others = [by[name] for name in ("bare", "nginx", "fastmcp") if name in by]
    said = [f"{ours / theirs:,.2f} of {row.peer.title}" for row in others if (theirs := row.figure("8", "rps"))]
    direct = by["direct"].figure("8", "p50") if "direct" in by else None
    if direct is not None and (p50 := mine.figure("8", "p50")) is not None:
        said.append(f"p50 added over direct {p50 - direct:.2f} ms")
    ahead = [
        f"{name}: {row.peer.title} {theirs:,.3g}, Holdfast {own:,.3g}"
        for name, (key, better) in FIGURES.items()
        for row in rows
        if row.peer.mcp and row is not mine
        if (own := _number(mine, key)) is not None and (theirs := _number(row, key)) is not None
        if (theirs > own if better == "more" else theirs < own)
    ]
    lines = [f"Holdfast at 8 connections: {', '.join(said)}."] if said else []
    if any(row.peer.mcp and row is not mine for row in rows):
        lines += ["", f"MCP-aware peers ahead of Holdfast: {'; '.join(ahead) or 'none, in no figure'}."]
    return lines


def _number(row: Row, key: str) -> float | None:
    """A figure by its key: `load:measure`, or the number that words begin with."""
    load, _, measure = key.partition(":")
    if measure:
        return row.figure(load, measure)
    found = re.match(r"-?[\d,.]+", row.words.get(key, ""))
    return float(found[0].replace(",", "")) if found else None


def _write(rows: list[Row], text: str) -> None:
    machine = f"Python {platform.python_version()}, {platform.system()}, {platform.machine()}"
    block = f"<!-- begin peers -->\n{text}\n\nMade by `make bench-peers` on {machine}.\n<!-- end peers -->"
    old = DOC.read_text()
    new, found = re.subn(r"<!-- begin peers -->.*?<!-- end peers -->", lambda _: block, old, flags=re.DOTALL)
    DOC.write_text(new if found else f"{old.rstrip()}\n\n{block}\n")
    bars = [(row.peer.title.strip("*").replace("`", ""), row.figure("8", "rps"), "*" in row.peer.title) for row in rows]
    bars.sort(key=lambda bar: -(bar[1] or 0))
    CHART.write_text(chart.chart("Tool calls a second, 8 connections, one session (log scale)", bars))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-peers ARGS=…", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round each, nothing written")
    parser.add_argument("--only", default="", help=f"of {', '.join(peer.name for peer in ways.ALL)}; nothing written")
    given = parser.parse_args()
    chosen = [each for each in given.only.split(",") if each] or [peer.name for peer in ways.ALL]
    if unknown := set(chosen) - {peer.name for peer in ways.ALL}:
        parser.error(f"no peer {', '.join(sorted(unknown))}")
    rounds, seconds = (1, 1.0) if given.quick else (3, 1.5)
    peers = [peer for peer in ways.ALL if peer.name in chosen]
    rows: list[Row] = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("peers", total=len(peers) * (rounds * len(LOADS) + 2))
        for number, peer in enumerate(peers, 1):
            progress.update(task, description=peer.name)
            rows.append(examine(peer, rounds, seconds, lambda: progress.advance(task)))
            progress.update(task, completed=number * (rounds * len(LOADS) + 2))
    text = table(rows, rounds, seconds)
    print(text)
    if not given.quick and not given.only:
        _write(rows, text)


if __name__ == "__main__":
    main()
