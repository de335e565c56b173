"""A raw client over `LinkDispatcher`: requests by hand through the seam that `ClientSession(dispatcher=…)` uses."""

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError

from holdfast.links import LinkDispatcher
from tests.eras.cells import Cell
from tests.eras.client import Client, Json, Reply, Running
from tests.gateway.gateways import PATIENT
from tests.links.quick_links import link_to


class DispatcherClient(Client):
    """The client."""

    def __init__(self, url: str, cell: Cell, capabilities: Json, info: Json, version: str | None) -> None:
        super().__init__(cell, capabilities, info, version)
        self._link = link_to(url, limits=PATIENT)
        self._dispatcher = LinkDispatcher(self._link)

    async def open(self) -> None:
        started = asyncio.Event()

        async def run() -> None:
            async with anyio.create_task_group() as group:
                await group.start(self._dispatcher.run, self._on_request, self._on_notify)
                started.set()

        self._start(run())
        await started.wait()

    async def close(self) -> None:
        await self._end_tasks()
        await self._link.close()

    async def begin(self, method: str, params: Json | None = None, **headers: str) -> "DispatcherRunning":
        id = next(self.ids)
        return DispatcherRunning(self, id, self._start(self._call(id, method, self.stamped(params), headers)))

    async def notify(self, method: str, params: Json | None = None) -> None:
        await self._dispatcher.notify(method, params)

    async def _call(self, id: int, method: str, params: Json | None, headers: Mapping[str, str]) -> Reply:
        before = len(self.notices)
        token = ((params or {}).get("_meta") or {}).get("progressToken")

        async def progress(*values: Any) -> None:
            known = zip(("progress", "total", "message"), values, strict=True)
            said = {name: value for name, value in known if value is not None}
            self.notices.append({"method": "notifications/progress", "params": {"progressToken": token, **said}})

        options: Any = {"request_id": id, "headers": {name.replace("_", "-"): value for name, value in headers.items()}}
        if token is not None:
            options["on_progress"] = progress
        try:
            message = {"id": id, "result": await self._dispatcher.send_raw_request(method, params, options)}
        except MCPError as error:
            message = {"id": id, "error": error.error.model_dump(by_alias=True, exclude_unset=True)}
        for _ in range(3):
            await asyncio.sleep(0)  # each notification comes in a task of its own
        return Reply(message, self.notices[before:])

    async def _on_request(self, context: Any, method: str, params: Mapping[str, Any] | None) -> Json:
        assert self.era == "2025", f"a 2026 client got the request {method}"
        question: Json = {"id": context.request_id, "method": method}
        if params is not None:
            question["params"] = dict(params)
        try:
            answer = await self.answer_to(question)
        except asyncio.CancelledError:  # how this seam says that the server took it back
            cancelled = {"requestId": context.request_id}
            self.notices.append({"method": "notifications/cancelled", "params": cancelled})
            raise
        if "error" in answer:
            raise MCPError(answer["error"]["code"], answer["error"]["message"], answer["error"].get("data"))
        return answer["result"]

    async def _on_notify(self, context: Any, method: str, params: Mapping[str, Any] | None) -> None:
        self.notices.append({"method": method, **({"params": dict(params)} if params is not None else {})})


class DispatcherRunning(Running):
    """A request under way."""

    def __init__(self, client: DispatcherClient, id: int, task: "asyncio.Task[Reply]") -> None:
        self.id = id
        self._client = client
        self._task = task

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def reply(self) -> Reply:
        return await self._task
