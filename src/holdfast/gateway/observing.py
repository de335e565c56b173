"""The sinks of a gateway, by the part `observe` of its file: opened before its store, closed after everything else."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.events import Event, Sink
from holdfast.gateway.config.file import Config
from holdfast.gateway.config.observe import Audit, Observe
from holdfast.observers import pass_on
from holdfast.sinks.audit.entries import Entries
from holdfast.sinks.audit.files import AuditFile
from holdfast.sinks.audit.sink import AuditSink, AuditWriter
from holdfast.sinks.audit.writers import StdoutWriter, StoreWriter
from holdfast.sinks.fan_out import ClosableSink, DroppingSink
from holdfast.sinks.metrics.figures import TOOLS, Figures, Meter
from holdfast.stores.contract import Store

if TYPE_CHECKING:
    from holdfast.sinks.metrics.prometheus import PrometheusMeter
    from holdfast.sinks.traces import Traces

DROPPED_SECONDS = 10.0  # between two counts of what sinks dropped, for those who do not read the page
ROOM_SECONDS = 0.02  # between two looks whether there is room for another call's audit line


class Observing:
    """The sinks of one gateway; itself a sink. `given` is one that the caller of the gateway has besides."""

    def __init__(self, config: Config, given: Sink | None = None) -> None:
        self._config = config
        self._given = given
        self._sinks: list[ClosableSink] = []
        self.audit: AuditSink | None = None
        settings = config.settings.observe
        self.metrics: PrometheusMeter | None = None
        self._traces = _traces(settings)
        self._figures: Figures | None = None
        self._add_metrics(settings)
        if settings.audit is not None and settings.audit.to != "store":
            self._add_audit(settings.audit, _writer(config, settings.audit))

    @property
    def sink(self) -> Sink | None:
        """What is given to the parts of the gateway; None if nobody observes it."""
        return self if self._sinks or self._config.settings.observe.audit is not None else self._given

    def __call__(self, event: Event) -> None:
        if self._given is not None:
            pass_on(event, self._given)
        for sink in self._sinks:
            pass_on(event, sink)

    @asynccontextmanager
    async def using(self, store: Store) -> AsyncGenerator[None]:
        """With the sinks that write to the gateway's store, which are closed before it is."""
        audit = self._config.settings.observe.audit
        if audit is not None and audit.to == "store":
            loop, process = asyncio.get_running_loop(), secrets.token_hex(8)
            writer = StoreWriter(store, loop, process, max_bytes=audit.max_bytes, keep=audit.keep)
            self._add_audit(audit, writer)
        counting = asyncio.get_running_loop().create_task(self._keep_counting(), name="count dropped events")
        try:
            yield
        finally:
            counting.cancel()
            await asyncio.wait((counting,))
            await self.close()

    async def _keep_counting(self) -> None:
        while self._figures is not None:
            await asyncio.sleep(DROPPED_SECONDS)
            self.count_dropped()

    def count_dropped(self) -> None:
        """Let the metrics say how many events the other sinks could not take."""
        for sink in self._sinks:
            if self._figures is not None and isinstance(sink, DroppingSink):
                self._figures.dropped(sink.name, sink.dropped)

    def _add_metrics(self, settings: Observe) -> None:
        meters: list[Meter] = []
        if settings.metrics is not None:
            from holdfast.sinks.metrics.prometheus import PrometheusMeter

            meters.append(meter := PrometheusMeter())
            self.metrics = meter
        if settings.traces is not None and settings.traces.metrics:
            from holdfast.sinks.metrics.otel import OtelMeter

            meters.append(OtelMeter(self._traces.meters if self._traces is not None else None))
        if meters:
            self._figures = Figures(tuple(meters), tools=settings.metrics.tools if settings.metrics else TOOLS)
            self._sinks.append(self._figures)

    def _add_audit(self, settings: Audit, writer: AuditWriter) -> None:
        entries = Entries(values=settings.values, redact=settings.redact)
        self.audit = AuditSink(writer, entries, when_full=settings.when_full)
        self._sinks.append(self.audit)

    @property
    def room(self) -> Callable[[], Awaitable[None]] | None:
        """What to wait for before a call, where the file says that each must be written; else None."""
        audit = self._config.settings.observe.audit
        return self._room if audit is not None and audit.when_full == "block" else None

    async def _room(self) -> None:
        while self.audit is not None and self.audit.is_crowded:
            await asyncio.sleep(ROOM_SECONDS)

    async def close(self) -> None:
        """Write what is left, in bounded time. The store must still be open."""
        self.count_dropped()
        sinks, self._sinks = self._sinks, []
        await asyncio.gather(*(asyncio.to_thread(sink.close) for sink in sinks))

    async def close_traces(self) -> None:
        """Send the last spans and metrics, in bounded time."""
        traces, self._traces = self._traces, None
        if traces is not None:
            await asyncio.to_thread(traces.close)


def _traces(settings: Observe) -> "Traces | None":
    given = settings.traces
    if given is None:
        return None
    from holdfast.sinks.traces import open_traces  # needs the extra `otel`

    sample = given.sample if "sample" in given.model_fields_set else None
    return open_traces(endpoint=given.endpoint, sample=sample, metrics=given.metrics)


def _writer(config: Config, audit: Audit) -> AuditWriter:
    if audit.to == "stdout":
        return StdoutWriter()
    base = config.path.parent if config.path is not None else Path()
    return AuditFile(base / audit.to, max_bytes=audit.max_bytes, keep=audit.keep)


@asynccontextmanager
async def observing(config: Config, given: Sink | None) -> AsyncGenerator[Observing]:
    """The sinks of a gateway, closed at the end."""
    opened = Observing(config, given)
    try:
        yield opened
    finally:
        await opened.close()
        await opened.close_traces()
