"""What importing links loads: options, targets and decisions, and no client of anything."""

import subprocess
import sys

import pytest

HEAVY = (
    "holdfast.links.wires.http.pool", "holdfast.links.wires.http.wire", "holdfast.links.wires.stdio.program",
    "holdfast.links.wires.local", "holdfast.links.sdk", "anyio", "http.client", "httptools", "httpx2", "mcp",
    "opentelemetry", "pydantic", "urllib.request", "aiohttp", "yarl",
)  # fmt: skip


@pytest.mark.promise("link.imports")
@pytest.mark.parametrize("module", ["holdfast.links", "holdfast"])
def test_links_load_no_client_before_they_are_used(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == ([], "")
