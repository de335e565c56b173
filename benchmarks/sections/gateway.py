"""The gateway compared with a bare proxy and nginx in front of the same echo server: throughput, latency, memory."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.sections.links import echo_server

BENCHMARKS = Path(__file__).parent.parent
HOLDFAST = str(Path(sys.executable).parent / "holdfast")
CONNECTIONS = (1, 8, 32)
SESSIONS = 5_000
GOAL_RATIO, GOAL_KB = 0.8, 25.0

LEGEND = (
    "Tool calls a second through each way to the same raw echo server (2025, JSON), on one session, over 1, 8 and 32 "
    "connections, load from a process of its own; every body is checked. Median of 3 alternating rounds. The bare proxy "
    "is uvicorn and aiohttp, which pass everything on; ratios are over it."
)


@contextmanager
def started(command: list[str], url_of: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a program that prints where it listens, on a line with `url_of`, on stdout or stderr."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        line = ""
        while url_of not in line:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{command[0]} ended")
        yield line, process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=15)
        process.kill()


@contextmanager
def holdfast(backend: str, folder: Path) -> Iterator[tuple[str, int]]:
    file = folder / "gateway.json"
    entry = {"echo": {"url": backend, "era": "2025"}}
    limits = {"total": 100_000, "per_principal": 100_000}
    file.write_text(json.dumps({"mcpServers": entry, "store": "memory:", "sessions": limits}))
    with started([HOLDFAST, "serve", str(file), "--port", "0"], " at http") as (line, process):
        yield line.split(" at ")[1].strip(), process.pid


@contextmanager
def bare(backend: str) -> Iterator[tuple[str, int]]:
    process = subprocess.Popen(
        [sys.executable, str(BENCHMARKS / "servers" / "bare_proxy.py"), backend], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp", process.pid
    finally:
        process.terminate()
        process.communicate(timeout=15)


@contextmanager
def nginx(backend: str, folder: Path) -> Iterator[tuple[str, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    host = backend.split("/")[2]
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;\n"
        "events { worker_connections 1024; }\n"
        f"http {{ access_log off; keepalive_requests 100000000; upstream b {{ server {host}; keepalive 64; keepalive_requests 100000000; }} client_body_temp_path {folder}/b; "
        f"proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://b; proxy_http_version 1.1; "
        'proxy_set_header Connection ""; proxy_set_header Host $host; client_max_body_size 8m; }} }}\n'.replace(
            "}}", "}"
        )
        + "}\n"
    )
    process = subprocess.Popen([shutil.which("nginx") or "nginx", "-c", str(folder / "nginx.conf")])
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}/mcp", process.pid
    finally:
        process.terminate()
        process.communicate(timeout=15)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its children (nginx's worker)."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(entry.name) == pid or int(fields[1]) == pid:
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(url: str, connections: int, seconds: float, size: int = 64, pid: int = 0) -> dict[str, float]:
    before = cpu_seconds(pid) if pid else 0.0
    command = [sys.executable, str(BENCHMARKS / "load.py"), url, str(connections), str(seconds), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 4 + 60)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout)
    found["cpu"] = (cpu_seconds(pid) - before) / found["calls"] * 1e6 if pid else 0.0
    return found


def rss(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def per_session(url: str, pid: int, count: int) -> float:
    """KB of the gateway's memory for each idle session."""
    subprocess.run([sys.executable, str(BENCHMARKS / "load.py"), "sessions", url, "200"], check=True, timeout=300)
    before = rss(pid)
    subprocess.run([sys.executable, str(BENCHMARKS / "load.py"), "sessions", url, str(count)], check=True, timeout=600)
    return (rss(pid) - before) / count / 1024


async def run(scale: float) -> str:
    seconds = max(0.7, 3.0 * scale)
    rounds = 3 if scale >= 1 else 1
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backend = stack.enter_context(echo_server())
        ways = {"direct": (backend, 0)}
        if shutil.which("nginx"):
            ways["nginx"] = stack.enter_context(nginx(backend, folder))
        ways["bare aiohttp proxy"] = stack.enter_context(bare(backend))
        ways["holdfast"] = stack.enter_context(holdfast(backend, folder))
        found: dict[tuple[str, int], list[dict[str, float]]] = {}
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("gateway", total=len(ways) * len(CONNECTIONS) * rounds)
            for _ in range(rounds):
                for connections in CONNECTIONS:
                    for name, (url, pid) in ways.items():
                        result = await asyncio.to_thread(measure, url, connections, seconds, 64, pid)
                        found.setdefault((name, connections), []).append(result)
                        progress.advance(task)
        count = int(SESSIONS * min(1.0, max(scale, 0.1)))
        kilobytes = await asyncio.to_thread(per_session, *ways["holdfast"], count)
    return _table(ways, found, kilobytes, count)


def _table(
    ways: dict[str, tuple[str, int]], found: dict[tuple[str, int], list[dict[str, float]]], kilobytes: float, count: int
) -> str:
    def middle(name: str, connections: int, key: str) -> float:
        values = sorted(each[key] for each in found[name, connections])
        return values[len(values) // 2]

    lines = [
        "### The gateway beside proxies",
        "",
        LEGEND,
        "",
        "| way | requests/s at 1 / 8 / 32 | p50 / p99 at 8, ms | CPU a call at 8, µs | of the bare proxy at 8 |",
        "| --- | --- | --- | --- | --- |",
    ]
    base = middle("bare aiohttp proxy", 8, "rps")
    for name in ways:
        speeds = " / ".join(f"{middle(name, connections, 'rps'):,.0f}" for connections in CONNECTIONS)
        latency = f"{middle(name, 8, 'p50'):.2f} / {middle(name, 8, 'p99'):.2f}"
        cpu = f"{middle(name, 8, 'cpu'):.0f}" if ways[name][1] else ""
        lines.append(f"| {name} | {speeds} | {latency} | {cpu} | {middle(name, 8, 'rps') / base:.2f} |")
    ratio = middle("holdfast", 8, "rps") / base
    lines += [
        "",
        (
            f"Goal: {GOAL_RATIO} of the bare proxy; reached: {ratio:.2f}. An idle session with one HTTP backend, over "
            f"{count:,}: {kilobytes:.1f} KB (goal {GOAL_KB:g}; at most 1,000 are held ready, the others are only in the "
            "store, here in the same process's memory)."
        ),
    ]
    text = "\n".join(lines)
    print(text)
    return text
