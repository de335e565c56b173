"""The program `holdfast serve`: the HTTP front on a port, signals, reload, drain.

It does not listen beyond loopback without auth, and a reload drops no session.
"""

import asyncio
import contextlib
import logging
import signal
import socket
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
from holdfast.gateway.fronts.http.metrics import MetricsPage, metrics_page
from holdfast.gateway.fronts.http.uvicorn_protocol import Protocol
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.observing import observing
from holdfast.gateway.process.place import bound, make_room
from holdfast.gateway.process.reload import configuration_read
from holdfast.observers import deliver, is_observed
from holdfast.stores import open_store

log = logging.getLogger("holdfast.gateway")

LOOK_SECONDS = 1.0  # between two checks of the configuration file, and of tokens that expire
METRICS_READERS = 50  # requests of Prometheus and others at once; more are answered with 503
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
        self.metrics_port: int | None = None
        """Where metrics are, if not on the gateway's own port."""
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
                settings = self.config.settings.observe.metrics
                page = metrics_page(settings, observers.metrics, gateway, observers.count_dropped)
                self.front = HttpFront(gateway, page)
                self._report_read(None, self.config)
                async with gateway.running():
                    try:
                        async with self._serving(sock, self.front), self._serving_metrics(page):
                            yield self
                    finally:
                        await self.front.close()
        finally:
            sock.close()

    @asynccontextmanager
    async def _serving(self, sock: socket.socket, front: HttpFront) -> AsyncGenerator[None]:
        """Serve the gateway's port. At the end, calls get their time first."""
        assert self.gateway is not None
        async with _served(_settings(front, self.config.settings.clients, self.connections), sock):
            watching = [
                asyncio.create_task(self._watch_file(), name="watch configuration"),
                asyncio.create_task(self._watch_tokens(front), name="watch tokens"),
            ]
            try:
                yield
            finally:
                for task in (*watching, *self._hung_up):
                    task.cancel()
                await self.gateway.drain()  # the port stays open meanwhile, for probes to see that it drains
                self.gateway.end_streams()

    @asynccontextmanager
    async def _serving_metrics(self, page: MetricsPage | None) -> AsyncGenerator[None]:
        """Serve metrics on a port of their own, if the file names one."""
        settings = self.config.settings.observe.metrics
        if page is None or settings is None or settings.port is None:
            yield
            return
        with contextlib.closing(bound(settings.host, settings.port)) as sock:
            self.metrics_port = sock.getsockname()[1]
            async with _served(_settings_of_metrics(page), sock):
                yield

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
        front.authenticate_by(Authenticator(kept.auth, kept.listen, front.authenticator))
        try:
            check_tokens(kept)
        except ConfigError as error:  # taken over all the same: it may have taken tokens away
            log.warning("the new configuration serves no caller: %s", error)
        async with self._reloading:
            await gateway.reload(read)
        self.config = read
        if restart:
            log.warning("%s changed, which takes effect with a restart", " and ".join(restart))


@asynccontextmanager
async def _served(config: uvicorn.Config, sock: socket.socket) -> AsyncGenerator[None]:
    """Serve an application while the block lasts."""
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="uvicorn")
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        await asyncio.wait((serving,), timeout=2 * CLOSE_SECONDS)
        if not serving.done():
            server.force_exit = True
            await asyncio.wait((serving,), timeout=CLOSE_SECONDS)


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


def _settings_of_metrics(page: MetricsPage) -> uvicorn.Config:
    return uvicorn.Config(
        page,  # pyright: ignore[reportArgumentType]
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        limit_concurrency=METRICS_READERS,
        ws="none",
    )


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
