"""`python -m benchmarks.traced_gateway`: the CPU time of a call through the gateway with and without spans.

Each way is measured in turn, several times, in one process, by its CPU time; the median is printed. The collector is another
process, which takes what it gets and answers.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.sections.links import echo_server
from holdfast.gateway.config.file import load_config
from holdfast.gateway.server import Program

SECONDS = 1.5
ROUNDS = 5
COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


async def measured(backend: str, folder: Path, observe: dict[str, Any]) -> tuple[float, float]:
    """Microseconds of CPU a call, and calls a second."""
    file = folder / "g.json"
    known = {"mcpServers": {"echo": {"url": backend, "era": "2025"}}, "store": "memory:", "listen": {"port": 0}}
    file.write_text(json.dumps({**known, "observe": observe}))
    async with Program(load_config(file)).running() as program:
        command = [sys.executable, str(Path(__file__).parent / "load.py"), program.url, "8", str(SECONDS)]
        before = time.process_time()
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        calls = json.loads(out)["calls"]
    return (time.process_time() - before) / calls * 1e6, calls / SECONDS


async def main() -> None:
    collector = subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert collector.stdout is not None
    endpoint = f"http://127.0.0.1:{collector.stdout.readline().strip()}"
    ways: dict[str, dict[str, Any]] = {"no provider": {}}
    for sample in (0.0, 1.0):
        ways[f"sample {sample}"] = {"traces": {"endpoint": endpoint, "sample": sample}}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    try:
        with echo_server() as backend, tempfile.TemporaryDirectory() as folder:
            await measured(backend, Path(folder), {})
            for _ in range(ROUNDS):
                for way, observe in ways.items():
                    found[way].append(await measured(backend, Path(folder), observe))
    finally:
        collector.terminate()
        collector.wait()
    plain = statistics.median(cpu for cpu, _ in found["no provider"])
    print("| spans | µs of CPU a call | ratio | calls/s |\n| --- | --- | --- | --- |")
    for way, figures in found.items():
        cpu = statistics.median(cpu for cpu, _ in figures)
        print(f"| {way} | {cpu:.0f} | {plain / cpu:.2f} | {statistics.median(rate for _, rate in figures):.0f} |")


if __name__ == "__main__":
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main())
