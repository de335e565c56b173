"""Methods of extensions and vendors: which server has one, and the search for it where that is not known.

The order: configuration, what servers declare, a single server. Else the servers that declare any extension are asked
in turn, in the file's order: one that answers "Method not found" has executed nothing.
"""

import fnmatch
from collections.abc import Mapping
from typing import Any, cast

from holdfast.core.eras import METHOD_NOT_FOUND
from holdfast.core.methods import is_foreign
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer, Rejected, Unavailable
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.identity import ServerIdentity
from holdfast.gateway.calls.backend_calls import BackendCalls
from holdfast.gateway.calls.outgoing_call import BackendRequest
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.identity import CAPABILITIES, catalogues_of
from holdfast.gateway.names.routing import Route

LONGEST_METHOD = 500  # characters; a longer name belongs to no method


def method_not_found(method: str) -> ErrorAnswer:
    """The error for a method that no server has."""
    return ErrorAnswer(f"no method {method!r:.80}", message="Method not found", code=METHOD_NOT_FOUND)


def claims(identity: ServerIdentity, method: str) -> bool:
    """Does a server declare the extension that a method belongs to? By its name or the last part of it, as
    `x.example/search` for `x.example/search/run` and `search/run`, or by patterns in `methods` of its settings."""
    name = method.removeprefix("notifications/")
    space = name.partition("/")[0]
    for each, settings in _extensions(identity).items():
        if name.startswith(f"{each}/") or each.rpartition("/")[2] == space:
            return True
        patterns = members(settings).get("methods")
        if isinstance(patterns, list) and any(
            isinstance(pattern, str) and fnmatch.fnmatchcase(method, pattern)
            for pattern in cast("list[object]", patterns)[:100]
        ):
            return True
    return False


def _extensions(identity: ServerIdentity) -> Mapping[str, Any]:
    """All that a server declares beyond the protocol."""
    own = identity.capabilities
    known = {name: settings for name, settings in own.items() if name not in (*CAPABILITIES, "tasks")}
    extensions, experimental = members(known.pop("extensions", None)), members(known.pop("experimental", None))
    return {**known, **experimental, **extensions}


class ForeignMethods:
    """The methods of extensions and vendors of one gateway."""

    def __init__(self, gateway: Gateway, calls: BackendCalls) -> None:
        self._gateway = gateway
        self._calls = calls

    async def answer(self, context: RequestContext, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The answer of the server that has the method."""
        if not is_foreign(method) or len(method) > LONGEST_METHOD:
            raise method_not_found(method)
        await self._gateway.settled()
        await self._gateway.caller_lists.learn(context)
        owners = self.owners(context, method)
        if owners:
            return await self._send(context, owners[0], method, params)
        return await self._ask(context, method, params)

    def owners(self, context: RequestContext, method: str) -> list[Backend]:
        """The servers that have a method, as far as is known: those that the configuration names, else those that
        declare it, else the only one."""
        backends = self._gateway.backends
        if named := [each for each in backends.values() if _is_configured(each, method)]:
            return named
        known = catalogues_of(self._gateway, context)
        if declared := [backends[name] for name, catalogue in known if claims(catalogue.identity, method)]:
            return declared
        return list(backends.values()) if len(backends) == 1 else []

    async def _ask(self, context: RequestContext, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask one server after the other, until one has the method; the error of one that can't be asked is raised, for
        it may have it."""
        known = dict(catalogues_of(self._gateway, context))
        unreachable: Unavailable | Rejected | None = None
        for name, backend in tuple(self._gateway.backends.items()):
            catalogue = known.get(name)
            if catalogue is not None and not _extensions(catalogue.identity):
                continue
            try:
                return await self._send(context, backend, method, params)
            except ErrorAnswer as error:
                if error.code != METHOD_NOT_FOUND:
                    raise
            except (Unavailable, Rejected) as error:  # nothing was executed
                unreachable = unreachable or error
        if unreachable is not None:
            raise unreachable
        raise method_not_found(method)

    async def _send(
        self, context: RequestContext, backend: Backend, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        route = Route(backend.name, method, {})
        try:
            return await self._calls.send(context, backend, BackendRequest(route, method, params, safe=False))
        except ErrorAnswer as error:
            if error.code == METHOD_NOT_FOUND:
                error.status = None  # that of the server's own answer; ours follows from the code
            raise


def _is_configured(backend: Backend, method: str) -> bool:
    return any(fnmatch.fnmatchcase(method, pattern) for pattern in backend.policy.methods)
