"""The program `holdfast serve`: the HTTP front on a port, signals, reload, drain.

It does not listen beyond loopback without auth, and a reload drops no session.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import uvicorn

from holdfast.errors import ConfigError, HoldfastError
from holdfast.events import Sink
from holdfast.gateway.auth import Authenticator, check_bind, check_tokens
from holdfast.gateway.config.file import Config, load_config
from holdfast.gateway.config.settings import ClientLimits
from holdfast.gateway.fronts.http.app import HttpFront
from holdfast.gateway.fronts.http.connections import Connections
from holdfast.gateway.fronts.http.uvicorn_protocol import Protocol
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.observing import observing
from holdfast.gateway.process.place import bound, make_room
from holdfast.gateway.process.reload import configuration_read
from holdfast.observers import deliver, is_observed
from holdfast.stores import open_store

log = logging.getLogger("holdfast.gateway")

LOOK_SECONDS = 1.0  # between two checks of the configuration file, and of tokens that expire
CLOSE_SECONDS = 3  # for answers that are being written, once no call is under way


class Program:
    """`holdfast serve` as an object, which tests can start, too."""

    def __init__(
        self, config: Config, *, insecure: bool = False, sink: Sink | None = None, keys: Sequence[str] | None = None
    ) -> None:
        check_bind(config.settings, insecure)
        check_tokens(config.settings)
        self.config = config
        self._insecure = insecure
        self._sink = sink
        self._keys = keys
        self.gateway: Gateway | None = None
        self.front: HttpFront | None = None
        self.port = 0
        self.connections = Connections(config.settings.clients)
        self._stop = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._hung_up: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        listen = self.config.settings.listen
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        return f"http://{host}:{self.port}{listen.path}"

    def stop(self) -> None:
        """Stop serving. Called again, it waits for no call."""
        if self._stop.is_set() and self.gateway is not None:
            self.gateway.lifecycle.cut()
        self._stop.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Program"]:
        """Serve while the block lasts."""
        listen = self.config.settings.listen
        sock = bound(listen.host, listen.port)
        self.port = sock.getsockname()[1]
        try:
            make_room(self.config)
            async with (
                observing(self.config, self._sink) as observers,
                open_store(self.config.store_url, keys=self._keys, on_event=observers.sink) as store,
                observers.using(store),
            ):
                gateway = self.gateway = Gateway(
                    self.config, store, address=self.url, sink=observers.sink, audit_room=observers.room
                )
                self.front = HttpFront(gateway)
                self._report_read(None, self.config)
                async with gateway.running():
                    server = _Server(_settings(self.front, self.config.settings.clients, self.connections))
                    serving = asyncio.create_task(server.serve(sockets=[sock]), name="uvicorn")
                    watching = [
                        asyncio.create_task(self._watch_file(), name="watch configuration"),
                        asyncio.create_task(self._watch_tokens(self.front), name="watch tokens"),
                    ]
                    try:
                        while not server.started and not serving.done():
                            await asyncio.sleep(0.005)
                        yield self
                    finally:
                        for task in (*watching, *self._hung_up):
                            task.cancel()
                        await gateway.drain()  # the port stays open meanwhile, for probes to see that it drains
                        gateway.end_streams()
                        server.should_exit = True
                        await asyncio.wait((serving,), timeout=2 * CLOSE_SECONDS)
                        if not serving.done():
                            server.force_exit = True
                            await asyncio.wait((serving,), timeout=CLOSE_SECONDS)
                        await self.front.close()
        finally:
            sock.close()

    async def serve(self, ready: Callable[["Program"], None]) -> None:
        """Serve until SIGTERM or SIGINT. SIGHUP reloads the configuration."""
        loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGINT"):
            loop.add_signal_handler(getattr(signal, name), self.stop)
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        async with self.running():
            ready(self)
            await self._stop.wait()

    # Reload

    async def _watch_tokens(self, front: HttpFront) -> None:
        """End the requests of tokens that expire."""
        last = time.time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.time()
            if front.authenticator.expired_between(last, now):
                front.end_refused()
            last = now

    def _hang_up(self) -> None:
        """SIGHUP: reload the file, and fetch every server's lists again."""
        task = asyncio.get_running_loop().create_task(self._read_all(), name="reload")
        self._hung_up.add(task)
        task.add_done_callback(self._hung_up.discard)

    async def _read_all(self) -> None:
        await self.reload()
        if self.gateway is not None:
            await self.gateway.checks.fetch_all()

    async def _watch_file(self) -> None:
        path = self.config.path
        if path is None:
            return
        last = _stamp(path)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = _stamp(path)
            if now != last and now is not None:
                last = now
                await self.reload()

    async def reload(self) -> bool:
        """Reload the file. A mistake in it changes nothing. Returns whether it was taken over."""
        path, before = self.config.path, self.config
        if path is None or self.gateway is None or self.front is None:
            return False
        try:
            await self._reload(path, self.gateway, self.front)
        except HoldfastError as error:
            log.error("the configuration stays as it was: %s", error)
            self._report_read(before, before, error)
            return False
        self._report_read(before, self.config)
        return True

    def _report_read(self, before: Config | None, now: Config, error: HoldfastError | None = None) -> None:
        sink = self.gateway.sink if self.gateway is not None else None
        if is_observed(sink):
            deliver(configuration_read(before, now, error), sink)

    async def _reload(self, path: Path, gateway: Gateway, front: HttpFront) -> None:
        config, running = load_config(path), self.config.settings
        kept = config.settings.model_copy(
            update={"listen": running.listen, "store": running.store, "observe": running.observe}
        )
        check_bind(kept, self._insecure)  # where it listens now, not where it would listen after a restart
        restart = [
            key
            for key in ("listen", "store", "observe")
            if getattr(config.settings, key) not in (getattr(running, key), None)
        ]
        read = Config(kept, config.entries, path)
        self.connections.limit_by(kept.clients)
        # First: a caller who is no longer let in must not be served while backends are changed.
        front.authenticate_by(Authenticator(kept.auth, kept.listen))
        try:
            check_tokens(kept)
        except ConfigError as error:  # taken over all the same: it may have taken tokens away
            log.warning("the new configuration serves no caller: %s", error)
        async with self._reloading:
            await gateway.reload(read)
        self.config = read
        if restart:
            log.warning("%s changed, which takes effect with a restart", " and ".join(restart))


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, which the program has."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def _settings(app: HttpFront, limits: ClientLimits, connections: Connections) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType]
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        timeout_keep_alive=limits.idle,  # pyright: ignore[reportArgumentType]
        timeout_graceful_shutdown=CLOSE_SECONDS,
        http=partial(Protocol, connections),  # pyright: ignore[reportArgumentType]
        ws="none",
    )


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
