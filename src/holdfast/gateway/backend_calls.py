"""Calls on their way to backends: their headers, what a backend sends and asks meanwhile, and what an error becomes."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from holdfast.core.disclosure import CALL_AGAIN
from holdfast.core.eras import (
    HEADER_MISMATCH,
    LOG_LEVEL,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    Era,
    result_for_2025,
)
from holdfast.core.questions import ASKING
from holdfast.core.values import members
from holdfast.errors import (
    BadAnswer,
    CircuitOpen,
    ConnectFailed,
    ConnectionLost,
    ErrorAnswer,
    HoldfastError,
    SessionReplaced,
    StartTimeout,
)
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.call_logs import MESSAGE, CallLog
from holdfast.gateway.backends.link import BackendLink
from holdfast.gateway.backends.lists import LISTS
from holdfast.gateway.backends.refused_questions import RefusedQuestions
from holdfast.gateway.backends.routing import Route
from holdfast.gateway.identity import with_client
from holdfast.gateway.lifecycle import GatewayLifecycle
from holdfast.gateway.link_choice import LinkChoice
from holdfast.gateway.parking.call import with_answer
from holdfast.gateway.parking.parked_calls import invalid_state
from holdfast.gateway.repeats import RepeatableCall, headers_of
from holdfast.gateway.request_context import RequestContext
from holdfast.gateway.results import OWN_SESSION, error_with_refusal, with_notice, with_refusal
from holdfast.gateway.seen_uris import SHOWS_URIS, SeenUris, uris_in
from holdfast.gateway.sessions.questions import Asker, ReplyChannel
from holdfast.gateway.tasks.ids import TaskIds
from holdfast.gateway.tasks.messages import names_tasks, with_ids
from holdfast.links.calls.handlers import CallHandlers, RawProgress
from holdfast.links.crossing.shapes import structured_for_2025

log = logging.getLogger("holdfast.gateway")

UPDATED = "notifications/resources/updated"
TRACE = ("traceparent", "tracestate", "baggage")
INVALID_REQUEST = -32600
_CODES_OF_2026 = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
_OF_A_RETRY = frozenset({"inputResponses", "requestState"})


@dataclass(slots=True)
class BackendRequest:
    """What is asked of a backend."""

    route: Route
    method: str
    params: dict[str, Any]
    safe: bool
    """Repeating it changes nothing at the backend."""


class BackendCalls:
    """Sends the calls of one gateway, one backend request a call."""

    def __init__(
        self,
        choice: LinkChoice,
        lifecycle: GatewayLifecycle,
        seen_by: Callable[[RequestContext], SeenUris],
        task_ids: TaskIds,
    ) -> None:
        self._task_ids = task_ids
        self._choice = choice
        self._seen_by = seen_by
        self._lifecycle = lifecycle

    def send(
        self, context: RequestContext, backend: Backend, request: BackendRequest
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """One request to one backend, over the link that this caller's calls belong to."""
        ready = self._choice.ready(context, backend)
        if ready is not None:
            return self._send(context, backend, ready, request)
        return self._send_by_choice(context, backend, request)

    async def _send_by_choice(
        self, context: RequestContext, backend: Backend, request: BackendRequest
    ) -> dict[str, Any]:
        backend_link = await self._choice.for_call(context, backend)
        if backend_link is None:
            return await self._send_in_new_session(context, backend, request)
        return await self._send(context, backend, backend_link, request)

    async def _send_in_new_session(
        self, context: RequestContext, backend: Backend, request: BackendRequest
    ) -> dict[str, Any]:
        """A session for this one call. If the backend would have kept something, the result says that it is gone."""
        # Over HTTP, a 2026 client comes here only where the backend was found to offer 2025 alone.
        may_be_2026 = backend.is_child or backend.is_per_caller or backend.policy.reuse == "call"
        backend_link = backend.new(
            principal=context.principal,
            caller=context.principal,
            info=context.client.info or None,
            capabilities=context.client.capabilities,
            on_notification=partial(backend.on_notification, principal=context.principal),
            passed=backend.passed(context.headers),
            session_wanted=context.era is Era.Y2025 or not may_be_2026,
            stream=True,
        )
        try:
            await self._choice.start(backend_link, backend)
            lost = backend_link.link.keeps_state or (backend.is_child and backend.keeps_sessions)
            keeps = lost and backend.policy.stateful and backend.policy.reuse != "call"
            result = await self._send(context, backend, backend_link, request)
        finally:
            await backend_link.close("one call", end=True)
        return with_notice(result, request.method, OWN_SESSION.format(backend=backend.name)) if keeps else result

    async def _send(
        self, context: RequestContext, backend: Backend, backend_link: BackendLink, request: BackendRequest
    ) -> dict[str, Any]:
        link, session, params = backend_link.link, context.session, request.params
        backend_link.mark_used(backend.passed(context.headers) if backend.is_per_caller else None)
        headers = _headers(context, backend_link, request)
        reply_channel, handlers, on_progress = context.reply_channel, None, None
        refused = RefusedQuestions(backend.name)
        if link.era is Era.Y2025 and request.method in ASKING and not _OF_A_RETRY.isdisjoint(params):
            params = _without_answers(params)
        if link.era is Era.Y2026 and context.era is Era.Y2025:
            params = with_client(params, context.client)
        id = None
        if session is not None and ("task" in params or "_meta" in params) and names_tasks("", params):
            await self._task_ids.prepare()
            params = session.tasks.to_server(backend.name, "", params)
            token = members(params.get("_meta")).get("progressToken")
            if "task" in params and token is not None and link.era is Era.Y2025:
                id = f"task-{secrets.token_hex(8)}"  # the server's progress goes on with it after the answer
                session.tasks.follow_progress(id, token)
        if (parkable := context.parkable) is not None:
            backend_link.parkable.append(parkable)
        call_log: CallLog | None = None
        if reply_channel is not None:
            meta = members(params.get("_meta"))
            if context.era is Era.Y2026 and LOG_LEVEL in meta:
                call_log = CallLog(reply_channel, meta[LOG_LEVEL])
                backend_link.logs.append(call_log)
            handlers = _handlers(context, backend, backend_link, reply_channel, call_log, refused)
            token = meta.get("progressToken")
            if token is not None:
                on_progress = _progress(reply_channel, token)
        server = backend.entry.server
        backend_link.calls.append(refused)
        try:
            if call_log is not None:
                await backend_link.want_logs(call_log)
            try:
                result = await link.request(
                    request.method,
                    params,
                    safe=request.safe,
                    headers=headers,
                    timeout=server.timeout,
                    silence=server.silence,
                    on_progress=on_progress,
                    id=id,
                    handlers=handlers,
                )
            except ErrorAnswer as error:
                call = RepeatableCall(context, backend_link, request.method, request.safe, on_progress, handlers)
                if not call.was_refused_for_headers(error):
                    raise
                backend.lists.fetch_soon()
                result = await call.with_new_headers(params, headers, error)
            if result.get("resultType") == "input_required" and context.era is Era.Y2025:
                call = RepeatableCall(context, backend_link, request.method, request.safe, on_progress, handlers)
                result = await call.with_answers(params, result, headers)
            if names_tasks(request.method, result):
                result = await self._with_task_ids(context, backend.name, request.method, result)
        except ErrorAnswer as error:
            refusal = _refusal(context, refused)
            if refusal is None:
                if context.era is Era.Y2025 and error.code in _CODES_OF_2026:
                    raise _in_2025(error) from error
                raise
            if isinstance(refusal, ErrorAnswer):
                raise with_answer(refusal, error) from error
            return error_with_refusal(request.method, error, refusal)
        except asyncio.CancelledError:
            if not (self._lifecycle.was_cut() or (session is not None and session.was_cut())):
                raise
            raise ConnectionLost(
                f"{request.method}: the call at {backend.name!r} was cut when its session or the gateway ended",
                server=backend.name,
                phase="call",
            ) from None
        except (ConnectFailed, StartTimeout, CircuitOpen) as error:
            backend.link_failed(error, backend_link.session, backend_link.caller)
            raise backend.health.unavailable(error) from error
        except SessionReplaced as error:
            error.remedy = CALL_AGAIN
            if not request.safe and (loss := link.losses.pending) is not None:
                context.will_report(link, loss)
            raise
        finally:
            backend_link.calls.remove(refused)
            if call_log is not None:
                backend_link.logs.remove(call_log)
            if parkable is not None:
                backend_link.parkable.remove(parkable)
            if request.method == "tools/call":  # what the server offers may be other things from now on
                backend.lists.looks.mark_changed()
                if session is not None and backend_link.session is not None:
                    session.lists.may_have_changed(backend.name)
        if backend.health.state != "up":
            backend.answered(backend_link.caller)
        if request.method in SHOWS_URIS and (uris := uris_in(request.method, result)):
            self._seen_by(context).add(uris, backend.name)
        if (
            (parkable is not None or refused.method is not None)
            and result.get("isError") is True
            and (refusal := _refusal(context, refused)) is not None
        ):
            if isinstance(refusal, ErrorAnswer):
                raise refusal
            result = with_refusal(result, refusal)
        if context.era is Era.Y2025 and "resultType" in result:
            kept = result_for_2025(request.method, result)
            return structured_for_2025(kept) if request.method == "tools/call" else kept
        return result

    async def _with_task_ids(
        self, context: RequestContext, server: str, method: str, result: dict[str, Any]
    ) -> dict[str, Any]:
        """A result with the ids by which the client knows the tasks in it."""
        session, ids = context.session, self._task_ids
        if result.get("resultType") == "task" and context.era is Era.Y2025:
            raise BadAnswer(f"{method}: {server!r} made a task, of which 2025 clients can't learn", server=server)
        await ids.prepare()
        made = members(result.get("task")).get("taskId")
        if method == "tasks/list" and session is not None and isinstance(result.get("tasks"), list):
            own = session.record.tasks
            listed = [members(each) for each in cast("list[object]", result["tasks"])]
            result = {**result, "tasks": [each for each in listed if (server, each.get("taskId")) in own]}
        if session is None:
            return with_ids(method, result, lambda id: ids.sealed(context.task_scope, server, id))
        changed = session.tasks.to_client(server, method, result)
        if isinstance(made, str) and session.era is Era.Y2025:
            try:
                await session.record.add_task(server, made)
            except HoldfastError as error:
                log.warning("session %s: a task will not be listed: %s", session.key[:8], error.what)
        return changed


