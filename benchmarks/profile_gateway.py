"""`make profile`: where the microseconds of a call through the gateway go, by layer. Prints a table.

It owns the grouping. Shares come from cProfile (own time of each function, so calls weigh a little more than they should),
microseconds from CPU time without a profiler in the same process.
"""

import asyncio
import cProfile
import json
import pstats
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.sections.links import echo_server
from holdfast.gateway.config.file import load_config
from holdfast.gateway.server import Program

SECONDS = 4.0
GROUPS = (
    ("the socket and HTTP towards the client (uvicorn, httptools, our lower door)", ("uvicorn", "uvicorn_door")),
    ("front: headers, token, parsing, status", ("gateway/front", "gateway/http", "gateway/callers")),
    (
        "session and routing",
        ("gateway/session", "gateway/methods", "gateway/routing", "gateway/backend", "gateway/gateway"),
    ),
    (
        "link: call, generation, verdict, ids",
        ("links/link", "links/call", "links/exchange", "links/inbound", "core/", "links/trace"),
    ),
    ("HTTP towards the backend (our client)", ("links/http",)),
    ("JSON", ("json/", "links/codec", "from_json", "to_json")),
    ("event loop, timers, tasks", ("asyncio", "_asyncio", "Context", "uvloop")),
)


def group_of(where: str, name: str) -> str:
    for group, marks in GROUPS:
        if any(mark in where or mark in name for mark in marks):
            return group
    return "the rest: built-in functions of all of them"


async def main() -> None:
    with echo_server() as backend, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "g.json"
        entry = {"echo": {"url": backend, "era": "2025"}}
        file.write_text(json.dumps({"mcpServers": entry, "store": "memory:", "listen": {"port": 0}}))
        async with Program(load_config(file)).running() as program:

            async def load() -> dict[str, float]:
                command = [sys.executable, str(Path(__file__).parent / "load.py"), program.url, "8", str(SECONDS)]
                process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
                out, _ = await process.communicate()
                return json.loads(out)

            await load()
            before = time.process_time()
            plain = await load()
            cpu = (time.process_time() - before) / plain["calls"] * 1e6
            profile = cProfile.Profile()
            profile.enable()
            await load()
            profile.disable()
    sums: dict[str, float] = defaultdict(float)
    for (where, _, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if "poll" not in name or "select" not in str(where):
            sums[group_of(str(where), name)] += own
    total = sum(sums.values())
    print(f"{cpu:.0f} µs of CPU a call at 8 connections\n")
    print("| part | µs | share |\n| --- | --- | --- |")
    for group, own in sorted(sums.items(), key=lambda item: -item[1]):
        print(f"| {group} | {cpu * own / total:.0f} | {own / total:.0%} |")


if __name__ == "__main__":
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main())
