"""The front: one ASGI application for both eras. It owns status codes, sessions' ids on the wire, and who may come in.

What is asked is answered by `dispatch.py`; what 2026 does differently stands in `http_2026.py`. It refuses with the
status that the specification names, and never with a 500 for something that a client sent.
"""

import asyncio
import logging
from typing import Any, cast

from holdfast.core.disclosure import rpc_error
from holdfast.core.eras import PROTOCOL_VERSION, UNSUPPORTED_VERSION, VERSIONS, Era
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.errors import HoldfastError
from holdfast.gateway.auth import Authenticator
from holdfast.gateway.config.settings import ClientLimits
from holdfast.gateway.dispatch import RequestContext
from holdfast.gateway.fronts.asgi import PostReplyChannel, Receive, Refused, Request, Scope, Send, event_of
from holdfast.gateway.fronts.bodies import COMMON, RequestBodies
from holdfast.gateway.fronts.connections import most_of_one_caller
from holdfast.gateway.fronts.handshake import BadHandshake, client_of, handshake
from holdfast.gateway.fronts.http_2026 import Front2026
from holdfast.gateway.fronts.open_requests import OpenRequests
from holdfast.gateway.fronts.streams import Streams
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.sessions.session import Session
from holdfast.links.codec import decode_exactly, weight

log = logging.getLogger("holdfast.gateway")

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
CANCELLED = -32800
SESSION_NOT_FOUND = -32001
_2025 = frozenset(VERSIONS[Era.Y2025])
_2026 = frozenset(VERSIONS[Era.Y2026])


