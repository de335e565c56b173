"""`holdfast.observe()`: log lines, an audit trail, metrics and spans of everything that happens in this process."""

import atexit
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.errors import UsageError
from holdfast.events import Sink
from holdfast.links.trace import current_trace_id
from holdfast.observers import add_observer, remove_observer
from holdfast.sinks.audit.entries import Entries
from holdfast.sinks.audit.files import AuditFile
from holdfast.sinks.audit.sink import AuditSink
from holdfast.sinks.audit.writers import StdoutWriter
from holdfast.sinks.fan_out import ClosableSink
from holdfast.sinks.logs.output import Choice, Level, Logging
from holdfast.sinks.logs.sink import LogSink
from holdfast.sinks.metrics.figures import Figures

if TYPE_CHECKING:
    from holdfast.sinks.metrics.prometheus import MetricsServer

MAX_BYTES = 64 * 1024 * 1024  # of the audit trail's file, before a new one is begun
KEEP = 10  # of its old files

_logging: "list[Observation]" = []
"""The observation that logs: two would write each line twice."""


class Closable(Protocol):
    """What is closed when the observation is."""

    def close(self) -> None: ...


class Observation:
    """What `holdfast.observe()` has begun. It lasts until `close()`, or until its `with` block is left."""

    def __init__(
        self,
        logs: bool | Choice,
        level: Level,
        audit: str | Path | None,
        metrics: int | None,
        traces: bool | str,
        on_event: Sink | None,
    ) -> None:
        self._observers: list[Sink] = []
        self._closing: list[Closable] = []
        self._metrics: MetricsServer | None = None
        try:
            if logs is not False:
                self._log(logs, level)
            if metrics is not None:
                self._add_sink(self._figures(metrics))
            if audit is not None:
                self._add_sink(_audit_sink(audit))
            if traces is not False:
                from holdfast.sinks.traces import open_traces  # needs the extra `otel`

                self._closing.append(open_traces(endpoint=None if traces is True else traces))
            if on_event is not None:
                self._add(on_event)
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)  # a program that never closes it loses no line at its end

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus reads; None without `metrics=`."""
        return None if self._metrics is None else self._metrics.url

    @property
    def metrics_port(self) -> int | None:
        """The port of `metrics_url`: the one that was taken, for `metrics=0`."""
        return None if self._metrics is None else self._metrics.port

    def close(self) -> None:
        """Observe no longer, and write what is left, in bounded time. It can be called again."""
        for observer in self._observers:
            remove_observer(observer)
        self._observers.clear()
        atexit.unregister(self.close)
        while self._closing:
            self._closing.pop().close()
        if self in _logging:
            _logging.remove(self)

    def __enter__(self) -> "Observation":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _log(self, logs: Literal[True] | Choice, level: Level) -> None:
        if _logging:
            raise UsageError("another holdfast.observe() logs already", remedy="close that one, or leave out logs=")
        _logging.append(self)
        if logs is not True:
            self._closing.append(Logging(level, logs, logger="holdfast", trace_id=current_trace_id))
        self._add_sink(LogSink())

    def _figures(self, port: int) -> Figures:
        from holdfast.sinks.metrics.prometheus import MetricsServer, PrometheusMeter

        meter = PrometheusMeter()
        self._metrics = MetricsServer(meter, port)
        self._closing.append(self._metrics)
        return Figures((meter,))

    def _add_sink(self, sink: ClosableSink) -> None:
        self._closing.append(sink)
        self._add(sink)

    def _add(self, observer: Sink) -> None:
        self._observers.append(observer)
        add_observer(observer)


def _audit_sink(to: str | Path) -> AuditSink:
    writer = StdoutWriter() if to == "stdout" else AuditFile(Path(to).absolute(), max_bytes=MAX_BYTES, keep=KEEP)
    return AuditSink(writer, Entries(requests_sent=True))


def observe(
    *,
    logs: bool | Choice = False,
    level: Level = "info",
    audit: str | Path | None = None,
    metrics: int | None = None,
    traces: bool | str = False,
    on_event: Sink | None = None,
) -> Observation:
    """Observe everything that happens in this process: all runs, links, stores and sessions, also those that exist.

        with holdfast.observe(logs="json", audit="audit.jsonl", metrics=9464):
            ...

    It lasts while the block does, or until `close()` of what it returns. No call waits for what is written, and none
    fails because of it.

    logs: `"text"`, `"json"` or `"auto"` (text on a terminal, else JSON): write log lines to stderr, beside whatever
        handlers the program has. True: only give them to `logging`, for a program that has set it up.
    level: the least severe lines that `logs` writes. With `logs=True`, the levels of the program's loggers count.
    audit: append an audit trail to this file, or write it to `"stdout"`: runs, calls of tools, prompts and resources
        with their outcomes, sessions that were replaced. `holdfast audit verify` checks it.
    metrics: serve metrics for Prometheus at this port of 127.0.0.1; 0 takes a free one (`metrics_url`).
    traces: send spans of all requests to an OpenTelemetry collector, whose URL it is (`"http://127.0.0.1:4318"`); True:
        where OpenTelemetry's environment variables say. Needs the extra `otel`. A program that has set a tracer
        provider itself has spans without this.
    on_event: a function that is called with every event. It should return soon; what it raises is logged.
    """
    if logs is False and audit is None and metrics is None and traces is False and on_event is None:
        raise UsageError(
            "holdfast.observe() was given nothing to do", remedy='give it logs="text", audit=, metrics= or traces='
        )
    return Observation(logs, level, audit, metrics, traces, on_event)
