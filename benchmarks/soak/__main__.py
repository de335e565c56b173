"""`MINUTES=30 python -m benchmarks.soak`: a gateway under mixed clients while everything around it fails at random.

It owns the load, the faults, and the judgement: every answer is checked by whoever asked, every effect is counted where
it happened, and what was told of a call is held against what was done. It refuses to explain anything away: two effects
of one call, a wrong answer, state that went without a word, an error without a family, or something left behind at the
end, and it exits with 1.

The faults stop for the last part of the time (`tail`): then the servers forget everything, the gateway is killed once
more, and what is left after the clients have gone was the gateway's to clean up.

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
    logging.disable(logging.CRITICAL)  # clients and servers complain of what we do to them on purpose
    minutes = float(os.environ.get("MINUTES") or 30)
    seed = int(os.environ.get("SEED") or random.randrange(10**6))
    sys.exit(0 if asyncio.run(soak(minutes, seed)) else 1)


if __name__ == "__main__":
    main()
