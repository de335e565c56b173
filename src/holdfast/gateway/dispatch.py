"""The table of the methods that clients may call, and how any of them is answered.

All fronts call them alike. What a method does is in `methods/`, how a call reaches its backend in
`backend_calls.py`.
"""

import asyncio
from functools import partial
from typing import Any

from holdfast.core.eras import INPUT_METHODS, Era, result_in
from holdfast.core.questions import asked_by_error, has, may_be_asked
from holdfast.errors import ErrorAnswer, HoldfastError, Unavailable
from holdfast.gateway.calls.backend_calls import BackendCalls
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.calls.results import tool_error
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.lists.fresh_lists import FreshLists
from holdfast.gateway.methods.calls import CallMethods
from holdfast.gateway.methods.foreign import ForeignMethods, method_not_found
from holdfast.gateway.methods.lists import ListMethods
from holdfast.gateway.methods.offered import OfferedNames
from holdfast.gateway.methods.session_settings import SessionSettings
from holdfast.gateway.methods.tasks import TaskMethods
from holdfast.gateway.names.uris import UriRouting
from holdfast.gateway.parking.parked_calls import Work
from holdfast.gateway.parking.record import PREFIX
from holdfast.links.crossing.open_questions import missing_capability

_ONLY_2025 = frozenset(
    {"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/result", "tasks/list"}
)


class Methods:
    """The methods of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        fresh = FreshLists(gateway)
        self._names = OfferedNames(gateway, fresh)
        backend_calls = BackendCalls(gateway.link_choice, gateway.lifecycle, gateway.seen_by, gateway.sessions.task_ids)
        self.uris = UriRouting(gateway, backend_calls, self._names.table)
        lists = ListMethods(gateway, self._names, fresh)
        calls = CallMethods(gateway, self._names, backend_calls, self.uris)
        tasks = TaskMethods(gateway, backend_calls)
        self.foreign = ForeignMethods(gateway, backend_calls)
        settings = SessionSettings(gateway.link_choice, self._names, self.uris)
        self._table: dict[str, Any] = {
            "ping": _ping,
            "tools/list": partial(lists.answer, "tools"),
            "tools/call": calls.call_tool,
            "prompts/list": partial(lists.answer, "prompts"),
            "prompts/get": calls.get_prompt,
            "resources/list": partial(lists.answer, "resources"),
            "resources/templates/list": partial(lists.answer, "templates"),
            "resources/read": calls.read_resource,
            "completion/complete": calls.complete,
            "logging/setLevel": settings.set_level,
            "resources/subscribe": settings.subscribe,
            "resources/unsubscribe": settings.unsubscribe,
            "tasks/get": partial(tasks.call, "tasks/get"),
            "tasks/result": partial(tasks.call, "tasks/result"),
            "tasks/update": partial(tasks.call, "tasks/update"),
            "tasks/cancel": partial(tasks.call, "tasks/cancel"),
            "tasks/list": tasks.list,
        }

    async def answer(self, context: RequestContext, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a method. An error that the client gets as the answer is raised."""
        handler = self._table.get(method)
        if context.era is Era.Y2026 and method in _ONLY_2025:
            raise method_not_found(method)
        if handler is None:
            handler = partial(self.foreign.answer, method=method)
        lifecycle = self._gateway.lifecycle
        task = lifecycle.begin_call()
        result: dict[str, Any]
        try:
            if context.era is Era.Y2026 and method in INPUT_METHODS:
                result = await self._answer_2026(context, method, params, handler)
            else:
                result = await handler(context, params=params)
        except ErrorAnswer:
            raise
        except HoldfastError as error:
            self._gateway.report(error, context.principal)
            raise
        except asyncio.CancelledError:
            if not lifecycle.was_cut():
                raise
            raise Unavailable(f"{method}: the gateway went down", remedy="try again later") from None
        finally:
            lifecycle.end_call(task)
        return result_in(context.era, method, result) if context.era is Era.Y2026 else result

    async def _answer_2026(
        self, context: RequestContext, method: str, params: dict[str, Any], handler: Work
    ) -> dict[str, Any]:
        """A call during which its server may ask the client: it waits for the answers, beyond this request."""
        parked, state = self._gateway.parked, params.get("requestState")
        try:
            if isinstance(state, str) and state.startswith(PREFIX):
                return await parked.resume(context, method, params)
            if not may_be_asked(context.client.capabilities) or self._is_of_2026(context, method, params):
                return await handler(context, params)
            return await parked.run(context, method, params, handler)
        except ErrorAnswer as error:
            asked = asked_by_error(error.code, error.data)
            if asked is None:
                raise
            if not has(context.client.capabilities, {"elicitation": {"url": {}}}):
                raise missing_capability(method, {"elicitation": {"url": {}}}) from error
            return {"resultType": "input_required", "inputRequests": asked}
        except HoldfastError as error:
            if method != "tools/call":
                raise
            self._gateway.report(error, context.principal)
            context.failed_with(error)
            return tool_error(error)

    def _is_of_2026(self, context: RequestContext, method: str, params: dict[str, Any]) -> bool:
        """Does the server of this tool speak 2026 only, and so asks in its results?"""
        route = self._names.known(context).tools.get(str(params.get("name"))) if method == "tools/call" else None
        backend = self._gateway.backends.get(route.backend) if route is not None else None
        return backend is not None and backend.era is Era.Y2026


async def _ping(context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
    return {}
