"""What the gateway says about itself in a handshake, and what it reads from a client's."""

from typing import Any, cast

from holdfast.core.eras import SERVER_INFO, VERSIONS, Era
from holdfast.core.values import encode
from holdfast.errors import UnstorableValue
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.sessions.record import Client
from holdfast.version import __version__

MAX_HANDSHAKE = 16 * 1024  # bytes that a client may say about itself: they are stored, and sent to every backend
INFO = {"name": "holdfast", "version": __version__}
CAPABILITIES: dict[str, Any] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
    "logging": {},
}
"""Always all of them: capabilities freeze at the handshake, and a backend may come up later."""


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


def handshake(gateway: Gateway, client: Client) -> dict[str, Any]:
    """The result of `initialize`."""
    result: dict[str, Any] = {
        "protocolVersion": client.version,
        "capabilities": CAPABILITIES,
        "serverInfo": INFO,
    }
    if instructions := _instructions(gateway):
        result["instructions"] = instructions
    return result


def discovery(gateway: Gateway) -> dict[str, Any]:
    """The result of `server/discover`."""
    result: dict[str, Any] = {
        "supportedVersions": [*VERSIONS[Era.Y2026]],
        "capabilities": CAPABILITIES,
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_INFO: INFO},
    }
    if instructions := _instructions(gateway):
        result["instructions"] = instructions
    return result


def _instructions(gateway: Gateway) -> str | None:
    """The instructions of all backends, under their names."""
    parts = [
        f"# {name}\n{backend.catalogue.instructions}"
        for name, backend in gateway.backends.items()
        if backend.catalogue is not None and backend.catalogue.instructions
    ]
    return "\n\n".join(parts) or None
