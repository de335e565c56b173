"""`make bench [ARGS="stores --quick"]`: run the sections, print their tables, write them to docs/benchmarks.md."""

import argparse
import asyncio
import platform
import re
from pathlib import Path

from benchmarks.sections import gateway, links, runs, state, stdio, stores

DOC = Path(__file__).parent.parent / "docs" / "benchmarks.md"
SECTIONS = {
    "links": links.run,
    "gateway": gateway.run,
    "stdio": stdio.run,
    "runs": runs.run,
    "stores": stores.run,
    "state": state.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help=f"of {', '.join(SECTIONS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, nothing written")
    given = parser.parse_args()
    if unknown := set(given.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    for name in given.sections:
        text = asyncio.run(SECTIONS[name](0.1 if given.quick else 1.0))
        if not given.quick:
            _write(name, text)


def _write(name: str, text: str) -> None:
    machine = f"Python {platform.python_version()}, {platform.system()}, {platform.machine()}"
    block = f"<!-- begin {name} -->\n{text}\n\nMade by `make bench ARGS={name}` on {machine}.\n<!-- end {name} -->"
    old = DOC.read_text()
    new, found = re.subn(rf"<!-- begin {name} -->.*?<!-- end {name} -->", lambda _: block, old, flags=re.DOTALL)
    DOC.write_text(new if found else f"{old.rstrip()}\n\n{block}\n")


main()
