"""Every setting of the gateway: its name, its values, its default. `docs/configuration.md` shows them.

Unknown keys are refused. Files are read by `file.py`.
"""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from holdfast.core.circuit import THRESHOLD
from holdfast.gateway.config.callers import Auth
from holdfast.gateway.config.observe import Observe
from holdfast.gateway.config.part import MIB, Part
from holdfast.links.target import RESERVED

Seconds: TypeAlias = Annotated[float, Field(gt=0, le=10**9)]
Reuse: TypeAlias = Literal["session", "principal", "shared", "call"]

CALLERS_OWN = frozenset({"authorization", "cookie", "proxy-authorization"})
"""A caller's credentials for the gateway. They are sent to no server, which could act as the caller with them."""
HOP_BY_HOP = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-type", "expect", "keep-alive",
     "last-event-id", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Headers that belong to one connection or one message, so the request to a server has its own."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+").fullmatch
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\](:\d+)?|[0-9A-Fa-f:]+|[A-Za-z0-9_.-]+(:\d+)?").fullmatch
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*]+/?", re.IGNORECASE).fullmatch
_PUBLIC = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


class Listen(Part):
    """Where the gateway listens, and which hosts and origins it serves."""

    host: str = Field(default="127.0.0.1", description="The address to bind to. Anything but loopback needs `auth`.")
    port: int = Field(default=8808, ge=0, le=65535, description="The port; 0 chooses a free one.")
    path: str = Field(default="/mcp", pattern=r"^/[A-Za-z0-9._~/-]*$", description="The endpoint's path.")
    hosts: tuple[str, ...] = Field(
        default=(), description="Names in `Host` headers that are served besides those of loopback.", strict=False
    )
    origins: tuple[str, ...] = Field(
        default=(),
        description="Web origins that are served besides those of loopback, like `https://app.example`.",
        strict=False,
    )

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if "*" in host:
                raise ValueError(
                    f"{host!r:.80} is not a host name: hosts have no wildcards; list each, or leave `hosts` "
                    "out, which serves any name where `host` is not loopback"
                )
            if not _HOST(host):
                raise ValueError(f"{host!r:.80} is not a `Host` header; write it like mcp.example or mcp.example:8808")
        return value

    @field_validator("origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not _ORIGIN(origin):
                raise ValueError(f"{origin!r:.80} is not a web origin; write it like https://app.example")
        return value

    @field_validator("path")
    @classmethod
    def _ours(cls, value: str) -> str:
        if value in ("/healthz", "/readyz"):
            raise ValueError(f"{value} is one of the gateway's own paths; take another")
        return value

    linger: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="Seconds after SIGTERM in which only `/readyz` changes, so that load balancers can react.",
    )
    max_body: int = Field(
        default=4 * MIB, ge=1024, description="Maximum bytes of a request's body; more is answered with 413."
    )


class Sessions(Part):
    """How long sessions live, how many there may be, and how a 2026 client names its own."""

    idle: Seconds = Field(default=1800.0, description="Seconds without use after which a session ends.")
    max_age: Seconds = Field(
        default=86_400.0,
        description="Seconds after which a session ends in any case.",
    )
    per_principal: int = Field(
        default=1_000, ge=1, description="Maximum sessions of one caller; more are answered with 503."
    )
    total: int = Field(default=10_000, ge=1, description="Maximum sessions of all callers; more are answered with 503.")
    live: int = Field(
        default=1_000,
        ge=1,
        description="Sessions that a process keeps in memory; the least recently used are only in the store.",
    )
    start: Seconds = Field(
        default=2.0,
        description="Seconds that `initialize` waits for servers; slower ones are added when they are up.",
    )
    drain: Seconds = Field(
        default=10.0,
        description="Seconds that running calls get to finish when a session or the gateway ends.",
    )
    ask: Seconds = Field(
        default=300.0,
        description="Seconds that a client has to answer a server's question, which a person may have to read.",
    )
    park: Seconds = Field(
        default=600.0,
        description="Seconds that a call of a 2026 client waits for the answers to what its server asks, before it is "
        "cancelled.",
    )
    parked_per_principal: int = Field(
        default=64, ge=1, description="Calls of one caller that may wait so; a question of one more is refused."
    )
    parked_bytes: int = Field(
        default=8 * MIB, ge=1024, description="Bytes that they may hold: requests, questions, results that wait."
    )
    children: int = Field(
        default=64,
        ge=0,
        description="Maximum child processes; at the limit, the least recently used idle one is stopped.",
    )
    children_per_principal: int | None = Field(
        default=None,
        ge=1,
        description="Maximum child processes of one caller. By default half of `children`, or all without `auth`.",
    )
    handles: bool = Field(
        default=False,
        description="Offer 2026 clients two tools that open and end a session, which is named by a handle.",
    )
    header: str | None = Field(
        default=None, description="A request header whose value names a 2026 client's session, within its principal."
    )
    steer: bool = Field(
        default=True,
        description="Make clients that speak both eras use 2025 if a server keeps sessions.",
    )
    steer_except: tuple[str, ...] = Field(
        default=("inspector", "inspector-*", "mcp-inspector*"),
        description="Names of clients (`clientInfo.name`) that are not steered because they speak only 2026; `*` and "
        "`?` are wildcards.",
        strict=False,
    )

    @model_validator(mode="after")
    def _in_order(self) -> "Sessions":
        if self.max_age < self.idle:
            raise ValueError(f"max_age {self.max_age:g} is shorter than idle {self.idle:g}")
        return self

    @field_validator("header")
    @classmethod
    def _a_header(cls, value: str | None) -> str | None:
        if value is not None and not _HEADER(value):
            raise ValueError("is not the name of a header")
        if value is not None and value.lower() in RESERVED | HOP_BY_HOP | CALLERS_OWN:
            raise ValueError(f"{value!r} has a meaning of its own; take another, like X-Conversation")
        return value


