"""Every setting of the gateway: its name, its values, its default. `docs/configuration.md` is made from these models.

Unknown keys are refused. Files are read by `file.py`.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from holdfast.core.circuit import THRESHOLD
from holdfast.links.target import RESERVED

Seconds: TypeAlias = Annotated[float, Field(gt=0, le=10**9)]
Reuse: TypeAlias = Literal["session", "principal", "shared", "call"]

MIB = 1024 * 1024
_HASH = re.compile(r"sha256:[0-9a-f]{64}").fullmatch
CALLERS_OWN = frozenset({"authorization", "proxy-authorization"})
"""A caller's credentials for the gateway. No server gets them, or it could act as the caller here."""
HOP_BY_HOP = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-type", "expect", "keep-alive",
     "last-event-id", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Headers that belong to one connection or one message; the request to a server is another one."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+").fullmatch
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\](:\d+)?|[0-9A-Fa-f:]+|[A-Za-z0-9_.-]+(:\d+)?").fullmatch
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*]+/?", re.IGNORECASE).fullmatch
_PUBLIC = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


class Part(BaseModel):
    """A part of the configuration: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Listen(Part):
    """Where the gateway listens, and to whom."""

    host: str = Field(default="127.0.0.1", description="The address to bind to. Anything but loopback needs `auth`.")
    port: int = Field(default=8808, ge=0, le=65535, description="The port; 0 takes a free one.")
    path: str = Field(default="/mcp", pattern=r"^/[A-Za-z0-9._~/-]*$", description="The endpoint's path.")
    hosts: tuple[str, ...] = Field(
        default=(), description="`Host` headers that are served besides loopback's, each by its name.", strict=False
    )
    origins: tuple[str, ...] = Field(
        default=(), description="Web origins that may call besides loopback's, as `https://app.example`.", strict=False
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
        description="Seconds that SIGTERM leaves everything as it is but `/readyz`, for load balancers to notice.",
    )
    max_body: int = Field(default=4 * MIB, ge=1024, description="Bytes of a request's body; more is answered with 413.")


class Token(Part):
    """One caller's token, as its hash."""

    hash: str = Field(description="`sha256:…`, as `holdfast token new` prints it.", repr=False)
    principal: str = Field(min_length=1, max_length=200, description="The caller who has this token.")

    expires: datetime | None = Field(
        default=None,
        strict=False,
        description="When the token ends, as `2027-01-31T12:00:00Z`; requests that its caller has open end then, too.",
    )

    @field_validator("expires")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value

    @field_validator("principal")
    @classmethod
    def _somebody(cls, value: str) -> str:
        if value in ("anonymous", "local"):
            raise ValueError(f"{value!r} stands for callers without a token; take another name")
        return value

    @field_validator("hash")
    @classmethod
    def _a_hash(cls, value: str) -> str:
        if not _HASH(value):
            raise ValueError("is not a hash like sha256:… of 64 digits; `holdfast token new` prints one")
        return value


class Auth(Part):
    """Who may call."""

    tokens: tuple[Token, ...] = Field(
        default=(), description="Static bearer tokens. None at all: no auth, loopback only.", strict=False
    )

    @model_validator(mode="after")
    def _different(self) -> "Auth":
        if not self.tokens:
            raise ValueError("has no tokens, so that no caller is let in; write 'auth: none' for no auth")
        hashes = [token.hash for token in self.tokens]
        if len(set(hashes)) != len(hashes):
            raise ValueError("two tokens have the same hash")
        return self


