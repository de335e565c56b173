"""What HTTP clients of the 2026 era get: stateless calls with an envelope, `server/discover`, subscriptions.

Only a handle, a header that was configured, or a principal names a session; a connection never does.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, decode_header_value, validate_mcp_param_headers

from holdfast.core.eras import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    SUBSCRIPTION_ID,
    Era,
)
from holdfast.core.exact import is_unicode, plain
from holdfast.core.models import Principal
from holdfast.core.questions import has
from holdfast.core.values import members
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.subscriptions import LISTEN_URIS, Subscriptions
from holdfast.gateway.fronts.asgi import Request
from holdfast.gateway.fronts.keep_alive import KeepAlive
from holdfast.gateway.fronts.messages import Message
from holdfast.gateway.fronts.pipeline import REQUEST_CANCELLED, Answer, Pipeline
from holdfast.gateway.fronts.post_reply import Accepts, PostReplyChannel, event_of
from holdfast.gateway.fronts.refusals import Refused
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.identity import TASKS as EXTENSION
from holdfast.gateway.identity import with_info
from holdfast.gateway.listeners import TASKS, Listener
from holdfast.gateway.request_context import RequestContext
from holdfast.gateway.seen_uris import LONGEST_URI
from holdfast.gateway.sessions.header_keys import Keys
from holdfast.gateway.sessions.record import Client
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.gateway.tasks.watch import LISTEN_TASKS, NOTICE, TaskWatch

log = logging.getLogger("holdfast.gateway")

WATCH_AFTER = 0.05  # seconds after which a call's client is watched: most calls are over by then
LOCATE_SECONDS = 10.0  # to find who has a resource that a listen names and no list shows
_LISTS = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}


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
        elif method.startswith("tasks/"):
            _check_task_header(params, headers)
        self._pipeline.refuse_if_draining()
        if method == "server/discover":
            result = await self._pipeline.discover(RequestContext(principal, Era.Y2026, None, client, request))
            await request.reply_json(200, {"jsonrpc": "2.0", "id": id, "result": result})
        elif method == "subscriptions/listen":
            session = await self._session(headers, principal, client)
            await self._listen(request, RequestContext(principal, Era.Y2026, session, client, request), id, params)
        else:
            session = await self._session(headers, principal, client)
            channel = PostReplyChannel(request, accepts, self._gateway.answer_stream)
            context = RequestContext(principal, Era.Y2026, session, client, request, channel)
            await self._call(request, context, channel, id, method, params)

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

    async def _session(self, headers: Mapping[str, str], principal: Principal, client: Client) -> GatewaySession | None:
        """The session that a configured header names, begun when it is named for the first time."""
        name = self._gateway.settings.sessions.header
        value = headers.get(name.lower()) if name is not None else None
        return None if value is None else await self._keys.session(principal, value, client)

    async def _call(
        self,
        request: Request,
        context: RequestContext,
        channel: PostReplyChannel,
        id: str | int,
        method: str,
        params: dict[str, Any],
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
                    channel, id, self._pipeline.methods.answer(context, method, params)
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
        wanted = params.get("notifications")
        known = cast("dict[str, Any]", wanted) if isinstance(wanted, dict) else {}
        kinds = {_LISTS[key][0]: _LISTS[key][1] for key in _LISTS if known.get(key) is True}
        uris = known.get("resourceSubscriptions")
        if uris:
            await self._gateway.settled()  # else resources of servers that still come up would not be acknowledged
        by_backend = await self._by_backend(context, uris)
        agreed: dict[str, Any] = {key: True for key in _LISTS if _LISTS[key][0] in kinds}
        listener = Listener(context.principal, context.session.key if context.session is not None else None)
        watched: list[tuple[Subscriptions, list[str]]] = []
        ids, task_ids = _task_ids(context, known), self._gateway.sessions.task_ids
        tasks = TaskWatch(
            self._gateway.link_choice, task_ids, context, members(params.get("_meta")), listener.task_updated
        )
        try:
            if ids and (followed := await tasks.add(self._gateway.backends, ids)):
                agreed["taskIds"] = followed
            await asyncio.gather(*(self._watch(context, name, uris, watched) for name, uris in by_backend.items()))
            listener.follow(uri for _, taken in watched for uri in taken)
            if listener.uris:
                agreed["resourceSubscriptions"] = sorted(listener.uris)
            self._gateway.listeners.add(listener)
            await request.stream(_events(listener, id, kinds, agreed))
        finally:
            self._gateway.listeners.remove(listener)
            await tasks.close()
            for subscriptions, taken in watched:
                subscriptions.remove(taken)

    async def _by_backend(self, context: RequestContext, uris: object) -> Mapping[str, list[str]]:
        """Who has which of the resources that a listen names; those that no backend has are not acknowledged."""
        listed = cast("list[object]", uris) if isinstance(uris, list) else []
        if len(listed) > LISTEN_URIS or any(isinstance(uri, str) and len(uri) > LONGEST_URI for uri in listed):
            what = f"resourceSubscriptions has at most {LISTEN_URIS} URIs of at most {LONGEST_URI} characters each"
            raise Refused(400, f"{what}; here are {len(listed)}", code=INVALID_PARAMS)
        by_backend: dict[str, list[str]] = {}
        wanted = [uri for uri in listed if isinstance(uri, str) and is_unicode(uri)]
        for uri, name in zip(
            wanted, await asyncio.gather(*(self._locate(context, uri) for uri in wanted)), strict=True
        ):
            if name is not None:
                by_backend.setdefault(name, []).append(uri)
        return by_backend

    async def _locate(self, context: RequestContext, uri: str) -> str | None:
        table = self._gateway.table
        try:
            async with asyncio.timeout(LOCATE_SECONDS):
                backend = await self._pipeline.methods.uris.locate(context, uri, table)
        except (HoldfastError, TimeoutError):
            return None
        return backend.name if backend is not None else None

    async def _watch(
        self,
        context: RequestContext,
        name: str,
        uris: list[str],
        watched: list[tuple[Subscriptions, list[str]]],
    ) -> None:
        """Subscribe to resources at their backend; those that can't be are not acknowledged."""
        try:
            subscriptions = await self._gateway.link_choice.for_updates(context, self._gateway.backends[name])
            watched.append((subscriptions, await subscriptions.add(uris)))
        except HoldfastError as error:
            log.info("%s is not watched: %s", name, error.what)


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


