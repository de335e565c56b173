"""`make profile`: print the CPU time of a call through the gateway, by layer.

The shares come from cProfile (own time of each function, in which calls weigh a little too much), the microseconds from the
CPU time of the same process without a profiler.
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
GROUPS = (  # the first group with a mark in the file's path or the function's name
    ("the socket and HTTP to the client (uvicorn, httptools, our protocol class)", ("uvicorn",)),
    ("HTTP to the server (our client)", ("links/wires/http",)),
    ("front: headers, token, parsing, status", ("gateway/fronts", "gateway/auth")),
    ("session and routing", ("holdfast/gateway",)),
    ("JSON", ("json/", "links/codec", "core/exact", "from_json", "to_json")),
    ("link: call, generation, verdict, ids", ("holdfast/links", "holdfast/core")),
    ("event loop, timers, tasks", ("asyncio", "_asyncio", "Context", "uvloop")),
)


def group_of(where: str, name: str) -> str:
    for group, marks in GROUPS:
        if any(mark in where or mark in name for mark in marks):
            return group
    return "built-in functions, called from all of these"


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
