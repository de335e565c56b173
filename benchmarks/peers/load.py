"""`python -m benchmarks.peers.load URL CONNECTIONS SECONDS BYTES HEADERS`: `load.py` for peers that need a key.

HEADERS is a JSON object of headers for every request. The load and its checks are those of `load.py`.
"""

import asyncio
import json
import sys

from benchmarks import load


def with_headers(headers: dict[str, str]) -> None:
    """Add headers to all further requests of `load.py` in this process."""
    load.JSON_HEADERS += "".join(f"{name}: {value}\r\n" for name, value in headers.items())


if __name__ == "__main__":
    url, connections, seconds, size, headers = sys.argv[1:]
    with_headers(json.loads(headers))
    print(json.dumps(asyncio.run(load.load(url, int(connections), float(seconds), int(size)))))
