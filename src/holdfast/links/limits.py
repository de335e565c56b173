"""The limits of a link, each with its reason. An invalid value raises at once."""

from dataclasses import dataclass, fields

from holdfast.core.circuit import THRESHOLD
from holdfast.core.models import check_seconds
from holdfast.core.retry import BACKOFF, REPLAYS
from holdfast.errors import LimitReached, UsageError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a link, in seconds unless noted otherwise."""

    resolve: float = 30.0
    """For callables that return URL, headers or env: time for a password manager, not for a person."""
    authorize: float = 600.0
    """For an OAuth flow (`auth=`): a person may have to sign in. That time does not count as `start`."""
    connect: float = 10.0
    """For opening a connection, including TLS and a proxy's tunnel: a host that takes longer is down or filtered."""
    handshake: float = 30.0
    """For the handshake: serverless platforms need that long to start."""
    program_handshake: float = 60.0
    """For a program, instead of `handshake`: `npx` and `uvx` may download it first."""
    start: float = 90.0
    """From first use to ready, retries included: what a call waits before it raises `StartTimeout`."""
    slow_start: float = 5.0
    """Before it is logged that the server is still starting."""
    silence: float = 300.0
    """Between two signs of life of a call:
    its answer, progress, or anything else on its stream. A call that shows signs of life may take any time; `timeout=`
    limits its total.
    """
    close: float = 5.0
    """For each step of closing: a server that is gone must not delay an exit."""
    exit: float = 2.0
    """For a program to end after its stdin is closed, and again after it was asked to terminate."""
    deliver: float = 5.0
    """For a cancellation or an answer of ours to reach the server."""
    message_bytes: int = 64 * MIB
    """One message, in either direction: larger things have URIs."""
    in_flight: int = 1_000
    """Concurrent calls: each may hold a connection, and a process has about that many descriptors."""
    circuit: int = THRESHOLD
    """Transport faults in a row after which calls to the server are rejected for a while;
    0 disables that. The links of a process to one server share the count; the limit of the link created last applies.
    """
    replays: int = REPLAYS
    backoff: float = BACKOFF
    """Before the second try; doubled for each further one."""
    stream_retry: float = 1.0
    """Before a dropped server stream is reopened, unless the server asks for another delay."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("message_bytes", "in_flight", "replays", "circuit"):
                if type(value) is not int or value < (field.name not in ("replays", "circuit")):
                    raise UsageError(f"Limits({field.name}=…) must be a positive whole number, not {value!r:.80}")
            else:
                check_seconds(value, f"Limits({field.name}=…)")


def too_large(actual: int, limit: int, server: str) -> LimitReached:
    """The error for a message to the server that is over the limit; nothing was sent."""
    return LimitReached(
        f"a message of {actual} bytes for {server!r} is over the cap of {limit}",
        limit=limit,
        actual=actual,
        server=server,
        phase="send",
        remedy="send less, or in Python raise Limits(message_bytes=…)",
    )
