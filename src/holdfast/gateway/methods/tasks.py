"""Methods of tasks, in both forms: each goes to the server that has the task, which is part of the task's id.

`tasks/list` (2025) goes through the servers that have it, page by page, and shows the tasks of this session alone.
"""

import json
from typing import Any, cast

from holdfast.core.eras import INVALID_PARAMS, METHOD_NOT_FOUND, Era
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.calls.backend_calls import BackendCalls
from holdfast.gateway.calls.outgoing_call import BackendRequest
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.identity import TASKS, catalogues_of
from holdfast.gateway.methods.params import invalid
from holdfast.gateway.names.routing import Route

_SAFE = frozenset({"tasks/get", "tasks/result", "tasks/list"})


class TaskMethods:
    """The tasks of one gateway's clients."""

    def __init__(self, gateway: Gateway, calls: BackendCalls) -> None:
        self._gateway = gateway
        self._calls = calls
        self._ids = gateway.sessions.task_ids

    async def call(self, method: str, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """A method that names one task."""
        id = params.get("taskId")
        if not isinstance(id, str):
            raise invalid(f"{method} needs a taskId")
        await self._ids.recall()
        found = self._ids.opened(context.task_scope, self._gateway.backends, id) if self._ids.is_ready else None
        if found is None:
            raise self._unknown(context, method)
        name, own = found
        backend = self._gateway.backends[name]
        return await self._send(context, backend, method, {**params, "taskId": own})

    def _unknown(self, context: RequestContext, method: str) -> ErrorAnswer:
        known = catalogues_of(self._gateway, context)
        own = "tasks" if context.era is Era.Y2025 else TASKS
        if len(known) == len(self._gateway.backends) and not any(each.identity.declares(own) for _, each in known):
            return ErrorAnswer(f"{method}: no server has tasks", message="Method not found", code=METHOD_NOT_FOUND)
        return ErrorAnswer(f"{method}: no such task", message="Task not found", code=INVALID_PARAMS)

    async def list(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """`tasks/list`: one page of one server. The cursor names the server, and the page there."""
        servers = [
            name
            for name, catalogue in catalogues_of(self._gateway, context)
            if "list" in members(catalogue.identity.capabilities.get("tasks"))
        ]
        session = context.session
        if session is None or context.era is Era.Y2026 or not servers:
            raise ErrorAnswer("no server lists tasks", message="Method not found", code=METHOD_NOT_FOUND)
        name, cursor = _place(params.get("cursor"), servers)
        asked = {key: value for key, value in params.items() if key != "cursor"}
        if cursor is not None:
            asked["cursor"] = cursor
        result = await self._send(context, self._gateway.backends[name], "tasks/list", asked)
        following = result.get("nextCursor")
        result = {key: value for key, value in result.items() if key != "nextCursor"}
        if isinstance(following, str):
            result["nextCursor"] = json.dumps([name, following])
        elif (number := servers.index(name) + 1) < len(servers):
            result["nextCursor"] = json.dumps([servers[number], None])
        return result

    async def _send(
        self, context: RequestContext, backend: Backend, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        safe = method in _SAFE
        route = Route(backend.name, str(params.get("taskId", "")), {}, safe)
        return await self._calls.send(context, backend, BackendRequest(route, method, params, safe))


def _place(cursor: object, servers: list[str]) -> tuple[str, str | None]:
    """The server, and the cursor of the page there."""
    if cursor is None:
        return servers[0], None
    try:
        given = json.loads(cursor) if isinstance(cursor, str) else None
    except ValueError:
        given = None
    pair = cast("list[object]", given) if isinstance(given, list) else []
    if len(pair) != 2 or pair[0] not in servers or not isinstance(pair[1], str | None):
        raise invalid("there is no such cursor; list from the beginning")
    return str(pair[0]), pair[1]
