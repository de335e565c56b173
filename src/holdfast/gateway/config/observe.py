"""The part `observe` of the gateway's file: logs, audit trail, metrics and traces."""

from typing import Literal

from pydantic import Field, field_validator

from holdfast.gateway.config.part import MIB, Part, hash_checked


class Logs(Part):
    """What goes to stderr."""

    format: Literal["auto", "text", "json"] = Field(
        default="auto", description="`text` for people, `json` a JSON object a line; `auto`: text on a terminal."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="The least severe lines that are written."
    )


class Audit(Part):
    """Who did what: JSON lines, each with the hash of the one before."""

    to: str = Field(
        min_length=1,
        description="A file, relative to this one; `stdout`; or `store`, where all processes of the gateway write.",
    )
    values: bool = Field(default=False, description="Write the values of arguments, not only their names and sizes.")
    redact: tuple[str, ...] = Field(
        default=("*password*", "*secret*", "*token*", "*key*", "*authorization*", "*cookie*"),
        description="Names of arguments, at any depth, whose values are never written; `*` and `?` are wildcards.",
        strict=False,
    )
    max_bytes: int = Field(
        default=64 * MIB, ge=4096, description="Size of the file at which a new one is begun; the old ones get numbers."
    )
    keep: int = Field(default=10, ge=1, le=10_000, description="Old files that are kept.")
    when_full: Literal["block", "drop"] = Field(
        default="drop",
        description="If lines can't be written as fast as they come, or the disk is full: `drop` and count them, or "
        "`block`: calls wait.",
    )


class Metrics(Part):
    """Where Prometheus reads."""

    host: str = Field(default="127.0.0.1", description="The address to bind to. Anything but loopback needs `token`.")
    port: int | None = Field(
        default=None, ge=0, le=65535, description="A port of its own; by default the gateway's own, with `path`."
    )
    path: str = Field(default="/metrics", pattern=r"^/[A-Za-z0-9._~/-]*$", description="The path.")
    token: str | None = Field(
        default=None,
        description="`sha256:…` of the readers' token; `holdfast token new` prints one.",
        repr=False,
    )
    tools: int = Field(
        default=200, ge=0, le=100_000, description="Names of tools that get series of their own; the rest is `other`."
    )

    @field_validator("token")
    @classmethod
    def _hash(cls, value: str | None) -> str | None:
        return None if value is None else hash_checked(value)


class Traces(Part):
    """Where spans go, by OTLP. What is not said here is read from OpenTelemetry's environment variables."""

    endpoint: str | None = Field(
        default=None, description="The collector, like `http://127.0.0.1:4318`; needs the extra `otel`."
    )
    sample: float = Field(
        default=1.0, ge=0, le=1, description="The share of traces that are begun here; others follow their caller."
    )
    metrics: bool = Field(default=False, description="Send metrics there, too.")


class Observe(Part):
    """How what happens can be seen."""

    logs: Logs = Field(default=Logs(), description="Lines for operators, on stderr.")
    audit: Audit | None = Field(default=None, description="An audit trail. By default there is none.")
    metrics: Metrics | None = Field(default=None, description="Metrics for Prometheus. By default there are none.")
    traces: Traces | None = Field(default=None, description="Traces for OpenTelemetry. By default there are none.")
