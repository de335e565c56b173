"""Methods that a backend answers: tool calls, prompts, resources, completions."""

from collections.abc import Awaitable
from typing import Any, cast

from holdfast.core.eras import Era
from holdfast.core.naming import CALLED_AS
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer, HoldfastError
from holdfast.gateway.calls.backend_calls import BackendCalls
from holdfast.gateway.calls.outgoing_call import BackendRequest
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.calls.results import tool_error
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.methods.offered import OfferedNames
from holdfast.gateway.methods.params import checked_uri, invalid
from holdfast.gateway.names.routing import Route
from holdfast.gateway.names.uris import UriRouting
from holdfast.gateway.sessions import handles


class CallMethods:
    """The calls of one gateway."""

    def __init__(self, gateway: Gateway, names: OfferedNames, calls: BackendCalls, uris: UriRouting) -> None:
        self._gateway = gateway
        self._names = names
        self._calls = calls
        self._uris = uris

    async def call_tool(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """`tools/call`."""
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
            route = await self._names.route(context, "tool", name)
            return await self._send(context, route, "tools/call", _named(params, name, route.name), safe=route.safe)
        except ErrorAnswer:
            raise
        except HoldfastError as error:
            self._gateway.report(error, context.principal)
            context.failed_with(error)
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
            return await self.call_tool(context, {**params, "arguments": others})

    def _send(
        self, context: RequestContext, route: Route, method: str, params: dict[str, Any], *, safe: bool = True
    ) -> Awaitable[dict[str, Any]]:
        return self._calls.send(context, self._names.backend(route), BackendRequest(route, method, params, safe))

    async def get_prompt(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """`prompts/get`."""
        name = params.get("name")
        if not isinstance(name, str):
            raise invalid("prompts/get needs the name of a prompt")
        route = await self._names.route(context, "prompt", name)
        return await self._send(context, route, "prompts/get", {**params, "name": route.name})

    async def read_resource(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """`resources/read`."""
        uri = checked_uri(params.get("uri"))
        return await self._uris.read(context, uri, params, self._names.known(context))

    async def complete(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """`completion/complete`."""
        ref = params.get("ref")
        if not isinstance(ref, dict):
            raise invalid("completion/complete needs a ref")
        known = cast("dict[str, Any]", ref)
        if known.get("type") == "ref/prompt":
            route = await self._names.route(context, "prompt", str(known.get("name")))
            changed = {**known, "name": route.name}
        else:
            uri, changed = checked_uri(known.get("uri")), known
            backend = await self._uris.find(context, uri, self._names.known(context))
            if backend is None:
                answered = await self._uris.ask(context, uri, "completion/complete", params)
                if answered is None:
                    raise invalid("no resource or template of this URI can be completed")
                return answered[1]
            route = Route(backend.name, uri, {}, True)
        return await self._send(context, route, "completion/complete", {**params, "ref": changed})


def _named(params: dict[str, Any], called_as: str, own: str) -> dict[str, Any]:
    """A call under the server's own name for the tool, and with the one that the caller knows: so that what the server
    advises can be called. Of several gateways the first one's counts."""
    if called_as == own:
        return params
    meta = members(params.get("_meta"))
    return {**params, "name": own, "_meta": {CALLED_AS: called_as, **meta}}
