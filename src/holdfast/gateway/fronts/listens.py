"""`subscriptions/listen` of a 2026 client: what it follows, and the messages that answer it.

What no server has, or does not agree to, is not acknowledged.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from holdfast.core.eras import INVALID_PARAMS, MISSING_CAPABILITY, SUBSCRIPTION_ID
from holdfast.core.exact import is_unicode
from holdfast.core.questions import has
from holdfast.core.values import members
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.links.subscriptions import LISTEN_URIS, Subscriptions
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.fronts.refusals import Refused
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.identity import TASKS as EXTENSION
from holdfast.gateway.lists.listeners import TASKS, Listener
from holdfast.gateway.names.seen_uris import LONGEST_URI
from holdfast.gateway.names.uris import UriRouting
from holdfast.gateway.tasks.watch import LISTEN_TASKS, NOTICE, TaskWatch

log = logging.getLogger("holdfast.gateway")

LOCATE_SECONDS = 10.0  # to find who has a resource that a listen names and no list shows
AGREE_SECONDS = 2.0  # for the 2026 side of a server to agree to what its 2025 side may agree to as well
_LISTS = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}


class Subscription:
    """One listen. Raises `Refused` if it names too much."""

    def __init__(
        self, gateway: Gateway, uris: UriRouting, context: RequestContext, id: str | int, params: Mapping[str, Any]
    ) -> None:
        wanted = members(params.get("notifications"))
        self._gateway = gateway
        self._routing = uris
        self._context = context
        self._id = id
        self._keys = [key for key in _LISTS if wanted.get(key) is True]
        self._uris = _checked(wanted.get("resourceSubscriptions"))
        self._task_ids = _task_ids(context, wanted)
        self._listener = Listener(context.principal, context.session.key if context.session is not None else None)
        self._watched: list[tuple[Subscriptions, list[str]]] = []
        ids, meta, on_update = gateway.sessions.task_ids, members(params.get("_meta")), self._listener.task_updated
        self._tasks = TaskWatch(gateway.link_choice, ids, context, meta, on_update)

    async def messages(self) -> AsyncGenerator[dict[str, Any]]:
        """The acknowledgement, each change, and at the end the result."""
        try:
            yield self._notification("notifications/subscriptions/acknowledged", {"notifications": await self._begin()})
            kinds = dict(_LISTS[key] for key in self._keys)
            while (news := await self._listener.next()) is not None:
                changed, updated = news
                for kind in changed:
                    if kind in kinds:
                        yield self._notification(kinds[kind], {})
                if updated is not None:
                    method = NOTICE if changed == TASKS else "notifications/resources/updated"
                    yield self._notification(method, updated)
            result = {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: self._id}}
            yield {"jsonrpc": "2.0", "id": self._id, "result": result}
        finally:
            self._gateway.listeners.remove(self._listener)
            await self._tasks.close()
            for subscriptions, taken in self._watched:
                subscriptions.remove(taken)

    def _notification(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        meta = {**members(params.get("_meta")), SUBSCRIPTION_ID: self._id}
        return {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": meta}}

    async def _begin(self) -> dict[str, Any]:
        """Follow what is wanted. Returns what is acknowledged."""
        if self._uris:
            await self._gateway.settled()  # else resources of servers that still come up would not be acknowledged
        if self._keys:
            await asyncio.gather(*(each.watches.watch_stateless() for each in self._gateway.backends.values()))
        by_backend = await self._by_backend()
        await asyncio.gather(*(self._watch(name, uris) for name, uris in by_backend.items()))
        self._listener.follow(uri for _, taken in self._watched for uri in taken)
        self._gateway.listeners.add(self._listener)
        agreed: dict[str, Any] = dict.fromkeys(self._keys, True)
        if self._task_ids and (followed := await self._tasks.add(self._gateway.backends, self._task_ids)):
            agreed["taskIds"] = followed
        if self._listener.uris:
            agreed["resourceSubscriptions"] = sorted(self._listener.uris)
        return agreed

    async def _by_backend(self) -> Mapping[str, list[str]]:
        by_backend: dict[str, list[str]] = {}
        names = await asyncio.gather(*(self._locate(uri) for uri in self._uris))
        for uri, name in zip(self._uris, names, strict=True):
            if name is not None:
                by_backend.setdefault(name, []).append(uri)
        return by_backend

    async def _locate(self, uri: str) -> str | None:
        try:
            async with asyncio.timeout(LOCATE_SECONDS):
                backend = await self._routing.locate(self._context, uri, self._gateway.table)
        except (HoldfastError, TimeoutError):
            return None
        return backend.name if backend is not None else None

    async def _watch(self, name: str, uris: list[str]) -> None:
        """Subscribe to resources at their backend; those that can't be are not acknowledged."""
        try:
            found = await self._gateway.link_choice.for_updates(self._context, self._gateway.backends[name])
            for subscriptions in found:
                if uris:
                    taken = await self._follow(
                        subscriptions, uris, None if subscriptions is found[-1] else AGREE_SECONDS
                    )
                    uris = [uri for uri in uris if uri not in taken]
        except HoldfastError as error:
            log.info("%s is not watched: %s", name, error.what)

    async def _follow(self, subscriptions: Subscriptions, uris: list[str], seconds: float | None) -> list[str]:
        """Subscribe over one link. Returns what its server agrees to, within these seconds."""
        try:
            async with asyncio.timeout(seconds):
                taken = await subscriptions.add(uris)
        except (HoldfastError, TimeoutError):
            if seconds is None:
                raise
            return []  # the next link may do
        self._watched.append((subscriptions, taken))
        return taken


def _checked(uris: object) -> list[str]:
    """The URIs that a listen names; what is no URI is left out."""
    listed = cast("list[object]", uris) if isinstance(uris, list) else []
    if len(listed) > LISTEN_URIS or any(isinstance(uri, str) and len(uri) > LONGEST_URI for uri in listed):
        what = f"resourceSubscriptions has at most {LISTEN_URIS} URIs of at most {LONGEST_URI} characters each"
        raise Refused(400, f"{what}; here are {len(listed)}", code=INVALID_PARAMS)
    return [uri for uri in listed if isinstance(uri, str) and is_unicode(uri)]


def _task_ids(context: RequestContext, wanted: Mapping[str, Any]) -> list[str]:
    """The tasks that a listen names, which a client may do that has the extension."""
    named: object = wanted.get("taskIds")
    if not named:
        return []
    needed: dict[str, Any] = {"extensions": {EXTENSION: {}}}
    if not has(context.client.capabilities, needed):
        message, data = "Missing required client capability", {"requiredCapabilities": needed}
        raise Refused(400, message, code=MISSING_CAPABILITY, data=data)
    ids = cast("list[object]", named) if isinstance(named, list) else []
    if not 0 < len(ids) <= LISTEN_TASKS or not all(isinstance(id, str) for id in ids):
        raise Refused(400, f"taskIds is a list of at most {LISTEN_TASKS} ids", code=INVALID_PARAMS)
    return cast("list[str]", ids)
