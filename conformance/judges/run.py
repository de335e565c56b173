"""`make conformance-judges SDK=path FASTMCP=path … WAY=gateway`: other projects' suites, their connections swapped for ours.

SDK and FASTMCP are unpacked source distributions of the versions that are installed here, with their tests
(`pip download --no-deps --no-binary :all: mcp==…`); PYDANTIC and AGENTS are checkouts of pydantic-ai and of
openai-agents-python, TYPESCRIPT is one of typescript-sdk in which `pnpm install` was run. Any may be left out. WAY is
dispatcher, transport or gateway; without it all that a suite can take are run. A test counts if it made a connection of
ours. Each failure must be in known.yml with its reason. A failure that is not there is run once more, without the others,
before it counts: on a busy machine, tests fail at their deadlines.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from conformance.judges.typescript import suite as typescript

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HOME = Path(sys.prefix) / "judges"
WAYS = ("dispatcher", "transport", "gateway")
SECONDS = 3_600
TOOLS = (
    "blockbuster", "coverage", "dirty-equals", "fastapi", "inline-snapshot", "logfire", "opentelemetry-sdk", "psutil",
    "pytest-asyncio", "pytest-env", "pytest-examples", "pytest-mock", "pytest-recording", "pytest-retry", "trio",
    "fastmcp-tasks", "openai-agents", "pydantic-ai-slim[mcp,openai,logfire]", "vcrpy==8.2.1",
)  # fmt: skip
"""What the suites import besides what they test. Pydantic AI's fixtures take vcrpy apart, and know this version's insides."""


@dataclass(frozen=True)
class Suite:
    """A foreign suite: its plugin of ours, its tests, and the options of its own configuration that would not fit."""

    name: str
    plugin: str
    tests: tuple[str, ...]
    options: tuple[str, ...]
    ways: tuple[str, ...] = WAYS


SDK = Suite(
    "python-sdk",
    "conformance.judges.python_sdk",
    (
        "tests/interaction",
        "tests/client",
        # Tests of the SDK's own transports, with fakes in the place of their processes, sockets and streams.
        "--ignore=tests/client/test_stdio.py",
        "--ignore=tests/client/test_streamable_http.py",
        "--ignore=tests/client/test_list_methods_cursor.py",
        "--ignore=tests/client/transports",
    ),
    ("-p", "no:asyncio", "-o", "addopts=-p anyio", "-o", "log_cli=false"),
)
FASTMCP = Suite(
    "fastmcp",
    "conformance.judges.fastmcp_client",
    (
        "tests/client/client",
        "tests/client/group",
        "tests/client/telemetry",
        *(
            f"tests/client/test_{subject}.py"
            for subject in (
                "elicitation", "elicitation_enums", "logs", "notifications", "progress", "result_hydration", "roots",
                "sampling", "streamable_http",
            )
        ),
        "tests/server/providers/proxy",
    ),
    ("-o", "addopts=", "-o", "pythonpath=", "-o", "timeout=60"),
    ("transport", "gateway"),  # its sessions in this process go over the dispatcher in any case
)  # fmt: skip
PYDANTIC = Suite(
    "pydantic-ai",
    "conformance.judges.fastmcp_client",
    ("tests/test_mcp.py",),
    ("-o", "addopts=", "-o", "asyncio_default_fixture_loop_scope=function"),
    ("transport", "gateway"),
)
AGENTS = Suite(
    "openai-agents",
    "conformance.judges.python_sdk",
    # Where sessions are mocks, the programs that a test names are no servers.
    ("tests/mcp", "--ignore=tests/mcp/test_caching.py", "--ignore=tests/mcp/test_connect_disconnect.py"),
    ("-o", "addopts="),
    ("transport", "gateway"),
)
TYPESCRIPT = Suite("typescript-sdk", "", (), (), ("gateway",))  # no plugin of pytest: vitest runs it
SUITES = {"sdk": SDK, "fastmcp": FASTMCP, "pydantic": PYDANTIC, "agents": AGENTS, "typescript": TYPESCRIPT}


def environment() -> Path:
    """A Python with Holdfast and with what the suites import, made once."""
    python, stamp = HOME / "bin" / "python", HOME / ".ready"
    if not stamp.exists() or stamp.read_text() != "\n".join(TOOLS):
        print("setting up an environment for the suites (once) …", flush=True)
        venv.create(HOME, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-e", f"{ROOT}[dev]", *TOOLS], check=True)
        stamp.write_text("\n".join(TOOLS))
    return python


def run(python: Path, suite: Suite, checkout: Path, way: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """How many tests were judged, and which failed, each with its error. The whole output is kept in a log. `only`: the
    ids of tests, in place of all."""
    name = f"{suite.name}-{way}{'-again' if only else ''}"
    log, results = HOME / f"{name}.log", HOME / f"{name}.json"
    results.unlink(missing_ok=True)
    if suite is TYPESCRIPT:
        return _judged(typescript.run(checkout, results, log, SECONDS, only), suite, way, log)
    command = [
        python, "-m", "pytest", "-q", "--tb=native", "--color=no", "--timeout=90", "-p", "no:cacheprovider",
        "-p", "conformance.judges.plugin", "-p", suite.plugin, *suite.options, *(only or suite.tests),
    ]  # fmt: skip
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FASTMCP_TEST_MODE": "1",
        "HOLDFAST_JUDGE": way,
        "HOLDFAST_JUDGE_LOG": str(results),
    }
    with log.open("wb") as output:
        subprocess.run(command, cwd=checkout, env=variables, stdout=output, stderr=output, timeout=SECONDS)
    return _judged(json.loads(results.read_text()) if results.exists() else {"judged": 0}, suite, way, log)


def _judged(done: dict[str, Any], suite: Suite, way: str, log: Path) -> dict[str, Any]:
    if not done["judged"]:
        raise SystemExit(f"{suite.name} over the {way} did not run; see {log}")
    return done


def reason(known: list[dict[str, Any]], way: str, test: str) -> str | None:
    """Why this test is known to fail, if it is."""
    for group in known:
        if way in group["ways"] and any(fnmatchcase(_plain(test), f"*{_plain(part)}*") for part in group["tests"]):
            return group["reason"]
    return None


def _plain(test: str) -> str:
    return re.sub(r"[\[\]]", "|", test)  # brackets mean something to fnmatch


def judge(python: Path, suite: Suite, checkout: Path, way: str, known: Mapping[str, Any]) -> bool:
    """Run a suite in one way, and report. Returns whether every failure is known."""
    done = run(python, suite, checkout, way)
    failed: dict[str, str] = done["failed"]
    if new := [test for test in failed if reason(known.get(suite.name, []), way, test) is None]:
        still = run(python, suite, checkout, way, new)["failed"]
        failed = {test: error for test, error in failed.items() if test not in new or test in still}
    reasons = Counter(reason(known.get(suite.name, []), way, test) for test in failed)
    print(f"{suite.name} over the {way}: {done['judged'] - len(failed)} of {done['judged']}", flush=True)
    for why, count in reasons.most_common():
        if why is not None:
            print(f"  {count:4} {why}")
    for test, error in failed.items():
        if reason(known.get(suite.name, []), way, test) is None:
            print(f"  new: {test}\n       {error.splitlines()[0][:200] if error else ''}")
    return None not in reasons


def main() -> int:
    parser = argparse.ArgumentParser(description="Run other projects' suites over Holdfast.")
    for name in SUITES:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--way", choices=WAYS)
    given = parser.parse_args()
    suites = [(suite, path) for name, suite in SUITES.items() if (path := getattr(given, name)) is not None]
    if not suites:
        parser.error("give SDK=path, FASTMCP=path, PYDANTIC=path, AGENTS=path or TYPESCRIPT=path")
    known = yaml.safe_load((HERE / "known.yml").read_text())
    python = environment()
    passed = True
    for suite, checkout in suites:
        for way in [way for way in suite.ways if given.way in (None, way)]:
            passed = judge(python, suite, checkout.resolve(), way, known) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