def _without_answers(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters for a 2025 server. It gave out no state, so one that comes back is not ours, or not any longer."""
    if "requestState" in params:
        raise invalid_state()
    return {key: value for key, value in params.items() if key != "inputResponses"}


def _in_2025(error: ErrorAnswer) -> ErrorAnswer:
    """The same with a code that a 2025 client knows."""
    known = error.copied()
    known.code = INVALID_REQUEST
    known.answer = None if error.answer is None else {**error.answer, "code": INVALID_REQUEST}
    return known


def _refusal(context: RequestContext, refused: RefusedQuestions) -> HoldfastError | None:
    """Why a question of the server was refused during this call."""
    if context.parkable is not None and context.parkable.refusal is not None:
        return context.parkable.refusal
    return refused.error(context.client.capabilities if context.era is Era.Y2026 else None)


def _headers(context: RequestContext, backend_link: BackendLink, request: BackendRequest) -> dict[str, str] | None:
    """Trace context, what the operator passes through, and what a 2026 tool wants of its parameters."""
    headers: dict[str, str] | None = None
    route = request.route
    given, backend = context.headers, backend_link.backend
    if given is not None:
        for name in (*TRACE, *backend.policy.pass_headers):
            value = given.get(name)
            if value is not None:
                headers = headers or {}
                headers[name] = value
    if route.params_in_headers and backend_link.link.era is Era.Y2026:
        known = backend.catalogue
        tool = known.tools_by_name.get(route.name) if known is not None else route.item
        if tool is not None and (wanted := headers_of(tool, request.params)):
            headers = {**(headers or {}), **wanted}
    return headers


def _handlers(
    context: RequestContext,
    backend: Backend,
    backend_link: BackendLink,
    reply_channel: ReplyChannel,
    call_log: CallLog | None,
    refused: RefusedQuestions,
) -> CallHandlers:
    session, era = context.session, context.era
    # A program's pipe is for all its calls, which may be of several clients.
    keep_up = None if backend.is_child and not reply_channel.is_alone else reply_channel.keep_up
    own = session is not None and backend_link.session is not None

    def on_notice(method: str, params: Mapping[str, Any] | None) -> None:
        # Lists: we list anew first, and then the client may. Updates: 2026 has them on subscriptions only.
        if method in LISTS or (method == UPDATED and era is Era.Y2026):
            if own and session is not None:
                session.links.on_notification(backend.name, method, params)
            else:
                backend.on_notification(method, params, backend_link.caller)
            return
        if method == MESSAGE and era is Era.Y2026:
            if call_log is not None:
                call_log.take(params)
            return
        passed = session.tasks.notice(backend.name, method, params or {}) if session is not None else dict(params or {})
        if passed is not None:
            reply_channel.send({"jsonrpc": "2.0", "method": method, "params": passed})

    if session is None or era is Era.Y2026:
        parkable = context.parkable
        return CallHandlers(parkable.ask if parkable is not None else refused.refuse, on_notice, keep_up)
    asker = Asker(backend.name, backend_link.link.notify)
    return CallHandlers(
        lambda method, params, _: session.questions.ask(method, params, reply_channel, asker), on_notice, keep_up
    )


def _progress(reply_channel: ReplyChannel, token: Any) -> RawProgress:
    def pass_on(params: Mapping[str, Any]) -> None:
        own = {**params, "progressToken": token}
        reply_channel.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": own})

    return RawProgress(pass_on)
