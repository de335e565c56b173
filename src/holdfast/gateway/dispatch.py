"""What a client may ask, answered: lists from the table, calls over the right link, one backend request a call.

It owns the choice of a link, the way of names and headers to a backend, and the words of an error. It refuses to know
how a request came in: HTTP of either era and stdio ask the same.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

from holdfast.core.disclosure import CALL_AGAIN
from holdfast.core.eras import LOG_LEVEL, METHOD_NOT_FOUND, Era, result_in
from holdfast.core.exact import is_unicode, plain
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.core.values import members
from holdfast.errors import (
    CircuitOpen,
    ConnectFailed,
    ConnectionLost,
    ErrorAnswer,
    HoldfastError,
    LimitReached,
    NoBackend,
    RunsElsewhere,
    SessionReplaced,
    StartTimeout,
    StoreDown,
    Unavailable,
)
from holdfast.gateway.backends.backend import LISTS, Backend
from holdfast.gateway.backends.link import BackendLink
from holdfast.gateway.backends.passed_headers import HasHeaders
from holdfast.gateway.backends.routing import BadCursor, Route, Routes, Table, page
from holdfast.gateway.backends.subscriptions import LISTEN_URIS
from holdfast.gateway.results import OWN_SESSION, tool_error, with_notice, with_refusal
from holdfast.gateway.sessions import handles
from holdfast.gateway.sessions.session import Client, ReplyChannel, Session
from holdfast.links.calls.inbound import CallHandlers, RawProgress
from holdfast.links.link import Link
from holdfast.links.wires.base import Loss

if TYPE_CHECKING:
    from holdfast.gateway.gateway import Gateway

log = logging.getLogger("holdfast.gateway")

INVALID_PARAMS = -32602
TRACE = ("traceparent", "tracestate", "baggage")
LONGEST_URI = 8192  # characters: as much as web servers take
LISTEN_SECONDS = 1.0  # that a link's first call waits for the server's own stream, on which it may be asked something
ROUNDS = 10  # of input that a 2026 backend may ask of a 2025 client for one call


@dataclass(slots=True)
class RequestContext:
    """Who asks, in which session, and how to reach them meanwhile."""

    principal: Principal
    era: Era
    session: Session | None = None
    client: Client = field(default_factory=Client)
    headers: HasHeaders | None = None
    """Of the request, by their names in lower case."""
    reply_channel: ReplyChannel | None = None
    reporting: tuple[Link, Loss] | None = None
    """A loss that the answer tells of."""

    def reported(self) -> None:
        """The answer was written to a client that was still there."""
        if self.reporting is not None:
            link, loss = self.reporting
            link.loss_reported(loss)

    @property
    def is_anonymous(self) -> bool:
        return self.principal == ANONYMOUS


def invalid(what: str) -> ErrorAnswer:
    return ErrorAnswer(what, message=what, code=INVALID_PARAMS)


class Methods:
    """The methods of one gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._table: dict[str, Any] = {
            "ping": self._ping,
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
        """The result, or `ErrorAnswer`."""
        handler = self._table.get(method)
        if handler is None or (context.era is Era.Y2026 and method in _ONLY_2025):
            raise ErrorAnswer(f"no method {method!r:.80}", message="Method not found", code=METHOD_NOT_FOUND)
        calls = self._gateway.calls
        task = calls.begin()
        try:
            result: dict[str, Any] = await handler(context, params)
        except ErrorAnswer:
            raise
        except HoldfastError as error:
            self._gateway.report(error)
            raise
        except asyncio.CancelledError:
            if not calls.was_cut():
                raise
            raise Unavailable(f"{method}: the gateway went down", remedy="try again in a while") from None
        finally:
            calls.end(task)
        return result_in(context.era, method, result) if context.era is Era.Y2026 else result

    # Lists

    async def _ping(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _list(
        self, context: RequestContext, routes: Routes, key: str, params: dict[str, Any], tools: bool = False
    ) -> dict[str, Any]:
        show = None
        extra: list[Mapping[str, Any]] = []
        if tools and context.era is Era.Y2026 and self._gateway.settings.sessions.handles:
            show = functools.partial(self._with_handle, routes)
            extra = handles.tools(self._gateway.settings.sessions) if params.get("cursor") is None else []
        try:
            items, following = page(routes, params.get("cursor"), show=show)
        except BadCursor as error:
            raise invalid(str(error)) from None
        result: dict[str, Any] = {key: [*extra, *items]}
        if following is not None:
            result["nextCursor"] = following
        return result

    def _with_handle(self, routes: Routes, item: Mapping[str, Any]) -> Mapping[str, Any]:
        route = routes.get(str(item["name"]))
        keeps = route is not None and self._gateway.backends[route.backend].keeps_sessions
        return handles.with_handle(item) if keeps else item

    async def _list_tools(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        return self._list(context, (await self._table_of(context)).tools, "tools", params, tools=True)

    async def _list_prompts(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        return self._list(context, (await self._table_of(context)).prompts, "prompts", params)

    async def _list_resources(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        return self._list(context, (await self._table_of(context)).resources, "resources", params)

    async def _list_templates(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        return self._list(context, (await self._table_of(context)).templates, "resourceTemplates", params)

    async def _table_of(self, context: RequestContext) -> Table:
        """What the caller is offered, once servers that come up for the first time have been waited for."""
        await self._gateway.settled()
        own = self._gateway.caller_lists
        return await own.table(context) if own.needed else self._routes(context)

    def _routes(self, context: RequestContext) -> Table:
        session = context.session
        return session.table if session is not None and session.table is not None else self._gateway.table

    # Calls

    async def _call_tool(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str):
            raise invalid("tools/call needs the name of a tool")
        arguments = params.get("arguments")
        if arguments is not None and not isinstance(arguments, dict):
            raise invalid("the arguments of a tool are an object")
        settings = self._gateway.settings.sessions
        if context.era is Era.Y2026 and settings.handles:
            if name in handles.NAMES:
                return await handles.call(
                    self._gateway.sessions, context, name, cast("dict[str, Any]", arguments or {})
                )
            if isinstance(arguments, dict) and handles.ARGUMENT in arguments:
                known = dict(cast("dict[str, Any]", arguments))
                handle = known.pop(handles.ARGUMENT)
                session = await handles.find(self._gateway.sessions, context.principal, handle)
                if session is None:
                    return handles.unknown(settings)
                context.session, params = session, {**params, "arguments": known}
                with self._gateway.sessions.calling(session):
                    return await self._call_named(context, name, params)
        return await self._call_named(context, name, params)

    async def _call_named(self, context: RequestContext, name: str, params: dict[str, Any]) -> dict[str, Any]:
        route = await self._route(context, "tool", name)
        try:
            return await self._send_by_route(context, route, "tools/call", {**params, "name": route.name}, route.safe)
        except ErrorAnswer:
            raise
        except HoldfastError as error:
            self._gateway.report(error)
            return tool_error(error)

    async def _route(self, context: RequestContext, kind: Literal["tool", "prompt"], name: str) -> Route:
        """Who has a name; a backend that is still coming up for the first time is waited for."""
        own = self._gateway.caller_lists
        for turn in range(2):
            table = self._routes(context) if turn == 0 and not own.needed else await self._table_of(context)
            route = (table.tools if kind == "tool" else table.prompts).get(name)
            if route is not None:
                return route
            if own.needed:
                break
        raise invalid(f"Unknown {kind}: {name[:200]}")

    async def _get_prompt(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str):
            raise invalid("prompts/get needs the name of a prompt")
        route = await self._route(context, "prompt", name)
        return await self._send_by_route(context, route, "prompts/get", {**params, "name": route.name}, True)

    async def _read_resource(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        route = await self._route_of_uri(context, params.get("uri"))
        return await self._send_by_route(context, route, "resources/read", params, True)

    async def _route_of_uri(self, context: RequestContext, uri: object) -> Route:
        if not isinstance(uri, str) or len(uri) > LONGEST_URI:
            raise invalid(f"a resource is named by its uri, of at most {LONGEST_URI} characters")
        if not is_unicode(uri):
            raise invalid("uri has a lone surrogate, half a character, which no URI may have")
        backend = self._routes(context).backend_of_uri(uri)
        if backend is None:
            backend = (await self._table_of(context)).backend_of_uri(uri)
        if backend is None:
            code = INVALID_PARAMS if context.era is Era.Y2026 else -32002
            raise ErrorAnswer(
                f"no backend has {uri[:200]!r}", message="Resource not found", code=code, data={"uri": uri}
            )
        return Route(backend, uri, {}, True)

    async def _complete(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        ref = params.get("ref")
        if not isinstance(ref, dict):
            raise invalid("completion/complete needs a ref")
        known = cast("dict[str, Any]", ref)
        own = self._gateway.caller_lists
        table = await own.table(context) if own.needed else self._routes(context)
        if known.get("type") == "ref/prompt":
            route = table.prompts.get(str(known.get("name")))
            changed = {**known, "name": route.name} if route is not None else known
        else:
            uri = str(known.get("uri"))
            route = table.templates.get(uri)
            backend = route.backend if route is not None else table.backend_of_uri(uri)
            route, changed = (Route(backend, uri, {}, True) if backend is not None else None), known
        if route is None:
            raise invalid("there is nothing like that to complete")
        return await self._send_by_route(context, route, "completion/complete", {**params, "ref": changed}, True)

    # Session settings (2025)

    async def _set_level(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        session, level = context.session, params.get("level")
        if session is None or level not in _LEVELS:
            raise invalid(f"level is one of {', '.join(_LEVELS)}")
        await session.set_level(level)
        told: list[Awaitable[Any]] = []
        for backend_link in session.links.values():
            backend_link.link.log_level = level
            handshake = backend_link.link.handshake
            if handshake is not None and handshake.era is Era.Y2025 and "logging" in handshake.capabilities:
                told.append(backend_link.link.request("logging/setLevel", {"level": level}, timeout=10.0))
        for failed in await asyncio.gather(*told, return_exceptions=True):
            if isinstance(failed, HoldfastError):  # its next session is told anyway
                log.info("a log level was not set: %s", failed.what)
        return {}

    async def _subscribe(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        session = context.session
        if session is None:
            raise invalid("subscriptions need a session")
        route = await self._route_of_uri(context, params.get("uri"))
        if len(session.subscriptions) >= LISTEN_URIS and route.name not in session.subscriptions:
            raise invalid(f"a session subscribes to at most {LISTEN_URIS} resources; unsubscribe from some")
        backend_link = await self._backend_link(context, self._gateway.backends[route.backend], session)
        await self._started(backend_link, self._gateway.backends[route.backend])
        await session.subscribed(route.name, route.backend)
        if backend_link.link.era is Era.Y2025:
            await backend_link.link.request("resources/subscribe", {"uri": route.name}, timeout=30.0)
            backend_link.link.listen()
        else:
            await session.watch(route.backend, backend_link.link, route.name)
        return {}

    async def _unsubscribe(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        session, uri = context.session, params.get("uri")
        if session is None or not isinstance(uri, str):
            raise invalid("a subscription is named by its uri")
        backend = session.subscriptions.get(uri)
        await session.subscribed(uri, None)
        subscriptions = session.watches.get(backend) if isinstance(backend, str) else None
        if subscriptions is not None and uri in subscriptions:
            subscriptions.remove([uri])
        backend_link = session.links.get(backend) if isinstance(backend, str) else None
        if backend_link is not None and backend_link.link.era is Era.Y2025:
            await backend_link.link.request("resources/unsubscribe", {"uri": uri}, timeout=30.0)
        return {}

    # The way to a backend

    async def _send_by_route(
        self, context: RequestContext, route: Route, method: str, params: dict[str, Any], safe: bool
    ) -> dict[str, Any]:
        """One request to one backend, over the link that this caller's calls belong to."""
        backend = self._gateway.backends.get(route.backend)
        if backend is None:
            raise invalid(f"backend {route.backend!r} is no longer configured")
        session = context.session
        reuse = backend.policy.reuse
        mine = session is not None and (reuse == "session" or (reuse == "principal" and context.is_anonymous))
        backend_link = session.links.get(backend.name) if session is not None and mine else None
        if backend_link is not None and backend_link.is_up:
            return await self._send(context, backend, backend_link, route, method, params, safe)
        if mine and session is not None:
            backend_link = await self._backend_link(context, backend, session)
        elif reuse == "principal" and not context.is_anonymous:
            backend_link = backend.of_principal(
                context.principal, self._gateway.settings.sessions.idle, backend.passed(context.headers)
            )
        elif reuse == "shared" or await self._keeps_nothing(backend):
            backend_link = backend.common()
        elif context.era is Era.Y2026 and reuse != "call":
            backend_link = await self._stateless(backend)
        if backend_link is not None:
            await self._started(backend_link, backend)
            return await self._send(context, backend, backend_link, route, method, params, safe)
        return await self._send_in_new_session(context, backend, route, method, params, safe)

    async def _backend_link(self, context: RequestContext, backend: Backend, session: Session) -> BackendLink:
        """The session's own link."""
        if backend.name not in session.links:
            await backend.spare_comes()
        return session.backend_link(backend, backend.passed(context.headers))

    async def link_for_lists(
        self, context: RequestContext, backend: Backend, passed: Mapping[str, str]
    ) -> tuple[BackendLink, bool]:
        """The link over which a caller's own lists are fetched; True if it is for that alone."""
        session, reuse = context.session, backend.policy.reuse
        if session is not None and (reuse == "session" or (reuse == "principal" and context.is_anonymous)):
            return await self._backend_link(context, backend, session), False
        if reuse == "principal" and not context.is_anonymous:
            return backend.of_principal(context.principal, self._gateway.settings.sessions.idle, passed), False
        return backend.new(principal=context.principal, caller=context.principal, passed=passed), True

    async def _keeps_nothing(self, backend: Backend) -> bool:
        """May calls of different callers meet there? Only if the backend remembers nothing of them."""
        if backend.policy.reuse == "call" or backend.is_per_caller or (backend.is_child and backend.catalogue is None):
            return False
        if backend.keeps_sessions and backend.catalogue is not None:
            return False
        common = backend.common()
        await self._started(common, backend)
        if backend.catalogue is None or (common.link.keeps_state and backend.policy.stateful):
            await backend.refresh(common.link)  # it was not known, or offers more than when it was looked at
        return not backend.keeps_sessions

    async def _stateless(self, backend: Backend) -> BackendLink | None:
        try:
            return await backend.stateless()
        except Unavailable as error:
            raise backend.unavailable(error) from error

    async def _started(self, backend_link: BackendLink, backend: Backend) -> None:
        if not backend_link.is_up:
            try:
                await backend_link.start()
            except (RunsElsewhere, NoBackend, StoreDown):
                raise
            except Unavailable as error:
                raise backend.unavailable(error) from error
            await backend_link.link.wait_listening(LISTEN_SECONDS)

    async def _send_in_new_session(
        self, context: RequestContext, backend: Backend, route: Route, method: str, params: dict[str, Any], safe: bool
    ) -> dict[str, Any]:
        """A session for this one call. If the backend would have kept something, the result says that it is gone."""
        # Over HTTP, a 2026 client comes here only where the backend was found to offer 2025 alone.
        may_be_2026 = backend.is_child or backend.is_per_caller or backend.policy.reuse == "call"
        wanted = context.era is Era.Y2025 or not may_be_2026
        backend_link = backend.new(
            principal=context.principal,
            caller=context.principal,
            passed=backend.passed(context.headers),
            session_wanted=wanted,
            stream=True,
        )
        try:
            await self._started(backend_link, backend)
            lost = backend_link.link.keeps_state or (backend.is_child and backend.keeps_sessions)
            keeps = lost and backend.policy.stateful and backend.policy.reuse != "call"
            result = await self._send(context, backend, backend_link, route, method, params, safe)
        finally:
            await backend_link.close("one call", end=True)
        return with_notice(result, method, OWN_SESSION.format(backend=backend.name)) if keeps else result

    async def _send(
        self,
        context: RequestContext,
        backend: Backend,
        backend_link: BackendLink,
        route: Route,
        method: str,
        params: dict[str, Any],
        safe: bool,
    ) -> dict[str, Any]:
        link, session = backend_link.link, context.session
        backend_link.used = time.monotonic()
        headers = self._headers(context, backend_link, route, params)
        if backend.is_per_caller:
            backend_link.passed = backend.passed(context.headers)
        reply_channel = context.reply_channel
        handlers = None
        on_progress = None
        if reply_channel is not None:
            meta = members(params.get("_meta"))
            handlers = self._handlers(context, backend, reply_channel, meta)
            token = meta.get("progressToken")
            if token is not None:
                on_progress = _progress(reply_channel, token)
        try:
            server = backend.entry.server
            result = await link.request(
                method,
                params,
                safe=safe,
                headers=headers,
                timeout=server.timeout,
                silence=server.silence,
                on_progress=on_progress,
                handlers=handlers,
            )
            if result.get("resultType") == "input_required" and context.era is Era.Y2025:
                result = await self._rounds(context, backend_link, method, params, result, safe, headers)
        except ErrorAnswer as error:
            if (refused := backend_link.took_refusal()) is not None:
                raise refused from error
            raise
        except asyncio.CancelledError:
            if not (self._gateway.calls.was_cut() or (session is not None and session.was_cut())):
                raise
            raise ConnectionLost(
                f"{method}: the call at {backend.name!r} was cut when its session or the gateway ended",
                server=backend.name,
                phase="call",
            ) from None
        except (ConnectFailed, StartTimeout, CircuitOpen) as error:
            backend.noted(error, backend_link.session)
            raise backend.unavailable(error) from error
        except SessionReplaced as error:
            error.remedy = CALL_AGAIN
            if not safe and (loss := link.unreported_loss) is not None:
                context.reporting = link, loss
            raise
        if (
            backend_link.refused is not None
            and (refused := backend_link.took_refusal()) is not None
            and result.get("isError") is True
        ):
            result = with_refusal(result, refused)
        if context.era is Era.Y2025 and "resultType" in result:
            return {key: value for key, value in result.items() if key not in _ONLY_2026}
        return result

    async def _rounds(
        self,
        context: RequestContext,
        backend_link: BackendLink,
        method: str,
        params: dict[str, Any],
        result: dict[str, Any],
        safe: bool,
        headers: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        """A 2026 backend asks inside its answer; a 2025 client is asked on the call's stream."""
        session = context.session
        for _ in range(ROUNDS):
            if result.get("resultType") != "input_required":
                return result
            asked = result.get("inputRequests")
            answers: dict[str, Any] = {}
            if isinstance(asked, dict) and asked:
                if session is None:
                    raise ErrorAnswer(
                        "input is needed", message="Input is needed, and nobody can be asked", code=-32603
                    )
                for key, question in cast("dict[str, Any]", asked).items():
                    known = cast("dict[str, Any]", question) if isinstance(question, dict) else {}
                    inner = known.get("params")
                    answers[key] = await session.ask(
                        str(known.get("method")),
                        cast("dict[str, Any]", inner) if isinstance(inner, dict) else None,
                        context.reply_channel,
                    )
            again = {**params, "inputResponses": answers} if answers else dict(params)
            if isinstance(result.get("requestState"), str):
                again["requestState"] = result["requestState"]
            server = backend_link.backend.entry.server
            result = await backend_link.link.request(
                method, again, safe=safe, headers=headers, timeout=server.timeout, silence=server.silence
            )
        raise LimitReached(
            f"{method}: {backend_link.link.name!r} asked for input {ROUNDS} times in a row",
            limit=ROUNDS,
            server=backend_link.link.name,
        )

    def _headers(
        self, context: RequestContext, backend_link: BackendLink, route: Route, params: dict[str, Any]
    ) -> dict[str, str] | None:
        """Trace context, what the operator passes through, and what a 2026 tool wants of its parameters."""
        headers: dict[str, str] | None = None
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
            if tool is not None and (mapped := x_mcp_header_map(tool.get("inputSchema"))):
                headers = {**(headers or {}), **mcp_param_headers(mapped, plain(params.get("arguments") or {}))}
        return headers

    def _handlers(
        self, context: RequestContext, backend: Backend, reply_channel: ReplyChannel, meta: Mapping[str, Any]
    ) -> CallHandlers:
        session, era = context.session, context.era
        # A program's pipe is for all its calls, which may be of several clients.
        keep_up = None if backend.is_child and not reply_channel.is_alone else reply_channel.keep_up
        wants_log = era is Era.Y2025 or LOG_LEVEL in meta

        def heard(method: str, params: Mapping[str, Any] | None) -> None:
            if method in LISTS:  # we list anew first, and then the client may
                session.heard(backend.name, method, params) if session is not None else backend.heard(method, params)
                return
            if method == "notifications/message" and not wants_log:
                return
            reply_channel.say({"jsonrpc": "2.0", "method": method, "params": dict(params or {})})

        if session is None or era is Era.Y2026:
            return CallHandlers(on_notification=heard, keep_up=keep_up)
        return CallHandlers(lambda method, params, _: session.ask(method, params, reply_channel), heard, keep_up)


_ONLY_2025 = frozenset({"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
_ONLY_2026 = frozenset({"resultType", "ttlMs", "cacheScope"})
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def _progress(reply_channel: ReplyChannel, token: Any) -> RawProgress:
    def told(params: Mapping[str, Any]) -> None:
        said = {**params, "progressToken": token}
        reply_channel.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": said})

    return RawProgress(told)
