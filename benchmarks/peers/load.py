"""`python -m benchmarks.peers.load URL CONNECTIONS SECONDS BYTES HEADERS`: `load.py` for peers that want a key.

HEADERS is a JSON object that goes with every request. Nothing else is added: the load and its checks are `load.py`'s.
"""

import asyncio
import json
import sys

from benchmarks import load


def with_headers(headers: dict[str, str]) -> None:
    """From here on every connection of `load.py` in this process says these too."""
    load.JSON_HEADERS += "".join(f"{name}: {value}\r\n" for name, value in headers.items())


if __name__ == "__main__":
    url, connections, seconds, size, headers = sys.argv[1:]
    with_headers(json.loads(headers))
    print(json.dumps(asyncio.run(load.load(url, int(connections), float(seconds), int(size)))))
