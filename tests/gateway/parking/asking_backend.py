"""A 2025 server over HTTP by hand, whose one tool asks what its arguments say.

`ask(rounds=[[{"method": …, "params": …}, …], …])` asks the questions of each round at once on the call's own stream,
and returns all answers as JSON. An error in an answer makes the result an error, unless `copes` is true. `take_back`
cancels the first question at once; a call that `lasts` never returns; `error` is the answer to the first call instead.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.gateway.web_apps import serving_app

TOOLS = [{"name": "ask", "inputSchema": {"type": "object"}}]


class AskingBackend:
    """The server, and what it saw."""

    def __init__(self) -> None:
        self.url = ""
        self.calls = 0
        self.running = 0
        self.cancelled: list[Any] = []
        self.handshakes: list[dict[str, Any]] = []
        self.ended_sessions = 0
        self._ids = 0
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def delete(self, request: web.Request) -> web.Response:
        self.ended_sessions += 1
        return web.Response(status=200)

    async def post(self, request: web.Request) -> web.StreamResponse:
        message = await request.json()
        method, id = message.get("method"), message.get("id")
        if method is None:
            if (waiting := self._waiting.pop(id, None)) is not None:
                waiting.set_result(message)
            return web.Response(status=202)
        if method == "notifications/cancelled":
            self.cancelled.append(message["params"]["requestId"])
        if id is None:
            return web.Response(status=202)
        params = message.get("params", {})
        if method == "initialize":
            self.handshakes.append(params)
            result: dict[str, Any] = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
                "serverInfo": {"name": "asks", "version": "1"},
            }
            answer = {"jsonrpc": "2.0", "id": id, "result": result}
            return web.json_response(answer, headers={"mcp-session-id": f"s{len(self.handshakes)}"})
        lists = {
            "tools/list": {"tools": TOOLS},
            "prompts/list": {"prompts": [{"name": "ask"}]},
            "resources/list": {"resources": [{"uri": "ask://one", "name": "one"}]},
            "resources/templates/list": {"resourceTemplates": []},
            "ping": {},
        }
        if method in lists:
            return web.json_response({"jsonrpc": "2.0", "id": id, "result": lists[method]})
        if method in ("tools/call", "prompts/get", "resources/read"):
            return await self._call(request, id, method, params)
        error = {"code": -32601, "message": "Method not found"}
        return web.json_response({"jsonrpc": "2.0", "id": id, "error": error})

    def stop_waiting(self) -> None:
        """Go on without the client's answers."""
        for waiting in self._waiting.values():
            waiting.set_result({"result": {"action": "cancel"}})
        self._waiting.clear()

    async def _call(self, request: web.Request, id: Any, method: str, params: dict[str, Any]) -> web.StreamResponse:
        self.calls += 1
        self.running += 1
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)

        async def say(message: dict[str, Any]) -> None:
            await response.write(f"data: {json.dumps({'jsonrpc': '2.0', **message})}\n\n".encode())

        try:
            arguments = params.get("arguments", {})
            if "error" in arguments and self.calls == 1:
                await say({"id": id, "error": arguments["error"]})
                await response.write_eof()
                return response
            answers: list[Any] = []
            roots = [[{"method": "roots/list"}]] if method != "tools/call" else []
            for asked in arguments.get("rounds", roots):
                waiting = []
                for question in asked:
                    self._ids += 1
                    key = f"asked-{self._ids}"
                    self._waiting[key] = asyncio.get_running_loop().create_future()
                    waiting.append(self._waiting[key])
                    await say({"id": key, **question})
                if arguments.get("take_back"):
                    await say({"method": "notifications/cancelled", "params": {"requestId": key}})
                    waiting.pop()
                for each in waiting:
                    answers.append(await each)
                    token = params.get("_meta", {}).get("progressToken")
                    if token is not None:
                        told = {"progressToken": token, "progress": len(answers)}
                        await say({"method": "notifications/progress", "params": told})
            if arguments.get("lasts"):
                await asyncio.Event().wait()
            said = json.dumps([answer.get("result", answer.get("error")) for answer in answers])
            failed = any("error" in answer for answer in answers) and not arguments.get("copes")
            text = said + arguments.get("padding", 0) * " "
            result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
            if method == "prompts/get":
                result = {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}
            if method == "resources/read":
                result = {"contents": [{"uri": params["uri"], "text": said}]}
            await say({"id": id, "result": {**result, "isError": True} if failed else result})
        finally:
            self.running -= 1
        await response.write_eof()
        return response


@asynccontextmanager
async def asking_backend() -> AsyncGenerator[AskingBackend]:
    """The server, on a free port."""
    backend = AskingBackend()
    app = web.Application()
    app.router.add_post("/mcp", backend.post)
    app.router.add_delete("/mcp", backend.delete)
    async with serving_app(app, cancels=True) as backend.url:
        yield backend