class Front:
    """The gateway's ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._2026 = Front2026(gateway)
        self.open = OpenRequests()
        self.bodies = RequestBodies()
        self._authenticator = Authenticator(gateway.settings.auth, gateway.settings.listen)

    @property
    def callers(self) -> Authenticator:
        return self._authenticator

    @callers.setter
    def callers(self, callers: Authenticator) -> None:
        self._authenticator = callers
        self.end_refused()

    def end_refused(self) -> None:
        """End every request whose token has been taken away or has expired."""
        ended = self.open.end_refused(self._authenticator)
        if ended:
            log.warning("%d open requests end: the tokens that let them in are no longer valid", ended)

    @property
    def _limits(self) -> ClientLimits:
        return self._gateway.settings.clients

    @property
    def _path(self) -> str:
        return self._gateway.settings.listen.path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request: Request | None = None
        try:
            request = Request(scope, receive, send)
            if scope["path"] == self._path:
                await self._mcp(request)
            else:
                await self._plain(request, scope["path"])
        except Refused as refused:
            await (request or _bare(scope, receive, send)).refuse(refused)
        except Exception:
            log.exception("a request could not be answered")
            error = Refused(500, "Internal error", code=-32603)
            await (request or _bare(scope, receive, send)).refuse(error)

    async def _plain(self, request: Request, path: str) -> None:
        if path == "/healthz":
            await request.reply(200, b"ok\n", [(b"content-type", b"text/plain")])
        elif path == "/readyz":
            why_not = await self._gateway.readiness.why_not()
            body = b"%s\n" % (why_not or "ready").encode()
            await request.reply(503 if why_not else 200, body, [(b"content-type", b"text/plain")])
        elif path.rstrip("/") == self._path.rstrip("/"):  # with a slash behind it, it is the same endpoint
            await self._mcp(request)
        else:
            raise Refused(404, f"there is nothing here; the endpoint is {self._path}")

    async def _mcp(self, request: Request) -> None:
        if not self.callers.host_is_fine(request.header(b"host")):
            raise Refused(421, "this host is not served here; see listen.hosts")
        if b"origin" in request.headers:
            if not self.callers.origin_is_fine(request.header(b"origin")):
                raise Refused(403, "this origin may not call; see listen.origins")
            request.allow_origin()
            if request.method == "OPTIONS":
                await request.reply(204, headers=[(b"access-control-max-age", b"600")])
                return
        authorization = request.header(b"authorization")
        principal = self._authenticator.principal(authorization)
        if principal is None:
            raise _unauthorized()
        request.is_of(principal)
        if principal != ANONYMOUS and self.open.of(principal) >= (most := most_of_one_caller(self._limits)):
            what = f"{most} requests and streams of yours are open, which is the most (clients.per_principal)"
            raise Refused(503, what, code=-32000, retry_after="1")
        with self.open.keep(request, principal, authorization):
            try:
                await self._serve(request, principal)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not request.revoked or task is None:
                    raise
                task.uncancel()
                if not request.begun:
                    raise _unauthorized() from None
                request.hang_up()

    async def _serve(self, request: Request, principal: Principal) -> None:
        if request.doubled:
            self._refuse_doubles(request.doubled)
        if request.method == "POST":
            await self._post(request, principal)
        elif request.method == "GET":
            await self._get(request, principal)
        elif request.method == "DELETE":
            await self._delete(request, principal)
        else:
            raise Refused(405, "GET, POST and DELETE are served", allow="GET, POST, DELETE")

    def _refuse_doubles(self, doubled: frozenset[bytes]) -> None:
        """A header that goes to a backend, or names a session, says one thing."""
        deciding = {name for backend in self._gateway.backends.values() for name in backend.policy.pass_headers}
        deciding.add((self._gateway.settings.sessions.header or "").lower())
        for name in sorted(doubled):
            if name.decode("latin-1") in deciding:
                raise Refused(400, f"the header {name.decode('latin-1')} stands here twice")

    # POST

    async def _post(self, request: Request, principal: Principal) -> None:
        kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refused(415, "the body must be application/json")
        takes_json, takes_sse = _accepted(request.headers.get(b"accept"))
        if not takes_json and not takes_sse:
            raise Refused(406, "accept application/json and text/event-stream")
        with self.bodies.held_by(principal) as held:
            body = await request.body(self._gateway.settings.listen.max_body, held.grow_to)
            message = self._parse(body)
            if len(body) > COMMON:
                held.grow_to(weight(message))
            await self._post_message(request, principal, message, takes_json, takes_sse)

    async def _post_message(
        self, request: Request, principal: Principal, message: dict[str, Any], takes_json: bool, takes_sse: bool
    ) -> None:
        if self._is_2026(request, message):
            await self._2026.post(request, principal, message, takes_json, takes_sse)
            return
        method, id = message.get("method"), message.get("id")
        try:
            if method == "initialize" and "id" in message:
                await self._initialize(request, principal, message, takes_json)
                return
            session = await self._session(request, principal)
            if not isinstance(method, str):
                self._answered(session, message)
                await request.reply(202)
            elif "id" not in message:
                self._notified(session, method, message)
                await request.reply(202)
            else:
                await self._call(request, session, message, takes_json, takes_sse)
        except Refused as refused:
            await request.refuse(refused, id if isinstance(id, str | int) else None)

    def _parse(self, body: bytes) -> dict[str, Any]:
        try:
            message = decode_exactly(body)
        except ValueError as error:
            raise Refused(400, f"the body is not valid JSON: {error}"[:200], code=PARSE_ERROR) from None
        if not isinstance(message, dict):
            what = "batches are not served" if isinstance(message, list) else "a message is an object"
            raise Refused(400, what)
        known = cast("dict[str, Any]", message)
        if known.get("jsonrpc") != "2.0":
            raise Refused(400, 'a message has "jsonrpc": "2.0"')
        id = known.get("id")
        if "id" in known and (isinstance(id, bool) or not isinstance(id, str | int)):
            raise Refused(400, "an id is a string or a whole number")
        if "method" in known and not isinstance(known["method"], str):
            raise Refused(400, "a method is a string")
        params = known.get("params")
        if params is not None and not isinstance(params, dict):
            raise Refused(400, "params are an object", code=-32602)
        meta = cast("dict[str, Any]", params).get("_meta") if params is not None else None
        if meta is not None and not isinstance(meta, dict):
            raise Refused(400, "_meta is an object", code=-32602)
        return known

    def _is_2026(self, request: Request, message: dict[str, Any]) -> bool:
        """The era of one request, by its header; by its envelope where the header is missing or odd."""
        version = request.header(b"mcp-protocol-version")
        if version in _2026:
            return True
        params = message.get("params")
        meta = cast("dict[str, Any]", params).get("_meta") if isinstance(params, dict) else None
        if isinstance(meta, dict) and PROTOCOL_VERSION in meta:
            return True
        if version is not None and version not in _2025 and message.get("method") != "initialize":
            supported = {"supported": [*VERSIONS[Era.Y2025], *VERSIONS[Era.Y2026]], "requested": version[:40]}
            raise Refused(400, "Unsupported protocol version", code=UNSUPPORTED_VERSION, data=supported)
        return False

    async def _initialize(
        self, request: Request, principal: Principal, message: dict[str, Any], takes_json: bool
    ) -> None:
        if self._gateway.draining:
            raise Refused(503, "the gateway is going down", code=-32000, retry_after="1")
        if b"mcp-session-id" in request.headers:
            raise Refused(400, "initialize begins a session, so it carries no session id")
        try:
            client = client_of(cast("dict[str, Any]", message.get("params") or {}))
            session = await self._gateway.sessions.begin(principal, client)
        except BadHandshake as error:
            raise Refused(400, str(error), code=-32602) from None
        except HoldfastError as error:
            self._gateway.report(error)
            raise Refused.because(error) from None
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": handshake(self._gateway, client)}
        headers = [(b"mcp-session-id", session.id.encode())]
        if takes_json:
            await request.reply_json(200, answer, headers)
        else:
            await request.begin_stream(headers)
            await request.chunk(event_of(answer))
            await request.end_stream()

    async def _session(self, request: Request, principal: Principal) -> Session:
        """The caller's session, or 400 for none named, 404 for none found."""
        id = request.header(b"mcp-session-id")
        if id is None:
            raise Refused(400, "Missing session ID: initialize first, then send Mcp-Session-Id")
        try:
            session = await self._gateway.sessions.find(id, principal)
        except HoldfastError as error:
            self._gateway.report(error)
            raise Refused.because(error) from None
        if session is None or session.era is not Era.Y2025:
            raise Refused(404, "Session not found", code=SESSION_NOT_FOUND)
        return session

    def _answered(self, session: Session, message: dict[str, Any]) -> None:
        if ("result" in message) == ("error" in message) or "id" not in message:
            raise Refused(400, "a message has a method, or an id with a result or an error")
        if not session.answered(message):
            raise Refused(400, "no question with this id is open")

    def _notified(self, session: Session, method: str, message: dict[str, Any]) -> None:
        params = cast("dict[str, Any]", message.get("params") or {})
        if method == "notifications/cancelled":
            id = params.get("requestId")
            task = session.calls.get(id) if isinstance(id, str | int) else None
            if task is not None:
                task.cancel()
        elif method == "notifications/roots/list_changed":
            session.roots_changed()

    async def _call(
        self, request: Request, session: Session, message: dict[str, Any], takes_json: bool, takes_sse: bool
    ) -> None:
        id, method = message["id"], message["method"]
        if id in session.calls:
            raise Refused(400, f"a request with the id {id!r:.80} is under way already")
        takes_sse = takes_sse and (request.streams or not takes_json)
        reply_channel = PostReplyChannel(
            request, json=takes_json, sse=takes_sse, stream=lambda: _streams(session).answer()
        )
        context = RequestContext(session.principal, Era.Y2025, session, session.client, request, reply_channel)
        task = asyncio.current_task()
        assert task is not None
        session.calls[id] = task
        session.reply_channels.append(reply_channel)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
        try:
            answer["result"] = await self._gateway.methods.answer(context, method, message.get("params") or {})
        except HoldfastError as error:
            answer["error"] = rpc_error(error)
        except asyncio.CancelledError:
            if request.revoked or not task.cancelling():
                reply_channel.drop()
                raise
            task.uncancel()
            answer["error"] = {"code": CANCELLED, "message": "Request cancelled"}
        finally:
            session.reply_channels.remove(reply_channel)
            session.calls.pop(id, None)
            self._gateway.sessions.was_used(session)
        await reply_channel.finish(answer)
        if context.reporting is not None and await request.was_read():
            context.reported()

    # GET and DELETE

    async def _get(self, request: Request, principal: Principal) -> None:
        if request.header(b"mcp-protocol-version") in _2026:
            raise Refused(405, "2026 has no GET stream; use subscriptions/listen", allow="POST")
        if not _accepted(request.headers.get(b"accept"))[1]:
            raise Refused(406, "accept text/event-stream")
        session = await self._session(request, principal)
        streams = _streams(session)
        last = request.header(b"last-event-id")
        stream, number = streams.resume(last) if last else (streams.own, streams.own.delivered)
        events = stream.after(number)
        if stream is streams.own:
            session.listen()
            for method in sorted(session.changed):
                session.push({"method": method})
            session.changed.clear()
        await request.stream(events)

    async def _delete(self, request: Request, principal: Principal) -> None:
        if request.header(b"mcp-protocol-version") in _2026:
            raise Refused(405, "2026 has no sessions to delete", allow="POST")
        session = await self._session(request, principal)
        try:
            await self._gateway.sessions.end(session, "ended by its client")
        except HoldfastError as error:
            self._gateway.report(error)
            raise Refused.because(error) from None
        await request.reply(204)


def _unauthorized() -> Refused:
    return Refused(401, "a valid bearer token is needed", www_authenticate='Bearer realm="holdfast"')


def _bare(scope: Scope, receive: Receive, send: Send) -> Request:
    return Request({**scope, "headers": []}, receive, send)


def _streams(session: Session) -> Streams:
    if session.streams is None:
        session.streams = session.sessions.new_streams()
    return session.streams


def _accepted(accept: bytes | None) -> tuple[bool, bool]:
    """May it be JSON, may it be an event stream?"""
    if accept is None:
        return True, True
    json = sse = False
    for part in accept.lower().split(b","):
        kind = part.partition(b";")[0].strip()
        json = json or kind in (b"application/json", b"application/*", b"*/*")
        sse = sse or kind in (b"text/event-stream", b"text/*", b"*/*")
    return json, sse
