"""`MINUTES=30 python -m benchmarks.soak`: run a gateway under mixed clients while everything around it fails at random.

Every answer is checked by the client, every effect is counted at the server, and the two are compared. It exits with 1 after
two effects of one call, a wrong answer, state that was lost without a report, an error without a family, or anything left
behind at the end.

The faults stop for the last part of the time (`tail`): then the servers lose their sessions, the gateway is killed once more,
and after the clients have gone the gateway must clean up everything that is left.

`python -m benchmarks.soak server PORT FILE` is one of its backends: the SDK's server, with effects in a file.
"""

import asyncio
import logging
import os
import random
import sys
from pathlib import Path

from benchmarks.soak.backend import sdk_server
from benchmarks.soak.run import soak


def main() -> None:
    if sys.argv[1:2] == ["server"]:
        sdk_server(int(sys.argv[2]), Path(sys.argv[3]))
        return
    logging.disable(logging.CRITICAL)  # clients and servers log the faults that are made on purpose
    minutes = float(os.environ.get("MINUTES") or 30)
    seed = int(os.environ.get("SEED") or random.randrange(10**6))
    sys.exit(0 if asyncio.run(soak(minutes, seed)) else 1)


if __name__ == "__main__":
    main()
