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
from holdfast.gateway.backends.link import Back
from holdfast.gateway.backends.passed_headers import HasHeaders
from holdfast.gateway.backends.routing import BadCursor, Route, Routes, Table, page
from holdfast.gateway.backends.subscriptions import LISTEN_URIS
from holdfast.gateway.results import OWN_SESSION, tool_error, with_notice, with_refusal
from holdfast.gateway.sessions import handles
from holdfast.gateway.sessions.session import Client, Session, Voice
from holdfast.links.calls.inbound import Ears, PassOn
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
class Asking:
    """Who asks, in which session, and how to reach them meanwhile."""

    principal: Principal
    era: Era
    session: Session | None = None
    client: Client = field(default_factory=Client)
    headers: HasHeaders | None = None
    """Of the request, by their names in lower case."""
    voice: Voice | None = None
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

    async def answer(self, asking: Asking, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result, or `ErrorAnswer`."""
        handler = self._table.get(method)
        if handler is None or (asking.era is Era.Y2026 and method in _ONLY_2025):
            raise ErrorAnswer(f"no method {method!r:.80}", message="Method not found", code=METHOD_NOT_FOUND)
        calls = self._gateway.calls
        task = calls.begin()
        try:
            result: dict[str, Any] = await handler(asking, params)
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
        return result_in(asking.era, method, result) if asking.era is Era.Y2026 else result

    # Lists

    async def _ping(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _list(
        self, asking: Asking, routes: Routes, key: str, params: dict[str, Any], tools: bool = False
    ) -> dict[str, Any]:
        show = None
        extra: list[Mapping[str, Any]] = []
        if tools and asking.era is Era.Y2026 and self._gateway.settings.sessions.handles:
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

    async def _list_tools(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        return self._list(asking, (await self._table_of(asking)).tools, "tools", params, tools=True)

    async def _list_prompts(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        return self._list(asking, (await self._table_of(asking)).prompts, "prompts", params)

    async def _list_resources(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        return self._list(asking, (await self._table_of(asking)).resources, "resources", params)

    async def _list_templates(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        return self._list(asking, (await self._table_of(asking)).templates, "resourceTemplates", params)

    async def _table_of(self, asking: Asking) -> Table:
        """What the caller is offered, once servers that come up for the first time have been waited for."""
        await self._gateway.settled()
        own = self._gateway.caller_lists
        return await own.table(asking) if own.needed else self._routes(asking)

    def _routes(self, asking: Asking) -> Table:
        session = asking.session
        return session.table if session is not None and session.table is not None else self._gateway.table

    # Calls

    async def _call_tool(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str):
            raise invalid("tools/call needs the name of a tool")
        arguments = params.get("arguments")
        if arguments is not None and not isinstance(arguments, dict):
            raise invalid("the arguments of a tool are an object")
        settings = self._gateway.settings.sessions
        if asking.era is Era.Y2026 and settings.handles:
            if name in handles.NAMES:
                return await handles.call(self._gateway.sessions, asking, name, cast("dict[str, Any]", arguments or {}))
            if isinstance(arguments, dict) and handles.ARGUMENT in arguments:
                known = dict(cast("dict[str, Any]", arguments))
                handle = known.pop(handles.ARGUMENT)
                session = await handles.find(self._gateway.sessions, asking.principal, handle)
                if session is None:
                    return handles.unknown(settings)
                asking.session, params = session, {**params, "arguments": known}
                with self._gateway.sessions.calling(session):
                    return await self._call_named(asking, name, params)
        return await self._call_named(asking, name, params)

    async def _call_named(self, asking: Asking, name: str, params: dict[str, Any]) -> dict[str, Any]:
        route = await self._route(asking, "tool", name)
        try:
            return await self._through(asking, route, "tools/call", {**params, "name": route.name}, route.safe)
        except ErrorAnswer:
            raise
        except HoldfastError as error:
            self._gateway.report(error)
            return tool_error(error)

    async def _route(self, asking: Asking, kind: Literal["tool", "prompt"], name: str) -> Route:
        """Who has a name; a backend that is still coming up for the first time is waited for."""
        own = self._gateway.caller_lists
        for turn in range(2):
            table = self._routes(asking) if turn == 0 and not own.needed else await self._table_of(asking)
            route = (table.tools if kind == "tool" else table.prompts).get(name)
            if route is not None:
                return route
            if own.needed:
                break
        raise invalid(f"Unknown {kind}: {name[:200]}")

    async def _get_prompt(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str):
            raise invalid("prompts/get needs the name of a prompt")
        route = await self._route(asking, "prompt", name)
        return await self._through(asking, route, "prompts/get", {**params, "name": route.name}, True)

    async def _read_resource(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        route = await self._route_of_uri(asking, params.get("uri"))
        return await self._through(asking, route, "resources/read", params, True)

    async def _route_of_uri(self, asking: Asking, uri: object) -> Route:
        if not isinstance(uri, str) or len(uri) > LONGEST_URI:
            raise invalid(f"a resource is named by its uri, of at most {LONGEST_URI} characters")
        if not is_unicode(uri):
            raise invalid("uri has a lone surrogate, half a character, which no URI may have")
        backend = self._routes(asking).backend_of_uri(uri)
        if backend is None:
            backend = (await self._table_of(asking)).backend_of_uri(uri)
        if backend is None:
            code = INVALID_PARAMS if asking.era is Era.Y2026 else -32002
            raise ErrorAnswer(
                f"no backend has {uri[:200]!r}", message="Resource not found", code=code, data={"uri": uri}
            )
        return Route(backend, uri, {}, True)

    async def _complete(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        ref = params.get("ref")
        if not isinstance(ref, dict):
            raise invalid("completion/complete needs a ref")
        known = cast("dict[str, Any]", ref)
        own = self._gateway.caller_lists
        table = await own.table(asking) if own.needed else self._routes(asking)
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
        return await self._through(asking, route, "completion/complete", {**params, "ref": changed}, True)

    # Session settings (2025)

    async def _set_level(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        session, level = asking.session, params.get("level")
        if session is None or level not in _LEVELS:
            raise invalid(f"level is one of {', '.join(_LEVELS)}")
        await session.set_level(level)
        told: list[Awaitable[Any]] = []
        for back in session.backs.values():
            back.link.log_level = level
            greeting = back.link.greeting
            if greeting is not None and greeting.era is Era.Y2025 and "logging" in greeting.capabilities:
                told.append(back.link.request("logging/setLevel", {"level": level}, timeout=10.0))
        for failed in await asyncio.gather(*told, return_exceptions=True):
            if isinstance(failed, HoldfastError):  # its next session is told anyway
                log.info("a log level was not set: %s", failed.what)
        return {}

    async def _subscribe(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        session = asking.session
        if session is None:
            raise invalid("subscriptions need a session")
        route = await self._route_of_uri(asking, params.get("uri"))
        if len(session.subscriptions) >= LISTEN_URIS and route.name not in session.subscriptions:
            raise invalid(f"a session subscribes to at most {LISTEN_URIS} resources; unsubscribe from some")
        back = await self._back(asking, self._gateway.backends[route.backend], session)
        await self._started(back, self._gateway.backends[route.backend])
        await session.subscribed(route.name, route.backend)
        if back.link.era is Era.Y2025:
            await back.link.request("resources/subscribe", {"uri": route.name}, timeout=30.0)
            back.link.listen()
        else:
            await session.watch(route.backend, back.link, route.name)
        return {}

    async def _unsubscribe(self, asking: Asking, params: dict[str, Any]) -> dict[str, Any]:
        session, uri = asking.session, params.get("uri")
        if session is None or not isinstance(uri, str):
            raise invalid("a subscription is named by its uri")
        backend = session.subscriptions.get(uri)
        await session.subscribed(uri, None)
        subscriptions = session.watches.get(backend) if isinstance(backend, str) else None
        if subscriptions is not None and uri in subscriptions:
            subscriptions.remove([uri])
        back = session.backs.get(backend) if isinstance(backend, str) else None
        if back is not None and back.link.era is Era.Y2025:
            await back.link.request("resources/unsubscribe", {"uri": uri}, timeout=30.0)
        return {}

    # The way to a backend

    async def _through(
        self, asking: Asking, route: Route, method: str, params: dict[str, Any], safe: bool
    ) -> dict[str, Any]:
        """One request to one backend, over the link that this caller's calls belong to."""
        backend = self._gateway.backends.get(route.backend)
        if backend is None:
            raise invalid(f"backend {route.backend!r} is no longer configured")
        session = asking.session
        reuse = backend.policy.reuse
        mine = session is not None and (reuse == "session" or (reuse == "principal" and asking.is_anonymous))
        back = session.backs.get(backend.name) if session is not None and mine else None
        if back is not None and back.is_up:
            return await self._over(asking, backend, back, route, method, params, safe)
        if mine and session is not None:
            back = await self._back(asking, backend, session)
        elif reuse == "principal" and not asking.is_anonymous:
            back = backend.of_principal(
                asking.principal, self._gateway.settings.sessions.idle, backend.passed(asking.headers)
            )
        elif reuse == "shared" or await self._keeps_nothing(backend):
            back = backend.common()
        elif asking.era is Era.Y2026 and reuse != "call":
            back = await self._stateless(backend)
        if back is not None:
            await self._started(back, backend)
            return await self._over(asking, backend, back, route, method, params, safe)
        return await self._alone(asking, backend, route, method, params, safe)

    async def _back(self, asking: Asking, backend: Backend, session: Session) -> Back:
        """The session's own link."""
        if backend.name not in session.backs:
            await backend.spare_comes()
        return session.back(backend, backend.passed(asking.headers))

    async def link_for_lists(self, asking: Asking, backend: Backend, passed: Mapping[str, str]) -> tuple[Back, bool]:
        """The link over which a caller's own lists are fetched; True if it is for that alone."""
        session, reuse = asking.session, backend.policy.reuse
        if session is not None and (reuse == "session" or (reuse == "principal" and asking.is_anonymous)):
            return await self._back(asking, backend, session), False
        if reuse == "principal" and not asking.is_anonymous:
            return backend.of_principal(asking.principal, self._gateway.settings.sessions.idle, passed), False
        return backend.new(principal=asking.principal, caller=asking.principal, passed=passed), True

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

    async def _stateless(self, backend: Backend) -> Back | None:
        try:
            return await backend.stateless()
        except Unavailable as error:
            raise backend.unavailable(error) from error

    async def _started(self, back: Back, backend: Backend) -> None:
        if not back.is_up:
            try:
                await back.start()
            except (RunsElsewhere, NoBackend, StoreDown):
                raise
            except Unavailable as error:
                raise backend.unavailable(error) from error
            await back.link.wait_listening(LISTEN_SECONDS)

    async def _alone(
        self, asking: Asking, backend: Backend, route: Route, method: str, params: dict[str, Any], safe: bool
    ) -> dict[str, Any]:
        """A session for this one call. If the backend would have kept something, the result says that it is gone."""
        # Over HTTP, a 2026 client comes here only where the backend was found to offer 2025 alone.
        may_be_2026 = backend.is_child or backend.is_per_caller or backend.policy.reuse == "call"
        wanted = asking.era is Era.Y2025 or not may_be_2026
        back = backend.new(
            principal=asking.principal,
            caller=asking.principal,
            passed=backend.passed(asking.headers),
            session_wanted=wanted,
            stream=True,
        )
        try:
            await self._started(back, backend)
            lost = back.link.keeps_state or (backend.is_child and backend.keeps_sessions)
            keeps = lost and backend.policy.stateful and backend.policy.reuse != "call"
            result = await self._over(asking, backend, back, route, method, params, safe)
        finally:
            await back.close("one call", end=True)
        return with_notice(result, method, OWN_SESSION.format(backend=backend.name)) if keeps else result

    async def _over(
        self,
        asking: Asking,
        backend: Backend,
        back: Back,
        route: Route,
        method: str,
        params: dict[str, Any],
        safe: bool,
    ) -> dict[str, Any]:
        link, session = back.link, asking.session
        back.used = time.monotonic()
        headers = self._headers(asking, back, route, params)
        if backend.is_per_caller:
            back.passed = backend.passed(asking.headers)
        voice = asking.voice
        ears = None
        on_progress = None
        if voice is not None:
            meta = members(params.get("_meta"))
            ears = self._ears(asking, backend, voice, meta)
            token = meta.get("progressToken")
            if token is not None:
                on_progress = _progress(voice, token)
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
                ears=ears,
            )
            if result.get("resultType") == "input_required" and asking.era is Era.Y2025:
                result = await self._rounds(asking, back, method, params, result, safe, headers)
        except ErrorAnswer as error:
            if (refused := back.took_refusal()) is not None:
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
            backend.noted(error, back.session)
            raise backend.unavailable(error) from error
        except SessionReplaced as error:
            error.remedy = CALL_AGAIN
            if not safe and (loss := link.unreported_loss) is not None:
                asking.reporting = link, loss
            raise
        if back.refused is not None and (refused := back.took_refusal()) is not None and result.get("isError") is True:
            result = with_refusal(result, refused)
        if asking.era is Era.Y2025 and "resultType" in result:
            return {key: value for key, value in result.items() if key not in _ONLY_2026}
        return result

    async def _rounds(
        self,
        asking: Asking,
        back: Back,
        method: str,
        params: dict[str, Any],
        result: dict[str, Any],
        safe: bool,
        headers: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        """A 2026 backend asks inside its answer; a 2025 client is asked on the call's stream."""
        session = asking.session
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
                        asking.voice,
                    )
            again = {**params, "inputResponses": answers} if answers else dict(params)
            if isinstance(result.get("requestState"), str):
                again["requestState"] = result["requestState"]
            server = back.backend.entry.server
            result = await back.link.request(
                method, again, safe=safe, headers=headers, timeout=server.timeout, silence=server.silence
            )
        raise LimitReached(
            f"{method}: {back.link.name!r} asked for input {ROUNDS} times in a row", limit=ROUNDS, server=back.link.name
        )

    def _headers(self, asking: Asking, back: Back, route: Route, params: dict[str, Any]) -> dict[str, str] | None:
        """Trace context, what the operator passes through, and what a 2026 tool wants of its parameters."""
        headers: dict[str, str] | None = None
        given, backend = asking.headers, back.backend
        if given is not None:
            for name in (*TRACE, *backend.policy.pass_headers):
                value = given.get(name)
                if value is not None:
                    headers = headers or {}
                    headers[name] = value
        if route.params_in_headers and back.link.era is Era.Y2026:
            known = backend.catalogue
            tool = known.tools_by_name.get(route.name) if known is not None else route.item
            if tool is not None and (mapped := x_mcp_header_map(tool.get("inputSchema"))):
                headers = {**(headers or {}), **mcp_param_headers(mapped, plain(params.get("arguments") or {}))}
        return headers

    def _ears(self, asking: Asking, backend: Backend, voice: Voice, meta: Mapping[str, Any]) -> Ears:
        session, era = asking.session, asking.era
        # A program's pipe is for all its calls, which may be of several clients.
        keep_up = None if backend.is_child and not voice.is_alone else voice.keep_up
        wants_log = era is Era.Y2025 or LOG_LEVEL in meta

        def heard(method: str, params: Mapping[str, Any] | None) -> None:
            if method in LISTS:  # we list anew first, and then the client may
                session.heard(backend.name, method, params) if session is not None else backend.heard(method, params)
                return
            if method == "notifications/message" and not wants_log:
                return
            voice.say({"jsonrpc": "2.0", "method": method, "params": dict(params or {})})

        if session is None or era is Era.Y2026:
            return Ears(on_notification=heard, keep_up=keep_up)
        return Ears(lambda method, params, _: session.ask(method, params, voice), heard, keep_up)


_ONLY_2025 = frozenset({"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
_ONLY_2026 = frozenset({"resultType", "ttlMs", "cacheScope"})
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def _progress(voice: Voice, token: Any) -> PassOn:
    def told(params: Mapping[str, Any]) -> None:
        said = {**params, "progressToken": token}
        voice.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": said})

    return PassOn(told)
