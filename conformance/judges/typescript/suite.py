"""Runs typescript-sdk's e2e suite through the gateway, and reads its results."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TEST_MS = 45_000  # three times the suite's own, for machines that do other things, too
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def run(checkout: Path, results: Path, log: Path, seconds: float, only: Sequence[str] = ()) -> dict[str, Any]:
    """How many tests were judged, and which failed. The checkout has its packages installed. `only`: the ids of tests,
    in place of all."""
    node = Path(sys.prefix) / "bin" / "node"
    vitest = checkout / "node_modules" / "vitest" / "vitest.mjs"
    raw = results.with_suffix(".vitest.json")
    raw.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "conformance.judges.typescript.gateways",
        node if node.exists() else "node", vitest, "run", "--config", HERE / "vitest.config.mjs", "--root", ".",
        "--maxWorkers=2", f"--testTimeout={TEST_MS}", "--reporter=json", f"--outputFile={raw}",
    ]  # fmt: skip
    if only:
        names = sorted({id.partition("::")[2] for id in only})
        command += ["--testNamePattern", "|".join(f"^{re.escape(name)}$" for name in names)]
    variables = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "HOLDFAST_JUDGE": "gateway"}
    with log.open("wb") as output:
        subprocess.run(
            command, cwd=checkout / "test" / "e2e", env=variables, stdout=output, stderr=output, timeout=seconds
        )
    judged, failed = 0, dict[str, str]()
    for file in json.loads(raw.read_text())["testResults"] if raw.exists() else ():
        for test in file["assertionResults"]:
            if not test["meta"].get("judged"):
                continue
            judged += 1
            if test["status"] != "passed":
                why = COLOUR.sub("", "\n".join(test["failureMessages"])) or "failed"
                failed[f"{Path(file['name']).name}::{test['fullName']}"] = why
    done = {"way": "gateway", "judged": judged, "failed": dict(sorted(failed.items()))}
    results.write_text(json.dumps(done, indent=1))
    return done
