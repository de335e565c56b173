"""The two eras of the protocol: what a message must carry in each, which a server speaks, and which of both is taken.

It owns versions, the 2026 envelope and headers, the reading of a probe, and the shape of a result in the other era.
Nothing is guessed: a timeout, a 401 or a 5xx says nothing about the era.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast


class Era(Enum):
    """`2025`: handshake and session id, up to 2025-11-25. `2026`: stateless requests, from 2026-07-28."""

    Y2025 = "2025"
    Y2026 = "2026"


VERSIONS: Mapping[Era, tuple[str, ...]] = {
    Era.Y2025: ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"),
    Era.Y2026: ("2026-07-28",),
}
"""The versions that Holdfast speaks, newest first."""

PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"

HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

NAMED_BY: Mapping[str, str] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""Methods whose `Mcp-Name` header repeats one of their parameters, for routing."""

INPUT_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Methods in the middle of which a server may ask its client for something."""

CACHEABLE = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)
"""Methods whose 2026 result must say how long it may be kept."""

_PLAIN_HEADER = re.compile(r"[\x20-\x7e]*").fullmatch
_ENCODED_HEADER = re.compile(r"=\?base64\?.*\?=").fullmatch


def header_value(value: str) -> str:
    """A value as it may stand in an `Mcp-*` header: plain where that is safe and unambiguous, else encoded."""
    if _PLAIN_HEADER(value) and value == value.strip() and not _ENCODED_HEADER(value):
        return value
    # A lone surrogate is not UTF-8; refusing it is left to the server.
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'surrogatepass')).decode()}?="


def headers_2026(method: str, params: Mapping[str, Any], version: str) -> dict[str, str]:
    """The headers that repeat what the body says."""
    headers = {"mcp-protocol-version": version, "mcp-method": method}
    named_by = NAMED_BY.get(method)
    if named_by is not None:
        name = params.get(named_by)
        if isinstance(name, str):
            headers["mcp-name"] = header_value(name)
    return headers


def stamp_2026(
    params: Mapping[str, Any] | None,
    version: str,
    client_info: Mapping[str, Any],
    capabilities: Mapping[str, Any],
    log_level: str | None = None,
) -> dict[str, Any]:
    """The parameters with their envelope. What the caller put there stays, but for the version."""
    stamped = dict(params) if params else {}
    meta = dict(cast("Mapping[str, Any]", stamped.get("_meta") or {}))
    meta[PROTOCOL_VERSION] = version
    meta.setdefault(CLIENT_CAPABILITIES, capabilities)
    meta.setdefault(CLIENT_INFO, client_info)
    if log_level is not None:
        meta.setdefault(LOG_LEVEL, log_level)
    stamped["_meta"] = meta
    return stamped


def unstamp(params: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The parameters without a 2026 envelope, for a 2025 server."""
    meta = params.get("_meta") if params else None
    if not params or not isinstance(meta, Mapping):
        return params
    known = cast("Mapping[str, Any]", meta)
    kept = {
        key: value
        for key, value in known.items()
        if key not in (PROTOCOL_VERSION, CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL)
    }
    if len(kept) == len(known):
        return params
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


