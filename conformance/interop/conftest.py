"""What interoperation tests share: npm's folder, an environment with the SDK's 1.x line, and a gateway with servers."""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.server import Program
from holdfast.testing import FaultServer
from tests.gateway.gateways import gateway
from tests.links.server_process import RealServer

NPM = Path(os.environ.get("HOLDFAST_NPM", Path(sys.prefix) / "npm"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def old_python() -> Path:
    """An environment with the SDK's 1.x line, kept beside ours."""
    home = Path(sys.prefix) / "mcp1"
    python = home / "bin" / "python"
    if not (home / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=120)
        quiet = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "mcp==1.30.0"]
        environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
        subprocess.run(quiet, check=True, timeout=300, env=environment)
        (home / ".ready").touch()
    return python


@asynccontextmanager
async def stage(folder: Path, **settings: Any) -> AsyncGenerator[tuple[Program, FaultServer]]:
    """A gateway in front of a real SDK server and a counter that keeps sessions."""
    async with RealServer("sdk") as real, FaultServer() as http:
        servers = {"real": {"url": real.url, "era": "2025"}, "counter": {"url": http.url}}
        async with gateway(folder, servers, **settings) as program:
            yield program, http
