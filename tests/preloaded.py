"""Python processes for tests, forked from a server that imported everything once: milliseconds each, not a second."""

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "holdfast.stores.sqlite.store",
        "holdfast.stores.postgres.store",
        "holdfast.stores.redis.store",
        "fastmcp.server.context",
        "fastmcp.server.event_store",  # what a server imports at the first use of its session's state
        "fastmcp.server.http",
        "fastmcp.server.server",
        "mcp.server.mcpserver",
        "uvicorn.lifespan.on",
        "uvicorn.loops.auto",
        "uvicorn.protocols.http.auto",
        "uvicorn.protocols.websockets.auto",
        "tests.links.server_program",
        "tests.state.replicas",
        "tests.stores.processes",
    ]
)


def pipes() -> set[int]:
    """The descriptors that the server holds in this process; it stays for the whole run. No public name has them."""
    held = (forkserver._forkserver._forkserver_alive_fd, resource_tracker._resource_tracker._fd)  # type: ignore[attr-defined]
    return {fd for fd in held if fd is not None}


class Child:
    """A function in a process of its own, which ends with this process however that ends."""

    def __init__(self, run: Callable[..., None], *args: Any, env: Mapping[str, str] | None = None) -> None:
        theirs, self._alive = context.Pipe(duplex=False)
        self._process = context.Process(target=_enter, args=(theirs, dict(env or {}), run, *args), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """Dead when it returns, and nothing of it is left."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._alive.close()


def _enter(alive: Connection, env: dict[str, str], run: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    os.environ.update(env)
    os.chdir(ROOT)
    run(*args)


def _end_with(alive: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        alive.recv_bytes()
    os._exit(0)