def without_subscription(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a notification without the 2026 subscription that it came by: a listener has its own."""
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or SUBSCRIPTION_ID not in meta:
        return dict(params)
    kept = {key: value for key, value in cast("Mapping[str, Any]", meta).items() if key != SUBSCRIPTION_ID}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


def result_in(era: Era, method: str, result: dict[str, Any]) -> dict[str, Any]:
    """A result in the shape of that era. 2025 readers ignore what they don't know."""
    if era is Era.Y2025 or ("resultType" in result and (method not in CACHEABLE or "ttlMs" in result)):
        return result
    kept = {"ttlMs": 0, "cacheScope": "private"} if method in CACHEABLE else {}
    return {"resultType": "complete", **kept, **result}


def result_for_2025(method: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A 2026 server's result without what only that era has."""
    cached = ("ttlMs", "cacheScope") if method in CACHEABLE else ()
    kept = {name: value for name, value in result.items() if name != "resultType" and name not in cached}
    meta = kept.get("_meta")
    if isinstance(meta, Mapping) and SERVER_INFO in meta:
        rest = {name: value for name, value in cast("Mapping[str, Any]", meta).items() if name != SERVER_INFO}
        del kept["_meta"]
        kept |= {"_meta": rest} if rest else {}
    return kept


class Why(Enum):
    """Why a link took its era."""

    PINNED = "era= pins it"
    HOLDS_SESSION = "it can hold a session"
    NO_SESSION_WANTED = "no session was wanted"
    ONLY_ONE = "the server refused the other era"
    NO_SESSION_GIVEN = "the server speaks 2025 too, and gives no session there"
    SAVED = "it was saved so"
    KNOWN = "the client knows the server"
    ASKED = "its user asked for it"


PASSED_SECONDS = 600.0  # for which a server's refusal of an era is believed: after that a link that comes up asks again


@dataclass(eq=False)
class Offers:
    """What is known of the eras that a server offers. Facts about the server only: no link's preference enters it."""

    passed: dict[Era, tuple[float, Why]] = field(default_factory=dict[Era, tuple[float, Why]])
    """Eras that were not available, since when, and why."""
    reported_sessionless: bool = False
    """It was reported that it offers no session."""

    def has_passed(self, era: Era, now: float) -> bool:
        since = self.passed.get(era)
        return since is not None and now - since[0] < PASSED_SECONDS

    def took(self, era: Era) -> None:
        self.passed.pop(era, None)

    def passes(self, era: Era, why: Why, now: float) -> None:
        self.passed[era] = (now, why)

    def first(self, prefers: Era, now: float) -> Era:
        """The era to try first: the preferred one, unless it was not available a while ago."""
        other = Era.Y2026 if prefers is Era.Y2025 else Era.Y2025
        return other if self.has_passed(prefers, now) and not self.has_passed(other, now) else prefers

    def why(self, prefers: Era, taken: Era) -> Why:
        """Why `taken` was taken, by a link that prefers `prefers`."""
        if taken is prefers:
            return Why.HOLDS_SESSION if taken is Era.Y2025 else Why.NO_SESSION_WANTED
        return self.passed[prefers][1] if prefers in self.passed else Why.ONLY_ONE


class Probed(Enum):
    """What a probe with `server/discover` found."""

    IS_2026 = "speaks 2026"
    IS_2025 = "speaks 2025, as far as this tells; the handshake decides"
    ASK_AGAIN = "names a 2026 version that we share"
    INCOMPATIBLE = "speaks no version that we speak"


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe's reading; `version` is the one to speak, or to ask again with; `offered` is what the server named."""

    verdict: Probed
    version: str | None = None
    offered: tuple[str, ...] = ()


def _versions(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(version for version in cast("list[object]", value) if isinstance(version, str))


def read_probe(result: Mapping[str, Any] | None, code: int | None, data: object) -> Probe:
    """Read a complete answer to `server/discover`: its result, or the JSON-RPC error that came instead.

    The caller has made sure that it *is* a complete answer below 500 that is neither 401 nor 429.
    """
    if result is not None:
        offered = _versions(result.get("supportedVersions"))
        shared = _shared(Era.Y2026, offered)
        return Probe(Probed.IS_2026, shared, offered) if shared else Probe(Probed.IS_2025, None, offered)
    if code == UNSUPPORTED_VERSION and isinstance(data, Mapping):
        offered = _versions(cast("Mapping[str, Any]", data).get("supported"))
        if shared := _shared(Era.Y2026, offered):
            return Probe(Probed.ASK_AGAIN, shared, offered)
        if offered and not _shared(Era.Y2025, offered):
            return Probe(Probed.INCOMPATIBLE, None, offered)
        return Probe(Probed.IS_2025, None, offered)
    return Probe(Probed.IS_2025)


def _shared(era: Era, offered: tuple[str, ...]) -> str | None:
    return next((version for version in VERSIONS[era] if version in offered), None)
