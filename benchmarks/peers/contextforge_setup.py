"""`python benchmarks/peers/contextforge_setup.py GATEWAY BACKEND`: register the backend at a ContextForge that is starting.

It runs in ContextForge's own environment, with its settings, and prints a client's token and path as JSON. Without both
tools it exits with the gateway's message on stderr.
"""

# pyright: reportMissingImports=false
import asyncio
import json
import sys
import time
from typing import Any

import httpx
from mcpgateway.utils.create_jwt_token import create_jwt_token

gateway, backend = sys.argv[1:]


def token() -> str:
    user = {"email": "admin@example.com", "full_name": "Peer", "is_admin": True, "auth_provider": "local"}
    return asyncio.run(create_jwt_token({"sub": "admin@example.com"}, expires_in_minutes=600, user_data=user))


def until(seconds: float, ask: Any) -> Any:
    end, last = time.monotonic() + seconds, "no answer"
    while time.monotonic() < end:
        try:
            if found := ask():
                return found
        except httpx.HTTPError as error:
            last = repr(error)
        time.sleep(1)
    raise SystemExit(last)


def main() -> None:
    key = token()
    with httpx.Client(base_url=gateway, headers={"authorization": f"Bearer {key}"}, timeout=60) as http:
        until(120, lambda: http.get("/health").status_code == 200)
        entry = {"name": "peer", "url": backend, "transport": "STREAMABLEHTTP"}
        answer = http.post("/gateways", json=entry)
        if answer.status_code >= 300:
            raise SystemExit(f"POST /gateways: {answer.status_code} {answer.text[:300]}")
        tools = until(30, lambda: [each for each in http.get("/tools").json() if each["name"].startswith("peer")])
        server = {"name": "peers", "associated_tools": [each["id"] for each in tools]}
        made = http.post("/servers", json={"server": server})
        if made.status_code >= 300:
            raise SystemExit(f"POST /servers: {made.status_code} {made.text[:300]}")
        print(json.dumps({"token": key, "path": f"/servers/{made.json()['id']}/mcp"}))


if __name__ == "__main__":
    main()