class Health(Part):
    """How often the gateway checks its servers."""

    every: Seconds = Field(
        default=5.0,
        description="Seconds between two checks of each server, which detect that it went down, came back or was "
        "deployed again.",
    )
    lists: Seconds = Field(
        default=300.0,
        description="Seconds after which a server's lists are fetched again even if it announced no change.",
    )


class Naming(Part):
    """How tools and prompts are named for clients."""

    mode: Literal["prefix", "none", "priority"] = Field(
        default="prefix",
        description="`prefix`: always `server__tool`. `none`: unchanged, and a conflict is refused. `priority`: "
        "unchanged, and the first server with a name is used.",
    )
    rename: dict[str, str] = Field(
        default_factory=dict, description="Other names for single tools: from `server.tool` to the new name."
    )

    @field_validator("rename")
    @classmethod
    def _names(cls, value: dict[str, str]) -> dict[str, str]:
        for key, name in value.items():
            if "." not in key:
                raise ValueError(f"{key!r} is not `server.tool`")
            if not _PUBLIC(name):
                raise ValueError(f"{name!r:.80} is not a tool's name: letters, digits, '_', '.', '-', at most 64")
        if len(set(value.values())) != len(value):
            raise ValueError("two tools are given the same name; rename one of them")
        return value


class Policy(Part):
    """What a server's entry may contain besides the ecosystem's keys."""

    reuse: Reuse = Field(
        default="session",
        description="Who shares a session at the server: `session`, only one client session; `principal`, all "
        "sessions of one caller; `shared`, all callers, if the operator knows that this is safe; `call`, each call has "
        "its own.",
    )
    stateful: bool = Field(default=True, description="False: the server keeps no state that a later call relies on.")
    on_replaced: Literal["report", "continue"] = Field(
        default="report",
        description="After the server lost a session: `report` it to the next call that is not safe to repeat; "
        "`continue`, do not report it.",
    )
    start: Literal["eager", "lazy"] = Field(
        default="eager",
        description="Start with the session (`eager`) or with its first call (`lazy`).",
    )
    circuit: int = Field(
        default=THRESHOLD,
        ge=0,
        le=1_000_000,
        description="Transport faults in a row (refused, cut, 502 to 504, but not a tool's own 500) after which calls "
        "are refused for a while; 0: never.",
    )
    warm: int = Field(default=0, ge=0, le=100, description="Unused sessions kept ready, each for one client session.")
    allow: tuple[str, ...] | None = Field(
        default=None, description="Offer only these tools and prompts; `*` and `?` are wildcards.", strict=False
    )
    deny: tuple[str, ...] = Field(
        default=(), description="Do not offer these tools and prompts; `*` and `?` are wildcards.", strict=False
    )
    descriptions: dict[str, str] = Field(
        default_factory=dict, description="Other descriptions of tools and prompts, by the server's own names."
    )
    uris: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = Field(
        default=(),
        description="Resources that this server has though it lists none of them, as `ui://board/*`; `*` and `?` stand "
        "for characters.",
        strict=False,
    )
    methods: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = Field(
        default=(),
        description="Methods of extensions that this server has though it does not declare them, as `vendor/*`; "
        "notifications as `notifications/vendor/*`.",
        strict=False,
    )
    pass_headers: tuple[str, ...] = Field(
        default=(),
        description="Headers of the caller's request that are passed to this server with every request; "
        "`authorization` can't be. The server's lists are then kept for each caller.",
        strict=False,
    )

    @field_validator("pass_headers")
    @classmethod
    def _headers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _HEADER(name):
                raise ValueError(f"{name!r:.80} is not a header's name")
            if name.lower() in CALLERS_OWN:
                raise ValueError(
                    f"{name!r} is the caller's own credential for this gateway and goes to no server; "
                    "set one for the server under `headers`"
                )
            if name.lower() in RESERVED | HOP_BY_HOP:
                raise ValueError(
                    f"{name!r} is set anew for each request to a server, so it can't be passed on; remove it"
                )
        return tuple(name.lower() for name in value)


