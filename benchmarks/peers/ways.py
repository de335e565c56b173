"""How each peer is built, started and stopped: its pinned package, its settings, its environment under `.venv/peers`.

A peer that can't be built or started raises `NotStarted` with the reason, which the table shows. Peers listen on loopback and
are configured to make no other connections.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.peers import probe
from benchmarks.sections import gateway

HERE = Path(__file__).parent
PEERS = HERE.parent.parent / ".venv" / "peers"
START_SECONDS, BUILD_SECONDS = 120, 600
KEY = "sk-peers-of-a-benchmark-on-loopback-0123456789"


class NotStarted(Exception):
    """A peer that could not be built or started, with the reason."""


@dataclass(frozen=True, slots=True)
class Running:
    """A started peer: its URL, its process (0: none of its own), the headers that its clients send."""

    url: str
    pid: int = 0
    headers: dict[str, str] = field(default_factory=dict)


Start = Callable[[str, Path], contextlib.AbstractContextManager[Running]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One row of the table."""

    name: str
    title: str
    start: Start
    settings: str
    version: Callable[[], str]
    mcp: bool = True
    requests: int = 1_000_000
    """How many requests a minute it answers with these settings; the measurement keeps below outside the load."""
    sessions: int = 1_000_000
    """How many sessions it keeps before it drops the oldest."""
    named: Start | None = None
    """The same with sessions that a 2026 client names by a header, where it has that."""


def environment(name: str, *pins: str) -> Path:
    """The folder of an environment with the first of these requirements that can be installed."""
    folder = PEERS / name
    done = folder / "pins.txt"
    if done.exists() and done.read_text() == "\n".join(pins):
        return folder
    env = {key: value for key, value in os.environ.items() if key != "PIP_CONSTRAINT"}
    env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    if not (folder / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    reason = ""
    for pin in pins:
        print(f"building {pin} …", file=sys.stderr, flush=True)
        command = [str(folder / "bin" / "pip"), "install", "--quiet", pin]
        try:
            built = subprocess.run(command, env=env, capture_output=True, text=True, timeout=BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            reason = f"{pin} was not installed within {BUILD_SECONDS} s"
            continue
        if built.returncode == 0:
            done.write_text("\n".join(pins))
            return folder
        errors = [line for line in built.stderr.splitlines() if line.startswith("ERROR")]
        reason = f"{pin}: {(errors or ['pip failed'])[-1][:200]}"
    raise NotStarted(reason)


def version(name: str, package: str) -> str:
    """The version of a package in an environment."""
    for file in PEERS.glob(f"{name}/lib/python3*/site-packages/{package.replace('-', '_')}-*.dist-info"):
        return file.name.removesuffix(".dist-info").rpartition("-")[2]
    return "not installed"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def program(command: list[str], folder: Path, env: dict[str, str] | None = None) -> Iterator[tuple[int, Path]]:
    """Run a program in a process group and a folder of its own; yields its id and its log."""
    log = folder / "log.txt"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "VIRTUAL_ENV"))}
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**inherited, "HOME": str(folder), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process.pid, log
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)


def ready(running: Running, log: Path) -> Running:
    """Wait until a peer lists the backend's tools."""
    until, last = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < until:
        if not Path(f"/proc/{running.pid}").exists() or _gone(running.pid):
            break
        try:
            asyncio.run(asyncio.wait_for(probe.opened(running.url, running.headers), 20))
        except Exception as error:
            last = str(error) or type(error).__name__
            time.sleep(0.5)
        else:
            return running
    words = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    raise NotStarted(f"it did not list the tools: {last[:160]}; its last words: {(words or ['none'])[-1][-160:]}")


