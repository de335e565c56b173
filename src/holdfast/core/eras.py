"""The two eras of the protocol: what a message must carry in each, and which one is used with a server.

Here are the versions, the 2026 envelope and headers, the interpretation of a probe, and the conversion of a result to
the other era. A timeout, a 401 or a 5xx says nothing about the era.
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
"""The versions that Holdfast supports, newest first."""

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
"""Methods during which a server may send requests to its client."""

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
"""Methods whose 2026 result must say how long it may be cached."""

_PLAIN_HEADER = re.compile(r"[\x20-\x7e]*").fullmatch
_ENCODED_HEADER = re.compile(r"=\?base64\?.*\?=").fullmatch


def header_value(value: str) -> str:
    """A value encoded for an `Mcp-*` header: plain where that is safe and unambiguous, else base64."""
    if _PLAIN_HEADER(value) and value == value.strip() and not _ENCODED_HEADER(value):
        return value
    # A lone surrogate is not UTF-8; refusing it is left to the server.
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'surrogatepass')).decode()}?="


def headers_2026(method: str, params: Mapping[str, Any], version: str) -> dict[str, str]:
    """The headers that repeat parts of the body."""
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
    """The parameters with their 2026 envelope. Fields set by the caller are kept, except the version."""
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
    """The parameters of a notification without the id of the 2026 subscription that delivered it:
    each listener has its own.
    """
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or SUBSCRIPTION_ID not in meta:
        return dict(params)
    kept = {key: value for key, value in cast("Mapping[str, Any]", meta).items() if key != SUBSCRIPTION_ID}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


def result_in(era: Era, method: str, result: dict[str, Any]) -> dict[str, Any]:
    """A result converted to `era`. 2025 clients ignore fields that they don't know."""
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
    """Why a link uses its era."""

    PINNED = "era= pins it"
    HOLDS_SESSION = "it can hold a session"
    NO_SESSION_WANTED = "no session was wanted"
    ONLY_ONE = "the server refused the other era"
    NO_SESSION_GIVEN = "the server speaks 2025 too, and gives no session there"
    SAVED = "it was saved so"
    KNOWN = "the client knows the server"
    ASKED = "its user asked for it"


PASSED_SECONDS = 600.0  # for which a server's refusal of an era is remembered; after that a link probes again


@dataclass(eq=False)
class Offers:
    """What is known about the eras that a server offers. It holds facts about the server, not preferences of links."""

    passed: dict[Era, tuple[float, Why]] = field(default_factory=dict[Era, tuple[float, Why]])
    """Eras that were not available, since when, and why."""
    reported_sessionless: bool = False
    """Whether it was reported that the server offers no session."""

    def has_passed(self, era: Era, now: float) -> bool:
        since = self.passed.get(era)
        return since is not None and now - since[0] < PASSED_SECONDS

    def took(self, era: Era) -> None:
        self.passed.pop(era, None)

    def passes(self, era: Era, why: Why, now: float) -> None:
        self.passed[era] = (now, why)

    def first(self, prefers: Era, now: float) -> Era:
        """The era to try first: the preferred one, unless it was recently not available."""
        other = Era.Y2026 if prefers is Era.Y2025 else Era.Y2025
        return other if self.has_passed(prefers, now) and not self.has_passed(other, now) else prefers

    def why(self, prefers: Era, taken: Era) -> Why:
        """Why a link that prefers `prefers` uses `taken`."""
        if taken is prefers:
            return Why.HOLDS_SESSION if taken is Era.Y2025 else Why.NO_SESSION_WANTED
        return self.passed[prefers][1] if prefers in self.passed else Why.ONLY_ONE


class Probed(Enum):
    """What a probe with `server/discover` found."""

    IS_2026 = "speaks 2026"
    IS_2025 = "probably speaks 2025; the handshake decides"
    ASK_AGAIN = "names a 2026 version that we support"
    INCOMPATIBLE = "supports no version that we support"


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probe.
    `version` is the one to use, or to probe again with; `offered` is what the server named.
    """

    verdict: Probed
    version: str | None = None
    offered: tuple[str, ...] = ()


def _versions(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(version for version in cast("list[object]", value) if isinstance(version, str))


def read_probe(result: Mapping[str, Any] | None, code: int | None, data: object) -> Probe:
    """Interpret a complete answer to `server/discover`: its result, or the JSON-RPC error that came instead.

    The caller has checked that it is a complete answer with a status below 500, other than 401 and 429.
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
