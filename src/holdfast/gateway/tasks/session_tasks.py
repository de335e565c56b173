"""The tasks of one session in both directions: ids in its messages, tasks that its client runs, progress of tasks.

What is kept here can be lost: ids of tasks show by themselves whose they are.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, cast

from holdfast.core.eras import INVALID_PARAMS
from holdfast.errors import BadAnswer, ErrorAnswer
from holdfast.gateway.tasks.ids import LONGEST_ID, TaskIds
from holdfast.gateway.tasks.messages import names_tasks, with_ids

log = logging.getLogger("holdfast.gateway")

KEPT = 1_000  # tasks of one client, and of servers with progress, that are remembered; the oldest go


class SessionTasks:
    """The tasks of one session."""

    __slots__ = ("_ids", "_key", "_own", "_tokens", "scope")

    def __init__(self, ids: TaskIds, scope: str, key: str) -> None:
        self._ids = ids
        self._key = key
        self.scope = scope
        self._own: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Tasks that the client runs for servers: its id and the server."""
        self._tokens: OrderedDict[str, Any] = OrderedDict()
        """The client's progress tokens of requests that became tasks, by those that the servers got."""

    # Progress of tasks, which goes on after the request that made one

    def follow_progress(self, sent: str, token: Any) -> None:
        _remember(self._tokens, sent, token)

    def notice(self, server: str, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """A server's notification as the client gets it; None if it can't be passed on."""
        if method == "notifications/progress":
            token = params.get("progressToken")
            if isinstance(token, str) and token in self._tokens:
                params = {**params, "progressToken": self._tokens[token]}
        if not names_tasks(method, params):
            return dict(params)
        try:
            return self.to_client(server, method, params) if self._ids.is_ready else None
        except BadAnswer as error:
            log.info("%s: a notification is left out: %s", server, error.what)
            return None

    # Ids

    def to_client(self, server: str, method: str, part: Mapping[str, Any]) -> dict[str, Any]:
        """What a server sends: its own tasks are sealed for the client, the client's are as the client knows them."""

        def change(id: str) -> str:
            own = self._ids.opened_of_client(self._key, server, id)
            return own if own is not None else self._ids.sealed(self.scope, server, id)

        return with_ids(method, part, change)

    def to_server(self, server: str, method: str, part: Mapping[str, Any]) -> dict[str, Any]:
        """What the client sends: the server's tasks are as the server knows them, the client's own are sealed."""

        def change(id: str) -> str:
            known = self._ids.opened(self.scope, (server,), id)
            if known is not None:
                return known[1]
            if len(id) > LONGEST_ID:
                raise ErrorAnswer("a task's id is too long", message="Internal error", code=-32603)
            _remember(self._own, (id, server), None)
            return self._ids.sealed_of_client(self._key, server, id)

        return with_ids(method, part, change)

    # What servers ask of the client

    async def question(self, server: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """A server's request as the client gets it. A task that is not this server's is unknown to it."""
        if not names_tasks(method, params):
            return dict(params)
        await self._ids.prepare()
        if method.startswith("tasks/") and method != "tasks/list":
            own = self._ids.opened_of_client(self._key, server, str(params.get("taskId")))
            if own is None:
                raise ErrorAnswer("unknown task", message="Task not found", code=INVALID_PARAMS)
        return self.to_client(server, method, params)

    async def answer(self, server: str, method: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """The client's answer as the server gets it."""
        if not names_tasks(method, result):
            return dict(result)
        await self._ids.prepare()
        tasks = result.get("tasks")
        if method == "tasks/list" and isinstance(tasks, list):
            listed = [cast("dict[str, Any]", each) for each in cast("list[object]", tasks) if isinstance(each, dict)]
            result = {**result, "tasks": [each for each in listed if (each.get("taskId"), server) in self._own]}
        return self.to_server(server, method, result)

    def servers_of(self, id: object) -> list[str]:
        """The servers for which the client runs a task."""
        return [server for own, server in self._own if own == id]


def _remember(into: "OrderedDict[Any, Any]", key: Any, value: Any) -> None:
    into[key] = value
    into.move_to_end(key)
    if len(into) > KEPT:
        into.popitem(last=False)