class ClientLimits(Part):
    """The time, connections and memory that clients may take."""

    head: Seconds = Field(
        default=10.0, description="Seconds that a client has to send the head of a request once its connection is open."
    )
    body: Seconds = Field(default=60.0, description="Seconds that a client has to send the body of a request.")
    idle: Seconds = Field(default=75.0, description="Seconds after which a connection without a request is closed.")
    write: Seconds = Field(
        default=30.0,
        description="Seconds after which the connection of a client that reads nothing of what it is sent is closed.",
    )
    keep_alive: Seconds = Field(
        default=5.0,
        description="Seconds after which a client that accepts event streams is sent a comment for a call that is not "
        "answered yet, and again after each such time.",
    )
    connections: int = Field(
        default=2048,
        ge=1,
        description="Maximum connections, and at most three quarters of the files that the process may open. A new one "
        "replaces the one that has waited longest for a request.",
    )
    per_principal: int = Field(
        default=512,
        ge=1,
        description="Maximum open requests and streams of one caller with a token, and at most half of all "
        "connections; more are answered with 503.",
    )
    calls_per_second: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="Calls a second that one caller may make for long, in each process; more are answered with 429. "
        "Without `auth`, all callers are one.",
    )
    burst: int | None = Field(
        default=None, ge=1, description="Calls that it may make at once after a pause; by default those of one second."
    )
    stream_bytes: int = Field(
        default=MIB,
        ge=1024,
        description="Maximum bytes of one event stream that wait for its client or are kept for resumption, besides "
        "the last event. If half of them are unread, reading from an HTTP server pauses; beyond the limit, the oldest "
        "events are dropped.",
    )
    session_bytes: int = Field(default=4 * MIB, ge=1024, description="The same limit for all streams of a session.")
    total_bytes: int = Field(
        default=256 * MIB,
        ge=1024,
        description="The same limit for all sessions, and for bytes that all clients together leave unread on their "
        "connections; connections of one caller that read nothing may leave a quarter of it.",
    )


class Settings(Part):
    """The whole file except the servers."""

    listen: Listen = Field(default=Listen(), description="The address, and the hosts and origins that are served.")
    store: str | None = Field(
        repr=False,
        default=None,
        description="URL of the store for sessions. Default: a SQLite file in the state folder, one per configuration.",
    )
    auth: Auth | Literal["none"] = Field(default="none", description="Who may call.")
    sessions: Sessions = Field(default=Sessions(), description="Lifetimes, limits, and 2026 clients.")
    health: Health = Field(default=Health(), description="How often servers are checked.")
    clients: ClientLimits = Field(default=ClientLimits(), description="Limits for clients.")
    naming: Naming = Field(default=Naming(), description="Names of tools and prompts.")
    observe: Observe = Field(default=Observe(), description="Logs, audit trail, metrics and traces.")

    @model_validator(mode="after")
    def _own_paths(self) -> "Settings":
        metrics = self.observe.metrics
        if metrics is not None and metrics.port is None and metrics.path in (self.listen.path, "/healthz", "/readyz"):
            raise ValueError(f"observe.metrics.path {metrics.path} is served already; take another")
        return self

    @property
    def children_per_caller(self) -> int:
        """The maximum number of programs of one caller; without auth there is only one caller."""
        sessions = self.sessions
        share = sessions.children if self.auth == "none" else (sessions.children + 1) // 2
        return sessions.children_per_principal or share


POLICY_KEYS = frozenset(Policy.model_fields)
SETTINGS_KEYS = frozenset(Settings.model_fields)
