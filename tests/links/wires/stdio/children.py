"""Programs to start in tests, their events, and how quickly they are given up."""

import sys
from pathlib import Path
from typing import Any

from holdfast import events
from holdfast.links import CommandTarget, Limits

QUICK = Limits(
    connect=2, program_handshake=5, start=20, silence=5, close=2, exit=0.5, deliver=2, backoff=0.01, stream_retry=0.02,
    message_bytes=1_000_000,
)  # fmt: skip


def alive(pid: int) -> bool:
    """Is it there, and not a zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class ChildEvents:
    """Events, and what they tell about children."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)

    @property
    def pids(self) -> list[int]:
        return [event.pid for event in self.events if isinstance(event, events.ChildStarted)]

    @property
    def lines(self) -> list[str]:
        return [event.line for event in self.events if isinstance(event, events.ChildStderr)]


SERVER = """
import json, os, sys
how, held = sys.argv[1], []
def say(m): sys.stdout.write((m if isinstance(m, str) else json.dumps(m)) + "\\n"); sys.stdout.flush()
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        if how == "ping":
            say({"jsonrpc": "2.0", "id": "p", "method": "ping"})
            assert "result" in json.loads(sys.stdin.readline())
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"protocolVersion": "2025-11-25", "capabilities": {},
             "serverInfo": {"name": "x", "version": "1"}}})
    elif "id" in m and m.get("method") == "tools/list":
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"tools": [], "token": os.environ.get("TOKEN")}})
    elif "id" in m and "method" in m:
        if how == "nan": say('{"jsonrpc": "2.0", "id": "%s", "result": {"v": NaN}}' % m["id"])
        elif how == "surrogate": say('{"jsonrpc": "2.0", "id": "%s", "result": {"v": "\\\\ud83d"}}' % m["id"])
        elif how == "nested":
            body = "x" * 300000
            say('{"result": {"items": [{"id": 5, "x": "' + body + '"}]}, "jsonrpc": "2.0", "id": "%s"}' % m["id"])
        elif how == "progress":
            token = m["params"]["_meta"]["progressToken"]
            for n in range(60):
                params = {"progressToken": token, "progress": n, "message": "x" * 200000}
                say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            say({"jsonrpc": "2.0", "id": m["id"], "result": {}})
            sys.stderr.write("all said\\n"); sys.stderr.flush()
        elif how == "batch":
            held.append(m["id"])
            if len(held) == 2:
                answers = [{"jsonrpc": "2.0", "id": id, "result": {"n": n + 1}} for n, id in enumerate(held)]
                say([answers[1], {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}, answers[0]])
        elif how == "deaf":
            os.close(0)
            import time; time.sleep(60)
"""


def program(how: str = "well", **more: Any) -> CommandTarget:
    return CommandTarget(sys.executable, ["-I", "-S", "-c", SERVER, how], **more)
