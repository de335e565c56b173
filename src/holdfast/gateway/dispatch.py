"""The methods that clients may call: lists from the table, calls, prompts, resources, settings of a session.

All fronts call them alike. How a call reaches its backend stands in `backend_calls.py`.
"""

import asyncio
import functools
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, cast

from holdfast.core.eras import METHOD_NOT_FOUND, Era, result_in
from holdfast.core.exact import is_unicode
from holdfast.core.questions import ASKING, asked_by_error, has, may_be_asked
from holdfast.errors import ErrorAnswer, HoldfastError, Unavailable
from holdfast.gateway.backend_calls import BackendCalls, BackendRequest
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.routing import BadCursor, Route, Routes, Table, page
from holdfast.gateway.backends.subscriptions import LISTEN_URIS
from holdfast.gateway.fresh_lists import FreshLists
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.parking.call import missing_capability
from holdfast.gateway.parking.parked_calls import Work
from holdfast.gateway.parking.record import PREFIX
from holdfast.gateway.request_context import RequestContext
from holdfast.gateway.results import tool_error
from holdfast.gateway.seen_uris import LONGEST_URI
from holdfast.gateway.sessions import handles
from holdfast.gateway.uris import UriRouting, not_found

INVALID_PARAMS = -32602
_ONLY_2025 = frozenset({"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def invalid(what: str) -> ErrorAnswer:
    """Parameters of a request are wrong."""
    return ErrorAnswer(what, message=what, code=INVALID_PARAMS)


def checked_uri(uri: object) -> str:
    """A URI that a client names."""
    if not isinstance(uri, str) or len(uri) > LONGEST_URI:
        raise invalid(f"a resource is named by its uri, of at most {LONGEST_URI} characters")
    if not is_unicode(uri):
        raise invalid("uri has a lone surrogate, half a character, which no URI may have")
    return uri


class Methods:
    """The methods of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._choice = gateway.link_choice
        self._lists = FreshLists(gateway)
        self._calls = BackendCalls(gateway.link_choice, gateway.calls, gateway.seen_by)
        self.uris = UriRouting(gateway, self._calls, self._table_of)
        self._table: dict[str, Any] = {
            "ping": _ping,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "completion/complete": self._complete,
            "logging/setLevel": self._set_level,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
        }

    async def answer(self, context: RequestContext, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a method. An error that the client gets as the answer is raised."""
        handler = self._table.get(method)
        if handler is None or (context.era is Era.Y2026 and method in _ONLY_2025):
            raise ErrorAnswer(f"no method {method!r:.80}", message="Method not found", code=METHOD_NOT_FOUND)
        calls = self._gateway.calls
        task = calls.begin()
        result: dict[str, Any]
        try:
            if context.era is Era.Y2026 and method in ASKING:
                result = await self._answer_2026(context, method, params, handler)
            else:
                result = await handler(context, params)
        except ErrorAnswer:
            raise
        except HoldfastError as error:
            self._gateway.report(error)
            raise
        except asyncio.CancelledError:
            if not calls.was_cut():
                raise
            raise Unavailable(f"{method}: the gateway went down", remedy="try again later") from None
        finally:
            calls.end(task)
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
            self._gateway.report(error)
            return tool_error(error)

    def _is_of_2026(self, context: RequestContext, method: str, params: dict[str, Any]) -> bool:
        """Does the server of this tool speak 2026 only, and so asks in its results?"""
        route = self._routes(context).tools.get(str(params.get("name"))) if method == "tools/call" else None
        backend = self._gateway.backends.get(route.backend) if route is not None else None
        return backend is not None and backend.era is Era.Y2026

    # Lists

    async def _list(self, context: RequestContext, name: str, key: str, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("cursor") is None:  # a later page goes with the first
            await self._lists.freshen(context, name)
        routes: Routes = getattr(await self._table_of(context, fresh=True), name)
        show = None
        extra: list[Mapping[str, Any]] = []
        if name == "tools" and context.era is Era.Y2026 and self._gateway.settings.sessions.handles:
            show = functools.partial(self._with_handle, routes)
            extra = handles.tools(self._gateway.settings.sessions) if params.get("cursor") is None else []
        try:
            items, following = page(routes, params.get("cursor"), show=show)
        except BadCursor as error:
            raise invalid(str(error)) from None
        result: dict[str, Any] = {**self._lists.members(context, name), key: [*extra, *items]}
        if following is not None:
            result["nextCursor"] = following
        return result

    def _with_handle(self, routes: Routes, item: Mapping[str, Any]) -> Mapping[str, Any]:
        route = routes.get(str(item["name"]))
        keeps = route is not None and self._gateway.backends[route.backend].keeps_sessions
        return handles.with_handle(item) if keeps else item

    async def _list_tools(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        return await self._list(context, "tools", "tools", params)

    async def _list_prompts(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        return await self._list(context, "prompts", "prompts", params)

    async def _list_resources(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        return await self._list(context, "resources", "resources", params)

    async def _list_templates(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        return await self._list(context, "templates", "resourceTemplates", params)

    async def _table_of(self, context: RequestContext, *, fresh: bool = False) -> Table:
        """What the caller is offered, once servers that come up for the first time have been waited for."""
        await self._gateway.settled()
        own = self._gateway.caller_lists
        return await own.table(context, fresh=fresh) if own.needed else self._routes(context)

    def _routes(self, context: RequestContext) -> Table:
        session = context.session
        own = session.lists.table if session is not None else None
        return own if own is not None else self._gateway.table

    # Calls

    async def _call_tool(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str):
            raise invalid("tools/call needs the name of a tool")
        arguments = params.get("arguments")
        if arguments is not None and not isinstance(arguments, dict):
            raise invalid("the arguments of a tool are an object")
        if context.era is Era.Y2026 and self._gateway.settings.sessions.handles:
            known = cast("dict[str, Any]", arguments or {})
            if name in handles.NAMES:
                return await handles.call(self._gateway.sessions, context.principal, context.client, name, known)
            if handles.ARGUMENT in known:
                return await self._call_in_session(context, params, known)
        try:
            route = await self._route(context, "tool", name)
            return await self._send(context, route, "tools/call", {**params, "name": route.name}, safe=route.safe)
        except ErrorAnswer:
            raise
        except HoldfastError as error:
            self._gateway.report(error)
            return tool_error(error)

    async def _call_in_session(
        self, context: RequestContext, params: dict[str, Any], arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """A tool call whose arguments name a session by its handle."""
        others = {key: value for key, value in arguments.items() if key != handles.ARGUMENT}
        session = await handles.find(self._gateway.sessions, context.principal, arguments[handles.ARGUMENT])
        if session is None:
            return handles.unknown(self._gateway.settings.sessions)
        context.enter(session)
        with session.calling():
            return await self._call_tool(context, {**params, "arguments": others})

    def _send(
        self, context: RequestContext, route: Route, method: str, params: dict[str, Any], *, safe: bool = True
    ) -> Awaitable[dict[str, Any]]:
        return self._calls.send(context, self._backend(route), BackendRequest(route, method, params, safe))

    def _backend(self, route: Route) -> Backend:
        backend = self._gateway.backends.get(route.backend)
        if backend is None:
            raise invalid(f"backend {route.backend!r} is no longer configured")
        return backend

    async def _route(self, context: RequestContext, kind: Literal["tool", "prompt"], name: str) -> Route:
        """The backend that has a name. Backends that come up for the first time are waited for; those that may have
        the name by now are asked for their lists once. Where the name's prefix is of a backend whose lists are not
        known, the name is not unknown: the backend is not available."""
        own = self._gateway.caller_lists
        for turn in range(3):
            if turn == 2 and not await self._lists.look_for(context, "tools" if kind == "tool" else "prompts", name):
                break
            first = turn == 0 and not own.needed
            table = self._routes(context) if first else await self._table_of(context, fresh=turn == 2)
            route = (table.tools if kind == "tool" else table.prompts).get(name)
            if route is not None:
                return route
        unknown = self._lists.why_unknown(context, name)
        raise unknown if unknown is not None else invalid(f"Unknown {kind}: {name[:200]}")

    async def _get_prompt(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str):
            raise invalid("prompts/get needs the name of a prompt")
        route = await self._route(context, "prompt", name)
        return await self._send(context, route, "prompts/get", {**params, "name": route.name})

    async def _read_resource(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        uri = checked_uri(params.get("uri"))
        return await self.uris.read(context, uri, params, self._routes(context))

    async def _complete(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        ref = params.get("ref")
        if not isinstance(ref, dict):
            raise invalid("completion/complete needs a ref")
        known = cast("dict[str, Any]", ref)
        if known.get("type") == "ref/prompt":
            route = await self._route(context, "prompt", str(known.get("name")))
            changed = {**known, "name": route.name}
        else:
            uri, changed = checked_uri(known.get("uri")), known
            backend = await self.uris.find(context, uri, self._routes(context))
            if backend is None:
                answered = await self.uris.ask(context, uri, "completion/complete", params)
                if answered is None:
                    raise invalid("no resource or template of this URI can be completed")
                return answered[1]
            route = Route(backend.name, uri, {}, True)
        return await self._send(context, route, "completion/complete", {**params, "ref": changed})

    # Session settings (2025)

    async def _set_level(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        session, level = context.session, params.get("level")
        if session is None or level not in _LEVELS:
            raise invalid(f"level is one of {', '.join(_LEVELS)}")
        await session.links.set_log_level(level)
        return {}

    async def _subscribe(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        session = context.session
        if session is None:
            raise invalid("subscriptions need a session")
        uri = checked_uri(params.get("uri"))
        if len(session.record.subscriptions) >= LISTEN_URIS and uri not in session.record.subscriptions:
            raise invalid(f"a session subscribes to at most {LISTEN_URIS} resources; unsubscribe from some")
        backend = await self.uris.locate(context, uri, self._routes(context))
        if backend is None:
            raise not_found(context.era, uri)
        backend_link = await self._choice.of_session(context, backend, session)
        await self._choice.start(backend_link, backend)
        await session.links.subscribe(params, backend_link)
        return {}

    async def _unsubscribe(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        session, uri = context.session, params.get("uri")
        if session is None or not isinstance(uri, str):
            raise invalid("a subscription is named by its uri")
        await session.links.unsubscribe(uri)
        return {}


async def _ping(context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
    return {}