class Sessions(Part):
    """How long sessions live, how many there may be, and how a 2026 client names its own."""

    idle: Seconds = Field(default=1800.0, description="Seconds without use after which a session ends.")
    max_age: Seconds = Field(
        default=86_400.0,
        description="Seconds after which a session ends however much it is used.",
    )
    per_principal: int = Field(default=1_000, ge=1, description="Sessions of one caller; more is answered with 503.")
    total: int = Field(default=10_000, ge=1, description="Sessions of all callers; more is answered with 503.")
    live: int = Field(
        default=1_000,
        ge=1,
        description="Sessions that a process holds ready; the least recently used rest in the store.",
    )
    start: Seconds = Field(
        default=2.0,
        description="Seconds that `initialize` waits for backends; late ones attach later.",
    )
    drain: Seconds = Field(
        default=10.0,
        description="Seconds that calls under way get when a session or the gateway ends.",
    )
    ask: Seconds = Field(
        default=300.0,
        description="Seconds that a client has to answer a server's question: a person may have to read it.",
    )
    children: int = Field(
        default=64,
        ge=0,
        description="Child processes of the whole gateway; at the limit, the least recently used idle one makes room.",
    )
    children_per_principal: int | None = Field(
        default=None,
        ge=1,
        description="Child processes of one caller. Without it, half of `children`, or all where there is no `auth`.",
    )
    handles: bool = Field(
        default=False, description="Offer 2026 clients a pair of tools that open and end a session, named by a handle."
    )
    header: str | None = Field(
        default=None, description="A request header whose value names a 2026 client's session, within its principal."
    )
    steer: bool = Field(
        default=True,
        description="Let clients that speak both eras take 2025 where a backend keeps sessions, so that they hold.",
    )
    steer_except: tuple[str, ...] = Field(
        default=("inspector", "inspector-*", "mcp-inspector*"),
        description="Names of clients (`clientInfo.name`) that are not steered, as they speak 2026 only; `*` and `?` "
        "stand for characters.",
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
    """How soon the gateway notices changes of its servers."""

    every: Seconds = Field(
        default=5.0,
        description="Seconds between two checks of each server, which find servers that went down, came back or were "
        "deployed anew.",
    )
    lists: Seconds = Field(
        default=300.0,
        description="Seconds after which a server's lists are fetched anew, though it announced no change.",
    )


class Naming(Part):
    """What tools and prompts are called on the front."""

    mode: Literal["prefix", "none", "priority"] = Field(
        default="prefix",
        description="`prefix`: always `server__tool`. `none`: as they are, a clash is refused. `priority`: as "
        "they are, the first server wins.",
    )
    rename: dict[str, str] = Field(
        default_factory=dict, description="Names by hand: `server.tool` to what it is called instead."
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
            raise ValueError("two tools are given the same name")
        return value


class Policy(Part):
    """What a server's entry may say besides the ecosystem's keys."""

    reuse: Reuse = Field(
        default="session",
        description="Who shares a session at the server: only the client's `session`; all clients of a `principal`; "
        "all clients (`shared`, if the operator knows it is safe); or each `call` has its own.",
    )
    stateful: bool = Field(default=True, description="False: the server keeps nothing that a later call relies on.")
    on_replaced: Literal["tell", "continue"] = Field(
        default="tell",
        description="When the server has lost a session: report it to the next call that is not safe to repeat, or go "
        "on.",
    )
    start: Literal["eager", "lazy"] = Field(
        default="eager",
        description="Start with the session, or with its first call.",
    )
    circuit: int = Field(
        default=THRESHOLD,
        ge=0,
        le=1_000_000,
        description="Transport faults in a row (refused, cut, 502 to 504, never a tool's own 500) after which calls "
        "rest for a while; 0: never.",
    )
    warm: int = Field(default=0, ge=0, le=100, description="Spare sessions kept ready, each for one client session.")
    allow: tuple[str, ...] | None = Field(
        default=None, description="Only these tools and prompts; `*` and `?` stand for characters.", strict=False
    )
    deny: tuple[str, ...] = Field(default=(), description="Not these tools and prompts.", strict=False)
    descriptions: dict[str, str] = Field(
        default_factory=dict, description="Another description for a tool or prompt, by its own name."
    )
    uris: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = Field(
        default=(),
        description="Resources that this server has though it lists none of them, as `ui://board/*`; `*` and `?` stand "
        "for characters.",
        strict=False,
    )
    pass_headers: tuple[str, ...] = Field(
        default=(),
        description="Headers of the caller's request that go on to this server, with every request; never its "
        "`authorization`. What the server lists is then each caller's own.",
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
                    "give the server its own under `headers`"
                )
            if name.lower() in RESERVED | HOP_BY_HOP:
                raise ValueError(f"{name!r} is set anew for each request to a server, so it can't be passed on")
        return tuple(name.lower() for name in value)


class ClientLimits(Part):
    """The time, connections and memory that clients may take."""

    head: Seconds = Field(default=10.0, description="Seconds for the head of a request, once its connection is open.")
    body: Seconds = Field(default=60.0, description="Seconds for the body of a request.")
    idle: Seconds = Field(default=75.0, description="Seconds that a connection is kept without a request.")
    write: Seconds = Field(
        default=30.0,
        description="Seconds after which the connection of a client that takes nothing it is sent is closed.",
    )
    connections: int = Field(
        default=2048,
        ge=1,
        description="Connections at once, but at most three quarters of the files that the process may open. A new one "
        "takes the place of the one that has waited longest for a request.",
    )
    per_principal: int = Field(
        default=512,
        ge=1,
        description="Requests and streams that one caller with a token may have open, but at most half of all "
        "connections; more is answered with 503.",
    )
    stream_bytes: int = Field(
        default=MIB,
        ge=1024,
        description="Bytes of one event stream that wait for its client, or that it may ask for again, besides the "
        "last event. Half of them unread: an HTTP server is read no further. More: the oldest go.",
    )
    session_bytes: int = Field(default=4 * MIB, ge=1024, description="The same of all streams of a session.")
    total_bytes: int = Field(
        default=256 * MIB,
        ge=1024,
        description="The same of all sessions, and bytes that all clients together may leave unread on the wire; "
        "a quarter of it those connections of one caller that take nothing.",
    )


class Settings(Part):
    """The whole file except the servers."""

    listen: Listen = Field(default=Listen(), description="The address, and the hosts and origins that are served.")
    store: str | None = Field(
        repr=False,
        default=None,
        description="Where sessions are kept: a store's URL. Without one: a SQLite file of this configuration.",
    )
    auth: Auth | Literal["none"] = Field(default="none", description="Who may call.")
    sessions: Sessions = Field(default=Sessions(), description="Lifetimes, limits, and 2026 clients.")
    health: Health = Field(default=Health(), description="How soon changes of servers are noticed.")
    clients: ClientLimits = Field(default=ClientLimits(), description="Limits for clients.")
    naming: Naming = Field(default=Naming(), description="Names on the front.")

    @property
    def children_per_caller(self) -> int:
        """How many programs one caller may have; without auth there is only one caller."""
        sessions = self.sessions
        share = sessions.children if self.auth == "none" else (sessions.children + 1) // 2
        return sessions.children_per_principal or share


POLICY_KEYS = frozenset(Policy.model_fields)
SETTINGS_KEYS = frozenset(Settings.model_fields)
