"""A raw MCP echo program for both eras: it reads a line and writes a line, with as little work as possible."""

import json
import sys

INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "echo", "version": "1"},
}
KEPT = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

for line in sys.stdin.buffer:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        result = INITIALIZED
    elif method == "server/discover":
        result = {**KEPT, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    elif method == "tools/list":
        result = {**KEPT, "tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    else:
        text = (params.get("arguments") or {}).get("text", "")
        result = {"resultType": "complete", "content": [{"type": "text", "text": text}], "isError": False}
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n")
    sys.stdout.buffer.flush()
