"""What HTTP clients of the 2025 era get: sessions named by `Mcp-Session-Id`, their GET stream, their end by DELETE."""

import logging
from typing import Any

from holdfast.core.eras import Era
from holdfast.core.models import Principal
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.fronts.batches import Batch, parts_of
from holdfast.gateway.fronts.http.keep_alive import KeepAlive
from holdfast.gateway.fronts.http.post_reply import Accepts, PostReplyChannel, event_of
from holdfast.gateway.fronts.http.request import Request
from holdfast.gateway.fronts.messages import Message
from holdfast.gateway.fronts.pipeline import Pipeline
from holdfast.gateway.fronts.refusals import SESSION_NOT_FOUND, Refused
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.sessions.session import GatewaySession

log = logging.getLogger("holdfast.gateway")


class Front2025:
    """Answers the requests of 2025 clients."""

    def __init__(self, gateway: Gateway, pipeline: Pipeline, alive: KeepAlive) -> None:
        self._gateway = gateway
        self._pipeline = pipeline
        self._alive = alive

    async def post(self, request: Request, principal: Principal, message: Message, accepts: Accepts) -> None:
        if message.method == "initialize" and message.is_request:
            await self._initialize(request, principal, message, accepts)
            return
        session = await self._session(request, principal)
        if message.is_request:
            await self._call(request, session, message, accepts)
            return
        if message.method is None and not message.is_answer:
            raise Refused(400, "a message has a method, or an id with a result or an error")
        self._take(session, message, request)
        await request.reply(202)

    async def post_batch(self, request: Request, principal: Principal, found: list[Any], accepts: Accepts) -> None:
        """Several messages at once."""
        session = await self._session(request, principal)
        parts = parts_of(found, session.client.version)
        channel = PostReplyChannel(request, accepts, lambda: session.notices.open_streams().answer())
        batch = Batch(self._pipeline, request, session, channel, self._gateway.settings.clients.stream_bytes)
        self._alive.add(channel)
        try:
            await batch.answer(parts, lambda message: self._take(session, message))
        finally:
            self._alive.remove(channel)

    def _take(self, session: GatewaySession, message: Message, request: Request | None = None) -> None:
        """A notification, or an answer to a question. A question that is over needs no answer any more, and its client
        can't know."""
        if message.method is not None:
            self._pipeline.notify(session, session.calls, message, request)
        elif not session.questions.answer(message.body):
            log.debug("dropped an answer to a question that is not open: %r", message.id)

    async def _initialize(self, request: Request, principal: Principal, message: Message, accepts: Accepts) -> None:
        self._pipeline.refuse_if_draining()
        if b"mcp-session-id" in request.headers:
            raise Refused(400, "initialize begins a session, so it carries no session id")
        context = RequestContext(principal, Era.Y2025, headers=request)
        with self._pipeline.observer.observing(context, message):
            session, result = await self._pipeline.initialize(context, message.params)
        answer = {"jsonrpc": "2.0", "id": message.id, "result": result}
        headers = [(b"mcp-session-id", session.id.encode())]
        if accepts.json:
            await request.reply_json(200, answer, headers)
        else:
            await request.begin_stream(headers)
            await request.chunk(event_of(answer))
            await request.end_stream()

    async def _session(self, request: Request, principal: Principal) -> GatewaySession:
        """The caller's session, or 400 if the request names none, 404 if there is none of that name."""
        id = request.header(b"mcp-session-id")
        if id is None:
            raise Refused(400, "Missing session ID: initialize first, then send Mcp-Session-Id")
        session = await self._gateway.sessions.find(id, principal)
        if session is None or session.era is not Era.Y2025:
            raise Refused(404, "Session not found", code=SESSION_NOT_FOUND)
        return session

    async def _call(self, request: Request, session: GatewaySession, message: Message, accepts: Accepts) -> None:
        id, method = message.id, message.method
        assert id is not None
        assert method is not None
        if id in session.calls:
            raise Refused(400, f"a request with the id {id!r:.80} is under way already")
        channel = PostReplyChannel(request, accepts, lambda: session.notices.open_streams().answer())
        context = RequestContext(session.principal, Era.Y2025, session, session.client, request, channel)
        session.begin_call(id, channel)
        self._alive.add(channel)
        try:
            answer = await self._pipeline.answer(
                context, channel, message, self._pipeline.methods.answer(context, method, message.params)
            )
        finally:
            self._alive.remove(channel)
            session.end_call(id, channel)
        if answer is not None:
            await self._pipeline.deliver(context, channel, answer.message, answer.status)

    # GET and DELETE

    async def get(self, request: Request, principal: Principal) -> None:
        """The session's own stream, or a call's stream that broke."""
        if not Accepts.of(request.headers.get(b"accept")).sse:
            raise Refused(406, "accept text/event-stream")
        session = await self._session(request, principal)
        streams = session.notices.open_streams()
        last = request.header(b"last-event-id")
        stream, number = streams.resume(last) if last else (streams.own, streams.own.delivered)
        events = stream.after(number)
        if stream is streams.own:
            session.links.listen()
            session.notices.push_changes()
        await request.stream(events)

    async def delete(self, request: Request, principal: Principal) -> None:
        """End the session. The client wants nothing of it any more, so its calls get no time to end."""
        session = await self._session(request, principal)
        await self._gateway.sessions.endings.end(session, "ended by its client", cut_calls=True)
        await request.reply(204)
