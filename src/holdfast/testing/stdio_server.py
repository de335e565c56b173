"""A program with faults by name, as the target of a link: `Link(stdio_target("exit-in-call"))`.

`stdio_program.py` is the program.
"""

import sys
from pathlib import Path
from typing import Any, Literal

from holdfast.links.target import CommandTarget

StdioFault = Literal[
    "none",
    "exit-at-start",
    "exit-at-handshake",
    "exit-in-call",
    "exit-after-effect",
    "killed-in-call",
    "hang-in-call",
    "hang-at-handshake",
    "ignore-signals",
    "grandchild",
    "detached-grandchild",
    "bare-grandchild",
    "garbage",
    "flood-stderr",
    "flood-stdout",
    "huge-line",
    "endless-line",
    "slow-start",
    "close-stdout",
    "deaf",
]
"""A fault of the program.
Faults "in-call" affect every tools/call; with `once`, only the first, which is recorded in that file.
"""


def stdio_target(
    fault: StdioFault = "none",
    *,
    era: Literal["2025", "2026"] = "2025",
    effects: Path | None = None,
    once: Path | None = None,
    say: str = "",
    env: Any = None,
) -> CommandTarget:
    """A target for `Link`: a program of one `era` with one `fault`.

    `effects` is a file that gets a line for each executed call. With `once` the fault happens only while that file does
    not exist. `say` is written to stderr; `env` is the program's environment.
    """
    program = str(Path(__file__).with_name("stdio_program.py"))
    args = ["-I", "-S", program, "--fault", fault, "--era", era]
    for name, value in (("--effects", effects), ("--once", once), ("--say", say)):
        if value:
            args += [name, str(value)]
    return CommandTarget(sys.executable, args, env=env)
