"""Handshakes with clients: what is read from theirs, and what is answered."""

from typing import Any, cast

from holdfast.core.eras import SERVER_INFO, VERSIONS, Era
from holdfast.core.values import encode
from holdfast.errors import UnstorableValue
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.identity import introduction
from holdfast.gateway.sessions.record import Client

MAX_HANDSHAKE = 16 * 1024  # bytes that a client may say about itself: they are stored, and sent to every backend


class BadHandshake(ValueError):
    """A client's `initialize` can't be read."""


def client_of(params: dict[str, Any]) -> Client:
    """The client as `initialize` describes it. Parts of a wrong type are left out."""
    info, capabilities, version = params.get("clientInfo"), params.get("capabilities"), params.get("protocolVersion")
    if not isinstance(version, str):
        raise BadHandshake("initialize needs a protocolVersion")
    try:
        size = len(encode({"info": info, "capabilities": capabilities}))
    except UnstorableValue as error:
        raise BadHandshake(f"clientInfo or capabilities can't be stored: {error.what}") from None
    if size > MAX_HANDSHAKE:
        raise BadHandshake(f"clientInfo and capabilities have {size} bytes, more than {MAX_HANDSHAKE}")
    known = VERSIONS[Era.Y2025]
    return Client(
        cast("dict[str, Any]", info) if isinstance(info, dict) else {},
        cast("dict[str, Any]", capabilities) if isinstance(capabilities, dict) else {},
        version if version in known else known[0],
    )


def handshake(gateway: Gateway, context: RequestContext) -> dict[str, Any]:
    """The result of `initialize`."""
    said = introduction(gateway, context)
    result: dict[str, Any] = {
        **said.others,
        "protocolVersion": context.client.version,
        "capabilities": said.capabilities,
        "serverInfo": said.info,
    }
    if said.meta:
        result["_meta"] = said.meta
    if said.instructions:
        result["instructions"] = said.instructions
    return result


def discovery(gateway: Gateway, context: RequestContext) -> dict[str, Any]:
    """The result of `server/discover`."""
    said = introduction(gateway, context)
    result: dict[str, Any] = {
        **said.others,
        "supportedVersions": [*VERSIONS[Era.Y2026]],
        "capabilities": said.capabilities,
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {**said.meta, SERVER_INFO: said.info},
    }
    if said.instructions:
        result["instructions"] = said.instructions
    return result