def _gone(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@contextmanager
def direct(backend: str, folder: Path) -> Iterator[Running]:
    yield Running(backend)


NGINX = """daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_buffer_size 1m; client_max_body_size 8m;
  proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_busy_buffers_size 256k;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream b {{ server {host}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
    }}
  }}
}}
"""


@contextmanager
def nginx(backend: str, folder: Path) -> Iterator[Running]:
    if (nginx := shutil.which("nginx")) is None:
        raise NotStarted("nginx is not installed")
    port, file = free_port(), folder / "nginx.conf"
    folder.chmod(0o711)  # its worker runs as another user if root starts it
    file.write_text(NGINX.format(folder=folder, host=urlsplit(backend).netloc, port=port))
    with program([nginx, "-c", str(file)], folder) as (pid, log):
        yield ready(Running(f"http://127.0.0.1:{port}/mcp", pid), log)


def nginx_version() -> str:
    if shutil.which("nginx") is None:
        return "not installed"
    said = subprocess.run(["nginx", "-v"], capture_output=True, text=True, timeout=10).stderr
    return said.strip().rpartition("/")[2]


@contextmanager
def bare(backend: str, folder: Path) -> Iterator[Running]:
    with program([sys.executable, str(HERE.parent / "servers" / "bare_proxy.py"), backend], folder) as (pid, log):
        until = time.monotonic() + START_SECONDS
        while not (said := log.read_text()).endswith("\n") and time.monotonic() < until:
            time.sleep(0.05)
        if not said.strip().isdigit():
            raise NotStarted(f"it did not say its port: {said[-160:]}")
        yield ready(Running(f"http://127.0.0.1:{int(said)}/mcp", pid), log)


def bare_version() -> str:
    return f"uvicorn {importlib.metadata.version('uvicorn')}, aiohttp {importlib.metadata.version('aiohttp')}"


@contextmanager
def holdfast(backend: str, folder: Path) -> Iterator[Running]:
    with gateway.holdfast(backend, folder) as (url, pid):
        yield Running(url, pid)


@contextmanager
def holdfast_named(backend: str, folder: Path) -> Iterator[Running]:
    file, port = folder / "gateway.json", free_port()
    entry = {"echo": {"url": backend, "era": "2025"}}
    file.write_text(json.dumps({"mcpServers": entry, "store": "memory:", "sessions": {"header": probe.NAMING_HEADER}}))
    with program([gateway.HOLDFAST, "serve", str(file), "--port", str(port)], folder) as (pid, log):
        yield ready(Running(f"http://127.0.0.1:{port}/mcp", pid), log)


def holdfast_version() -> str:
    return importlib.metadata.version("holdfast")


FASTMCP = ("fastmcp==4.1.4", "fastmcp==4.1.2")  # the second if the first can't be resolved


def fastmcp(way: str) -> Start:
    @contextmanager
    def start(backend: str, folder: Path) -> Iterator[Running]:
        python, port = environment("fastmcp", *FASTMCP) / "bin" / "python", free_port()
        command = [str(python), str(HERE / "fastmcp_proxy.py"), way, backend, str(port)]
        with program(command, folder, {"FASTMCP_CHECK_FOR_UPDATES": "off"}) as (pid, log):
            yield ready(Running(f"http://127.0.0.1:{port}/mcp", pid), log)

    return start


@contextmanager
def mcp_proxy(backend: str, folder: Path) -> Iterator[Running]:
    tool, port = str(environment("mcp-proxy", "mcp-proxy==0.13.0") / "bin" / "mcp-proxy"), free_port()
    inner = [tool, "--log-level", "WARNING", "--transport", "streamablehttp", backend]
    command = [tool, "--log-level", "WARNING", "--port", str(port), "--", *inner]
    with program(command, folder) as (pid, log):
        yield ready(Running(f"http://127.0.0.1:{port}/mcp", pid), log)


LITELLM = "litellm[proxy]==1.106.2"


@contextmanager
def litellm(backend: str, folder: Path) -> Iterator[Running]:
    tool, port = environment("litellm", LITELLM) / "bin" / "litellm", free_port()
    server = {"url": backend, "transport": "http", "allow_all_keys": True}
    config = {"model_list": [], "mcp_servers": {"peer": server}, "general_settings": {"master_key": KEY}}
    (folder / "config.yaml").write_text(json.dumps(config))
    command = [str(tool), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    with program(command, folder, {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}) as (pid, log):
        headers = {"x-litellm-api-key": f"Bearer {KEY}"}
        yield ready(Running(f"http://127.0.0.1:{port}/mcp", pid, headers), log)


CONTEXTFORGE = "mcp-contextforge-gateway==1.0.7.post20260921"


def contextforge(**settings: str) -> Start:
    @contextmanager
    def start(backend: str, folder: Path) -> Iterator[Running]:
        bin, port = environment("contextforge", CONTEXTFORGE) / "bin", free_port()
        env = {
            "DATABASE_URL": f"sqlite:///{folder}/mcp.db",
            "JWT_SECRET_KEY": KEY,
            "AUTH_ENCRYPTION_SECRET": KEY[::-1],
            "PLATFORM_ADMIN_EMAIL": "admin@example.com",
            "PLATFORM_ADMIN_PASSWORD": "Peer-4711-benchmark!",
            "BASIC_AUTH_PASSWORD": "Peer-4712-benchmark!",
            "SSRF_ALLOW_LOCALHOST": "true",
            "LOG_LEVEL": "ERROR",
            **settings,
        }
        command = [str(bin / "mcpgateway"), "--host", "127.0.0.1", "--port", str(port)]
        with program(command, folder, env) as (pid, log):
            registering = [
                str(bin / "python"),
                str(HERE / "contextforge_setup.py"),
                f"http://127.0.0.1:{port}",
                backend,
            ]
            done = subprocess.run(
                registering, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=180
            )
            if done.returncode:
                raise NotStarted(f"the backend was not registered: {(done.stderr.strip() or 'no reason')[-200:]}")
            found = json.loads(done.stdout.splitlines()[-1])
            headers = {"authorization": f"Bearer {found['token']}"}
            yield ready(Running(f"http://127.0.0.1:{port}{found['path']}", pid, headers), log)

    return start


ALL = (
    Peer("direct", "none (direct)", direct, "no gateway", lambda: "", mcp=False),
    Peer(
        "nginx",
        "nginx",
        nginx,
        "one worker, keep-alive to the backend, buffers that hold 64 KB",
        nginx_version,
        mcp=False,
    ),
    Peer(
        "bare",
        "bare aiohttp proxy",
        bare,
        "`benchmarks/servers/bare_proxy.py` on uvicorn, uvloop",
        bare_version,
        mcp=False,
    ),
    Peer(
        "holdfast",
        "**Holdfast**",
        holdfast,
        "defaults, one worker, `store: memory:`, session limits raised",
        holdfast_version,
        named=holdfast_named,
    ),
    Peer(
        "mcp-proxy",
        "mcp-proxy (PyPI)",
        mcp_proxy,
        "defaults, log level WARNING; it serves stdio programs only, so its child is itself with the backend's URL",
        lambda: version("mcp-proxy", "mcp-proxy"),
    ),
    Peer(
        "fastmcp-stateful",
        "FastMCP `StatefulProxyClient`",
        fastmcp("stateful"),
        "`FastMCPProxy(client_factory=client.new_stateful)`, log level warning; 4.1.4, or 4.1.2 where that does not resolve",
        lambda: version("fastmcp", "fastmcp"),
    ),
    Peer(
        "fastmcp",
        "FastMCP `create_proxy`",
        fastmcp("default"),
        "`create_proxy(url)`, log level warning; 4.1.4, or 4.1.2 where that does not resolve",
        lambda: version("fastmcp", "fastmcp"),
    ),
    Peer(
        "contextforge-stateful",
        "ContextForge, stateful",
        contextforge(USE_STATEFUL_SESSIONS="true", RATE_LIMITING_ENABLED="false"),
        "`USE_STATEFUL_SESSIONS=true`, `RATE_LIMITING_ENABLED=false`, else defaults; SQLite, tracing off, one virtual server",
        lambda: version("contextforge", "mcp-contextforge-gateway"),
    ),
    Peer(
        "litellm",
        "LiteLLM",
        litellm,
        "defaults without a database, one master key",
        lambda: version("litellm", "litellm"),
        sessions=80,
    ),
    Peer(
        "contextforge",
        "ContextForge, defaults",
        contextforge(),
        "defaults (100 requests a minute and a burst of 20, a session a call); SQLite, tracing off, one virtual server",
        lambda: version("contextforge", "mcp-contextforge-gateway"),
        requests=100,
    ),
)