async def _events(
    listener: Listener, id: Any, kinds: Mapping[str, str], agreed: dict[str, Any]
) -> AsyncGenerator[bytes]:
    meta = {"_meta": {SUBSCRIPTION_ID: id}}

    def event(method: str, params: Mapping[str, Any]) -> bytes:
        whole = {**params, "_meta": {**members(params.get("_meta")), **meta["_meta"]}}
        message = {"jsonrpc": "2.0", "method": method, "params": whole}
        return event_of(message)

    yield event("notifications/subscriptions/acknowledged", {"notifications": agreed})
    while (news := await listener.next()) is not None:
        changed, updated = news
        for kind in changed:
            if kind in kinds:
                yield event(kinds[kind], {})
        if updated is not None:
            yield event(NOTICE if changed == TASKS else "notifications/resources/updated", updated)
    ended = {"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", **meta}}
    yield event_of(ended)


def _check_task_header(params: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Refuse a request whose header names another task than its body."""
    id, name = params.get("taskId"), headers.get("mcp-name")
    if isinstance(id, str) and decode_header_value(name) != id:
        what = "is missing" if name is None else "differs from it"
        raise Refused(400, f"Mcp-Name repeats params.taskId, and here it {what}", code=HEADER_MISMATCH)


async def _cancel_when_gone(request: Request, task: "asyncio.Task[Any]") -> None:
    """In 2026, a client cancels by hanging up."""
    await request.gone()
    task.cancel()


def _status_of(answer: Answer) -> int:
    """404 for a method that the gateway itself does not have, else what the SDK maps the code to."""
    if answer.error is None:
        return 200
    code = answer.message["error"]["code"]
    if code == METHOD_NOT_FOUND and answer.error.status is None:
        return 404
    return ERROR_CODE_HTTP_STATUS.get(code, 200)
