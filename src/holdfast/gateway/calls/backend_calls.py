"""The sending of calls to backends: over which link, what of them is sent again, and what their errors become."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

from holdfast.core.disclosure import CALL_AGAIN
from holdfast.core.eras import (
    HEADER_MISMATCH,
    INPUT_METHODS,
    LOG_LEVEL,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    Era,
    result_for_2025,
)
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
from holdfast.gateway.backends.links.link import BackendLink
from holdfast.gateway.calls.headers import call_headers
from holdfast.gateway.calls.link_choice import LinkChoice
from holdfast.gateway.calls.outgoing_call import BackendRequest, OutgoingCall
from holdfast.gateway.calls.repeats import was_refused_for_headers, with_answers, with_new_headers
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.calls.results import OWN_SESSION, error_with_refusal, with_notice, with_refusal
from holdfast.gateway.identity import with_client
from holdfast.gateway.names.seen_uris import SHOWS_URIS, SeenUris, uris_in
from holdfast.gateway.parking.call import with_answer
from holdfast.gateway.parking.parked_calls import invalid_state
from holdfast.gateway.process.lifecycle import GatewayLifecycle
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.gateway.tasks.ids import TaskIds
from holdfast.gateway.tasks.messages import names_tasks, with_ids
from holdfast.links.crossing.shapes import structured_for_2025

log = logging.getLogger("holdfast.gateway")

INVALID_REQUEST = -32600
_CODES_OF_2026 = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
_OF_A_RETRY = frozenset({"inputResponses", "requestState"})


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
        link, session, method = backend_link.link, context.session, request.method
        context.goes_to(backend.name)
        backend_link.mark_used(backend.passed(context.headers) if backend.is_per_caller else None)
        headers = call_headers(context.headers, backend_link, request.route, request.params)
        params, id = _params_for(context, link.era, request), None
        if session is not None and ("task" in params or "_meta" in params) and names_tasks("", params):
            params, id = await self._with_server_task_ids(session, backend.name, link.era, params)
        call = OutgoingCall(context, backend, backend_link, request, params)
        call.begin()
        try:
            if call.log is not None:
                await backend_link.want_logs(call.log)
            try:
                result = await call.send(params, headers, id)
            except ErrorAnswer as error:
                if not was_refused_for_headers(call, error):
                    raise
                backend.lists.fetch_soon()
                result = await with_new_headers(call, params, headers, error)
            if result.get("resultType") == "input_required" and context.era is Era.Y2025:
                result = await with_answers(call, params, result, headers)
            if names_tasks(method, result):
                result = await self._with_task_ids(context, backend.name, method, result)
        except ErrorAnswer as error:
            return _answer_to_error(call, error)
        except asyncio.CancelledError:
            if not (self._lifecycle.was_cut() or (session is not None and session.was_cut())):
                raise
            raise ConnectionLost(
                f"{method}: the call at {backend.name!r} was cut when its session or the gateway ended",
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
            call.end()
            if method == "tools/call":  # what the server offers may be other things from now on
                backend.lists.looks.mark_changed()
                if session is not None and backend_link.session is not None:
                    session.lists.may_have_changed(backend.name)
        return self._answer(call, result)

    def _answer(self, call: OutgoingCall, result: dict[str, Any]) -> dict[str, Any]:
        """The result as the caller gets it; what it shows of the backend is noted."""
        context, backend, method = call.context, call.backend, call.method
        if backend.health.state != "up":
            backend.answered(call.backend_link.caller)
        if method in SHOWS_URIS and (uris := uris_in(method, result)):
            self._seen_by(context).add(uris, backend.name)
        if (
            (context.parkable is not None or call.refused.method is not None)
            and result.get("isError") is True
            and (refusal := call.refusal()) is not None
        ):
            if isinstance(refusal, ErrorAnswer):
                raise refusal
            result = with_refusal(result, refusal)
        if context.era is Era.Y2025 and "resultType" in result:
            kept = result_for_2025(method, result)
            return structured_for_2025(kept) if method == "tools/call" else kept
        return result

    async def _with_server_task_ids(
        self, session: GatewaySession, server: str, era: Era | None, params: dict[str, Any]
    ) -> tuple[dict[str, Any], str | None]:
        """Parameters with the server's own ids of tasks, and the id of a request that begins a task."""
        await self._task_ids.prepare()
        params = session.tasks.to_server(server, "", params)
        token = members(params.get("_meta")).get("progressToken")
        if "task" not in params or token is None or era is not Era.Y2025:
            return params, None
        id = f"task-{secrets.token_hex(8)}"  # the server's progress goes on with it after the answer
        session.tasks.follow_progress(id, token)
        return params, id

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
                log.warning(
                    "session %s: a task will not be listed: %s",
                    session.key[:8],
                    error.what,
                    extra={"session": session.key},
                )
        return changed


def _params_for(context: RequestContext, era: Era | None, request: BackendRequest) -> dict[str, Any]:
    """The parameters as a server of this era takes them."""
    params = request.params
    if era is Era.Y2025 and request.method in INPUT_METHODS and not _OF_A_RETRY.isdisjoint(params):
        return _without_answers(params)
    if era is Era.Y2026 and context.era is Era.Y2025:
        return _with_level(with_client(params, context.client), context.session)
    return params


def _with_level(params: dict[str, Any], session: GatewaySession | None) -> dict[str, Any]:
    """With the log level of a 2025 client's session, which 2026 servers are told with each request."""
    level = session.record.log_level if session is not None else None
    return params if level is None else {**params, "_meta": {**members(params.get("_meta")), LOG_LEVEL: level}}


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


def _answer_to_error(call: OutgoingCall, error: ErrorAnswer) -> dict[str, Any]:
    """The answer to a call that its server answered with an error: that error, or the refused question that may be
    its reason."""
    refusal = call.refusal()
    if refusal is None:
        if call.context.era is Era.Y2025 and error.code in _CODES_OF_2026:
            raise _in_2025(error) from error
        raise error
    if isinstance(refusal, ErrorAnswer):
        raise with_answer(refusal, error) from error
    return error_with_refusal(call.method, error, refusal)
