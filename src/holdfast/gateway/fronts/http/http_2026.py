"""What HTTP clients of the 2026 era get: stateless calls with an envelope, `server/discover`, subscriptions.

Only a handle, a header that was configured, or a principal names a session; a connection never does.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, decode_header_value, validate_mcp_param_headers

from holdfast.core.eras import (
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    Era,
)
from holdfast.core.exact import plain
from holdfast.core.models import Principal
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.fronts.http.keep_alive import KeepAlive
from holdfast.gateway.fronts.http.post_reply import Accepts, PostReplyChannel, event_of
from holdfast.gateway.fronts.http.request import Request
from holdfast.gateway.fronts.listens import Subscription
from holdfast.gateway.fronts.messages import Message
from holdfast.gateway.fronts.pipeline import REQUEST_CANCELLED, Answer, Pipeline, error_of
from holdfast.gateway.fronts.refusals import Refused
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.identity import with_info
from holdfast.gateway.sessions.header_keys import Keys
from holdfast.gateway.sessions.record import Client
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.links.trace import received

_OF_A_TASK = ("tasks/get", "tasks/update", "tasks/cancel")
WATCH_AFTER = 0.05  # seconds after which a call's client is watched: most calls are over by then


class Front2026:
    """Answers the POSTs of 2026 clients."""

    def __init__(self, gateway: Gateway, pipeline: Pipeline, alive: KeepAlive) -> None:
        self._gateway = gateway
        self._pipeline = pipeline
        self._alive = alive
        self._keys = Keys(gateway.sessions)

    async def post(self, request: Request, principal: Principal, message: Message, accepts: Accepts) -> None:
        id, method, params = message.id, message.method, message.params
        if method is None:
            raise Refused(400, "clients send requests only")
        if id is None:
            await request.reply(202)  # over HTTP, hanging up is the only notification that means something
            return
        headers = request.plain_headers()
        client = self._pipeline.client_2026(message, headers)
        if method == "tools/call":
            self._check_param_headers(params, headers)
        elif method in _OF_A_TASK:
            _check_task_header(params, headers)
        self._pipeline.refuse_if_draining()
        if method == "server/discover":
            context = RequestContext(principal, Era.Y2026, None, client, request)
            with self._pipeline.observer.observing(context, message):
                result = await self._pipeline.discover(context)
            await request.reply_json(200, {"jsonrpc": "2.0", "id": id, "result": result})
        elif method == "subscriptions/listen":
            session = await self._session(headers, principal, client, params)
            context = RequestContext(principal, Era.Y2026, session, client, request)
            with self._pipeline.observer.observing(context, message):
                await self._listen(request, context, id, params)
        else:
            session = await self._session(headers, principal, client, params)
            channel = PostReplyChannel(request, accepts, self._gateway.answer_stream)
            context = RequestContext(principal, Era.Y2026, session, client, request, channel)
            await self._call(request, context, channel, message)

    def _check_param_headers(self, params: dict[str, Any], headers: Mapping[str, str]) -> None:
        """Refuse a call whose headers repeat a tool's arguments wrongly."""
        route = self._gateway.table.tools.get(str(params.get("name")))
        schema = route.item.get("inputSchema") if route is not None and route.params_in_headers else None
        arguments = params.get("arguments")
        if schema is None or not isinstance(arguments, dict | None):
            return
        wrong = validate_mcp_param_headers(schema, plain(arguments or {}), headers)
        if wrong is not None:
            raise Refused(400, wrong.message, code=wrong.code)

    async def _session(
        self, headers: Mapping[str, str], principal: Principal, client: Client, params: Mapping[str, Any]
    ) -> GatewaySession | None:
        """The session that a configured header names, begun when it is named for the first time."""
        name = self._gateway.settings.sessions.header
        value = headers.get(name.lower()) if name is not None else None
        if value is None:
            return None
        with received(params.get("_meta"), headers):  # it may begin here, before the request's own span
            return await self._keys.session(principal, value, client)

    async def _call(
        self,
        request: Request,
        context: RequestContext,
        channel: PostReplyChannel,
        message: Message,
    ) -> None:
        task, session = asyncio.current_task(), context.session
        assert task is not None
        watching: list[asyncio.Task[None]] = []

        def watch() -> None:
            watching.append(asyncio.ensure_future(_cancel_when_gone(request, task)))

        timer = asyncio.get_running_loop().call_later(WATCH_AFTER, watch)
        self._alive.add(channel)
        try:
            with session.calling() if session is not None else contextlib.nullcontext():
                answer = await self._pipeline.answer(
                    context,
                    channel,
                    message,
                    self._pipeline.methods.answer(context, str(message.method), message.params),
                )
        finally:
            self._alive.remove(channel)
            timer.cancel()
            for each in watching:
                each.cancel()
        gone = bool(watching) and watching[0].done()
        if answer is None or (gone and answer.message.get("error") is REQUEST_CANCELLED):
            channel.drop()
            return
        reply = answer.message
        if "result" in reply:
            reply = {**reply, "result": with_info(self._gateway, reply["result"])}
        await self._pipeline.deliver(context, channel, reply, _status_of(answer))

    async def _listen(self, request: Request, context: RequestContext, id: str | int, params: dict[str, Any]) -> None:
        subscription = Subscription(self._gateway, self._pipeline.methods.uris, context, id, params)
        await request.stream(_events(id, subscription.messages()))


async def _events(id: str | int, messages: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """The messages of a listen as events. Its stream has begun, so an error is the last of them."""
    async with contextlib.aclosing(messages):
        try:
            async for message in messages:
                yield event_of(message)
        except Exception as error:
            yield event_of({"jsonrpc": "2.0", "id": id, "error": error_of(error)})


def _check_task_header(params: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Refuse a request whose header names another task than its body. Clients may leave it out, and some do."""
    id, name = params.get("taskId"), headers.get("mcp-name")
    if isinstance(id, str) and name is not None and decode_header_value(name) != id:
        raise Refused(400, "Mcp-Name repeats params.taskId, and here it differs from it", code=HEADER_MISMATCH)


async def _cancel_when_gone(request: Request, task: "asyncio.Task[Any]") -> None:
    """In 2026, a client cancels by hanging up."""
    await request.gone()
    task.cancel()


def _status_of(answer: Answer) -> int:
    """404 for a method that the gateway itself does not have, else what the SDK maps the code to."""
    if answer.error is None:
        return answer.status
    code = answer.message["error"]["code"]
    if code == METHOD_NOT_FOUND and answer.error.status is None:
        return 404
    return ERROR_CODE_HTTP_STATUS.get(code, 200)
