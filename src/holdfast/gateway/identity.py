"""The identity of the gateway and of the servers behind it, in handshakes and in `_meta` of results.

One server alone is passed on as it is. Of several, the first server's value is taken, and others are in `_meta`.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from holdfast.core.eras import CLIENT_CAPABILITIES, CLIENT_INFO, SERVER_INFO, Era
from holdfast.core.values import members
from holdfast.gateway.backends.lists.catalogue import Catalogue
from holdfast.gateway.backends.lists.list_members import OTHERS
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.sessions.record import Client
from holdfast.links.codec import weight
from holdfast.version import __version__

OWN_INFO: Mapping[str, Any] = {"name": "holdfast", "version": __version__}
CAPABILITIES: Mapping[str, Any] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
    "logging": {},
}
"""Always all of them: capabilities freeze at the handshake, and a backend may come up later."""
TASKS = "io.modelcontextprotocol/tasks"
SERVERS = "dev.holdfast/servers"
"""In `_meta` of a handshake: what each of several servers says of itself, by its name here."""
GATEWAY_INFO = "dev.holdfast/gateway"
"""In `_meta` of a handshake that has the only server's own `serverInfo`: that of the gateway."""
BACKEND_INFO = "dev.holdfast/serverInfo"
"""In `_meta` of a result: the `serverInfo` of that of several servers which answered."""
SERVERS_BYTES = 512 * 1024  # of all servers in `_meta` of one handshake, in memory; those further back are left out


class Introduction(NamedTuple):
    """What the handshake shows to a client."""

    info: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    instructions: str | None
    meta: Mapping[str, Any]
    others: Mapping[str, Any]
    """Members of no specification."""


def catalogues_of(gateway: Gateway, context: RequestContext) -> list[tuple[str, Catalogue]]:
    """What is known of the servers that this caller is offered, in the file's order."""
    own = context.session.lists.catalogues if context.session is not None else {}
    found: list[tuple[str, Catalogue]] = []
    for name, backend in gateway.backends.items():
        if backend.is_per_caller:
            known = own.get(name) or gateway.caller_lists.known(context, backend)
        else:
            known = own.get(name, backend.catalogue)
        if known is not None:
            found.append((name, known))
    return found


def introduction(gateway: Gateway, context: RequestContext) -> Introduction:
    """What is said to this caller now."""
    found = catalogues_of(gateway, context)
    capabilities, hidden = _merged_capabilities(context.era, found)
    is_alone = len(gateway.backends) == 1
    info: Mapping[str, Any] = OWN_INFO
    meta: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, catalogue in found:
        for key, value in catalogue.identity.meta.items():
            if meta.setdefault(key, value) != value:
                hidden.setdefault(name, {}).setdefault("_meta", {})[key] = value
        for key, value in catalogue.identity.others.items():
            if others.setdefault(key, value) != value:
                hidden.setdefault(name, {})[key] = value
    if is_alone and found and found[0][1].identity.info:
        info = found[0][1].identity.info
        meta[GATEWAY_INFO] = OWN_INFO
    elif not is_alone and (
        servers := _within_limit(
            {name: {"serverInfo": each.identity.info} for name, each in found if each.identity.info}
        )
    ):
        meta[SERVERS] = servers
    if hidden and (kept := _within_limit(hidden)):
        meta[OTHERS] = kept
    return Introduction(info, capabilities, _instructions(is_alone, found), meta, others)


def _within_limit(by_server: Mapping[str, Any]) -> dict[str, Any]:
    """The first servers, as far as they fit."""
    kept: dict[str, Any] = {}
    left = SERVERS_BYTES
    for name, value in by_server.items():
        left -= weight(value)
        if left < 0:
            break
        kept[name] = value
    return kept


def _instructions(is_alone: bool, found: Iterable[tuple[str, Catalogue]]) -> str | None:
    """The only server's own; those of several under their names."""
    said = [(name, each.instructions) for name, each in found if each.instructions]
    if is_alone and said:
        return said[0][1]
    return "\n\n".join(f"# {name}\n{text}" for name, text in said) or None


def _merged_capabilities(
    era: Era, found: Iterable[tuple[str, Catalogue]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Ours, with what servers declare besides; and what another server's value hides, by server."""
    result: dict[str, Any] = copy.deepcopy(dict(CAPABILITIES))
    hidden: dict[str, dict[str, Any]] = {}

    def add(into: dict[str, Any], server: str, path: tuple[str, ...], value: object) -> None:
        if into.setdefault(path[-1], value) != value:
            place = hidden.setdefault(server, {}).setdefault("capabilities", {})
            for step in path[:-1]:
                place = place.setdefault(step, {})
            place[path[-1]] = value

    for server, catalogue in found:
        for name, value in catalogue.identity.capabilities.items():
            if name == "tasks":
                if era is Era.Y2025 and catalogue.era == Era.Y2025.value:
                    result["tasks"] = _union(members(result.get("tasks")), members(value))
            elif name in ("extensions", "experimental"):
                into = result.setdefault(name, {})
                for each, settings in members(value).items():
                    if each != TASKS or name != "extensions" or may_use_tasks(era, catalogue.era):
                        add(into, server, (name, each), settings)
                if not into:
                    del result[name]
            elif name in CAPABILITIES:
                for each, setting in members(value).items():
                    if each not in ("listChanged", "subscribe"):  # the gateway's own
                        add(result[name], server, (name, each), setting)
            else:
                add(result, server, (name,), value)
    return result, hidden


def may_use_tasks(client: Era, server: str | None) -> bool:
    """Can the tasks extension be used between a client and a server of these eras? A 2025 client does not know the
    results of a 2026 server."""
    return client is Era.Y2026 or server != Era.Y2026.value


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """All that one of both has: the gateway finds the server that has a task, and refuses what that can't do."""
    result = dict(one)
    for name, value in other.items():
        both = isinstance(result.get(name), dict) and isinstance(value, dict)
        result[name] = _union(members(result[name]), members(cast("object", value))) if both else value
    return result


def with_client(params: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """Parameters of a 2025 client's request for a 2026 server, with what the client said of itself at its handshake.
    It is told with each request, so that links which callers share can tell it, too."""
    capabilities = client.capabilities
    if TASKS in (extensions := members(capabilities.get("extensions"))):
        kept = {name: value for name, value in extensions.items() if name != TASKS}
        capabilities = {**capabilities, "extensions": kept}
    said: dict[str, Any] = {CLIENT_CAPABILITIES: capabilities}
    if client.info:
        said[CLIENT_INFO] = client.info
    return {**params, "_meta": {**members(params.get("_meta")), **said}}


def with_info(gateway: Gateway, result: dict[str, Any]) -> dict[str, Any]:
    """A 2026 result with `serverInfo`: that of the only server, else ours, and that of the server which answered
    beside it."""
    meta = members(result.get("_meta"))
    backends = gateway.backends
    if len(backends) == 1:
        if SERVER_INFO in meta:
            return result
        (backend,) = backends.values()
        own = backend.catalogue.identity.info if backend.catalogue is not None else None
        return {**result, "_meta": {**meta, SERVER_INFO: own or OWN_INFO}}
    if SERVER_INFO in meta:
        return {**result, "_meta": {**meta, SERVER_INFO: OWN_INFO, BACKEND_INFO: meta[SERVER_INFO]}}
    return {**result, "_meta": {**meta, SERVER_INFO: OWN_INFO}}
