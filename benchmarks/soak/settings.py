"""The time limits of a soak, and the thresholds of its verdict."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
HOLDFAST = str(Path(sys.executable).parent / "holdfast")
PLOT = ROOT / "docs" / "soak.svg"

IDLE = 10.0  # seconds after which the gateway ends a session: short, so that the end of a run can wait for it
TOUCHED = IDLE / 10 + 1.0  # seconds by which a session's last use is older in the store than at its client
PATIENCE = 20.0  # seconds that a client waits: no outage here lasts a quarter of that
DRAIN = 3.0  # seconds that the gateway gives calls when it is told to stop
SETTLE = 16.0  # seconds after the last call in which everything must be gone
SAMPLE = 2.0  # seconds between two samples of the gateway's memory
WARM_UP = (
    90.0  # seconds of a process's life in which memory may grow: SQLite's cache and the allocator fill up that long
)
JUDGED = 60.0  # seconds of samples that a slope needs
SLOPE = 1.0  # MB a minute
FILES = 4  # open files that may be left over those of a gateway that nobody has used
STALE = 2.0  # seconds after a restart in which a client may still find a dead connection
EXAMPLES = 5
PLOT_MINUTES = 3.0  # a shorter run draws nothing into the docs
CONNECTIONS = 24  # kept to one backend for the next call, a minute long: as many as calls were under way at once
CLIENTS = {"raw 2025": 7, "raw 2026": 3, "mcp.Client": 2, "FastMCP": 2}
TO = "connection to "
ERROR = "dev.holdfast/error"
KEEPS = ("a", "sdk", "notes")  # backends with state in a session
ANY = -1  # a counter may stand anywhere after an unknown outcome
