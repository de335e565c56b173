"""The 2026 side of the front: every request for itself, with an envelope and headers that repeat it.

It owns the checks of that era, `server/discover`, subscriptions, and by what a stateless call finds its session. It
refuses to make a session of a connection: only a handle, a header that was configured, or a principal names one.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    validate_mcp_param_headers,
)

from holdfast.core.disclosure import rpc_error
from holdfast.core.eras import (
    METHOD_NOT_FOUND,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    UNSUPPORTED_VERSION,
    VERSIONS,
    Era,
)
from holdfast.core.exact import is_unicode, plain
from holdfast.core.models import Principal
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.subscriptions import LISTEN_URIS, Subscriptions
from holdfast.gateway.dispatch import LONGEST_URI, RequestContext
from holdfast.gateway.fronts.asgi import PostReplyChannel, Refused, Request, event_of
from holdfast.gateway.fronts.handshake import INFO, discovery
from holdfast.gateway.gateway import Gateway, Listener
from holdfast.gateway.sessions.header_keys import Keys
from holdfast.gateway.sessions.session import Client, Session

log = logging.getLogger("holdfast.gateway")

WATCH_AFTER = 0.05  # seconds after which a call's client is watched: most calls are over by then
_LISTS = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}


class Front2026:
    """Answers POSTs of the 2026 era."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._keys = Keys(gateway.sessions)

    async def post(
        self, request: Request, principal: Principal, message: dict[str, Any], takes_json: bool, takes_sse: bool
    ) -> None:
        id, method = message.get("id"), message.get("method")
        if not isinstance(method, str):
            raise Refused(400, "clients send requests only")
        if "id" not in message:
            await request.reply(202)  # over HTTP, hanging up is the only notification that means something
            return
        headers = request.plain_headers()
        checked = classify_inbound_request(message, headers=headers)
        if isinstance(checked, InboundLadderRejection):
            status = ERROR_CODE_HTTP_STATUS.get(checked.code, 400)
            await request.refuse(Refused(status, checked.message, code=checked.code, data=checked.data), id)
            return
        params = cast("dict[str, Any]", message["params"])
        if method == "tools/call" and (wrong := self._wrong_params(params, headers)) is not None:
            await request.refuse(Refused(400, wrong.message, code=wrong.code), id)
            return
        client = Client(_mapping(checked.client_info), _mapping(checked.client_capabilities), checked.protocol_version)
        try:
            if self._gateway.draining:
                raise Refused(503, "the gateway is going down", code=-32000, retry_after="1")
            if method == "server/discover":
                await self._gateway.settled()
                await request.reply_json(200, {"jsonrpc": "2.0", "id": id, "result": self._discover(client)})
                return
            if method == "subscriptions/listen":
                await self._listen(request, principal, id, params)
                return
            session = await self._session(headers, principal, client)
            takes_sse = takes_sse and (request.streams or not takes_json)
            reply_channel = PostReplyChannel(
                request, json=takes_json, sse=takes_sse, stream=self._gateway.answer_stream
            )
            context = RequestContext(principal, Era.Y2026, session, client, request, reply_channel)
            await self._call(request, context, reply_channel, id, method, params)
        except Refused as refused:
            await request.refuse(refused, id)

    def _wrong_params(self, params: dict[str, Any], headers: Mapping[str, str]) -> InboundLadderRejection | None:
        """Do the headers that repeat a tool's arguments say what the body says?"""
        route = self._gateway.table.tools.get(str(params.get("name")))
        schema = route.item.get("inputSchema") if route is not None and route.params_in_headers else None
        arguments = params.get("arguments")
        if schema is None or not isinstance(arguments, dict | None):
            return None
        return validate_mcp_param_headers(schema, plain(arguments or {}), headers)

    def _discover(self, client: Client) -> dict[str, Any]:
        steered = self._gateway.steers(client.info, VERSIONS[Era.Y2026][0])
        if steered is not None:  # a client that speaks both eras goes on with `initialize`, and its session holds
            message, supported = steered
            raise Refused(400, message, code=UNSUPPORTED_VERSION, data=supported)
        return discovery(self._gateway)

    async def _session(self, headers: Mapping[str, str], principal: Principal, client: Client) -> Session | None:
        """The session that a configured header names, begun when it is named for the first time."""
        name = self._gateway.settings.sessions.header
        value = headers.get(name.lower()) if name is not None else None
        if value is None:
            return None
        try:
            return await self._keys.session(principal, value, client)
        except HoldfastError as error:
            self._gateway.report(error)
            raise Refused.because(error) from None

    async def _call(
        self,
        request: Request,
        context: RequestContext,
        reply_channel: PostReplyChannel,
        id: Any,
        method: str,
        params: dict[str, Any],
    ) -> None:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
        status = 200
        task = asyncio.current_task()
        assert task is not None
        watching: list[asyncio.Task[None]] = []

        def watch() -> None:
            watching.append(asyncio.ensure_future(self._cancel_when_gone(request, task)))

        timer = asyncio.get_running_loop().call_later(WATCH_AFTER, watch)
        session = context.session
        try:
            with self._gateway.sessions.calling(session) if session is not None else contextlib.nullcontext():
                result = await self._gateway.methods.answer(context, method, params)
            answer["result"] = _with_info(result)
        except HoldfastError as error:
            answer["error"] = rpc_error(error)
            code = answer["error"]["code"]
            status = 404 if code == METHOD_NOT_FOUND and error.status is None else ERROR_CODE_HTTP_STATUS.get(code, 200)
        except asyncio.CancelledError:
            if request.revoked or not task.cancelling():
                reply_channel.drop()
                raise
            task.uncancel()
            if watching and watching[0].done():
                reply_channel.drop()
                return  # the client has hung up
            answer["error"] = {"code": -32800, "message": "Request cancelled"}
        finally:
            timer.cancel()
            for each in watching:
                each.cancel()
        await reply_channel.finish(answer, status)
        if context.reporting is not None and await request.was_read():
            context.reported()

    async def _cancel_when_gone(self, request: Request, task: "asyncio.Task[Any]") -> None:
        """In 2026, hanging up is how a client cancels."""
        await request.gone()
        task.cancel()

    async def _listen(self, request: Request, principal: Principal, id: Any, params: dict[str, Any]) -> None:
        wanted = params.get("notifications")
        known = cast("dict[str, Any]", wanted) if isinstance(wanted, dict) else {}
        kinds = {_LISTS[key][0]: _LISTS[key][1] for key in _LISTS if known.get(key) is True}
        uris = known.get("resourceSubscriptions")
        if uris:
            await self._gateway.settled()  # else a client of the first seconds would be told that nobody has them
        by_backend = self._by_backend(uris)
        agreed: dict[str, Any] = {key: True for key in _LISTS if _LISTS[key][0] in kinds}
        listener = Listener()
        watched: list[tuple[Subscriptions, list[str]]] = []
        try:
            await asyncio.gather(*(self._watch(name, uris, watched) for name, uris in by_backend.items()))
            listener.uris.update(uri for _, taken in watched for uri in taken)
            if listener.uris:
                agreed["resourceSubscriptions"] = sorted(listener.uris)
            self._gateway.listeners.add(listener)
            await request.stream(_events(listener, id, kinds, agreed))
        finally:
            self._gateway.listeners.discard(listener)
            for subscriptions, taken in watched:
                subscriptions.remove(taken)

    def _by_backend(self, uris: object) -> Mapping[str, list[str]]:
        """Who has which of the resources that a listen names; those that nobody has are not acknowledged."""
        listed = cast("list[object]", uris) if isinstance(uris, list) else []
        if len(listed) > LISTEN_URIS or any(isinstance(uri, str) and len(uri) > LONGEST_URI for uri in listed):
            what = f"resourceSubscriptions has at most {LISTEN_URIS} URIs of at most {LONGEST_URI} characters each"
            raise Refused(400, f"{what}; here are {len(listed)}", code=-32602)
        found: dict[str, list[str]] = {}
        for uri in listed:
            name = self._gateway.table.backend_of_uri(uri) if isinstance(uri, str) and is_unicode(uri) else None
            if name is not None:
                found.setdefault(name, []).append(cast("str", uri))
        return found

    async def _watch(self, name: str, uris: list[str], watched: list[tuple[Subscriptions, list[str]]]) -> None:
        """Subscribe to resources at their backend; those that can't be are not acknowledged."""
        try:
            subscriptions = self._gateway.backends[name].subscriptions()
            watched.append((subscriptions, await subscriptions.add(uris)))
        except HoldfastError as error:
            log.info("%s is not watched: %s", name, error.what)


async def _events(
    listener: Listener, id: Any, kinds: Mapping[str, str], agreed: dict[str, Any]
) -> AsyncGenerator[bytes]:
    meta = {"_meta": {SUBSCRIPTION_ID: id}}

    def event(method: str, params: Mapping[str, Any]) -> bytes:
        message = {"jsonrpc": "2.0", "method": method, "params": {**params, **meta}}
        return event_of(message)

    yield event("notifications/subscriptions/acknowledged", {"notifications": agreed})
    while (news := await listener.queue.get()) is not None:
        changed, uri = news
        for kind in changed:
            if kind in kinds:
                yield event(kinds[kind], {})
        if uri is not None:
            yield event("notifications/resources/updated", {"uri": uri})
    ended = {"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", **meta}}
    yield event_of(ended)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _with_info(result: dict[str, Any]) -> dict[str, Any]:
    meta = result.get("_meta")
    if isinstance(meta, dict):
        return {**result, "_meta": {**cast("dict[str, Any]", meta), SERVER_INFO: INFO}}
    return {**result, "_meta": {SERVER_INFO: INFO}}
