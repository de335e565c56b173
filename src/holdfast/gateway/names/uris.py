"""Which backend a URI belongs to, also one that no list shows; backends are asked for one that none has shown.

The order: lists, configuration, what the session has seen, `ui://` in lists, templates; a single backend has every URI.
Else each backend with resources is asked in turn: those with URIs of the same scheme first, then in the file's order.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.core.eras import METHOD_NOT_FOUND, Era
from holdfast.errors import ErrorAnswer, HoldfastError
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.calls.backend_calls import BackendCalls
from holdfast.gateway.calls.outgoing_call import BackendRequest
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.names.routing import Route, Table

ASK_SECONDS = 30.0  # for each backend that is asked whether it has a URI
ASKED = 16  # URIs of all clients that are asked for at once; more wait
NOT_FOUND = {Era.Y2025: -32002, Era.Y2026: -32602}
"""The error code of a resource that does not exist."""
_CONTENT = {"resources/read": "contents"}


def not_found(era: Era, uri: str) -> ErrorAnswer:
    """The error for a resource that no backend has, with the code of an era."""
    return ErrorAnswer(
        f"no backend has {uri[:200]!r}", message="Resource not found", code=NOT_FOUND[era], data={"uri": uri}
    )


class UriRouting:
    """The URIs of one gateway. `tables`: what a caller is offered, once servers that come up have been waited for."""

    def __init__(
        self, gateway: Gateway, calls: BackendCalls, tables: Callable[[RequestContext], Awaitable[Table]]
    ) -> None:
        self._gateway = gateway
        self._calls = calls
        self._tables = tables
        self._asking = asyncio.Semaphore(ASKED)

    def known(self, context: RequestContext, uri: str, table: Table) -> str | None:
        """The backend of a URI, as far as it is known from a table and from what was seen."""
        backends = self._gateway.backends
        route = table.resources.get(uri) or table.templates.get(uri)
        name = route.backend if route is not None else table.configured_backend(uri)
        if name is None and (seen := self._gateway.seen_by(context).backends(uri)):
            name = next((each for each in backends if each in seen), None)
        return name or table.backend_of_uri(uri)

    async def find(self, context: RequestContext, uri: str, table: Table) -> Backend | None:
        """The backend of a URI, without asking any."""
        backends = self._gateway.backends
        name = self.known(context, uri, table)
        if name is None:
            name = self.known(context, uri, await self._tables(context))
        if name is None and len(backends) == 1:
            name = next(iter(backends))
        return backends.get(name) if name is not None else None

    async def read(self, context: RequestContext, uri: str, params: dict[str, Any], table: Table) -> dict[str, Any]:
        """Read a resource at the backend that has it. What a server of the other era says of one that it does not have
        gets the code of the client's era."""
        backend = await self.find(context, uri, table)
        if backend is None:
            answered = await self.ask(context, uri, "resources/read", params)
            if answered is None:
                raise not_found(context.era, uri)
            return answered[1]
        request = BackendRequest(Route(backend.name, uri, {}, True), "resources/read", params, True)
        try:
            return await self._calls.send(context, backend, request)
        except ErrorAnswer as error:
            if error.code == METHOD_NOT_FOUND:  # it has no resources at all, while the gateway has
                raise not_found(context.era, uri) from error
            code = NOT_FOUND[context.era]
            if error.code in NOT_FOUND.values() and error.code != code and self._is_foreign(context, backend):
                error.code, error.answer = code, {**(error.answer or {}), "code": code}
            raise

    def _is_foreign(self, context: RequestContext, backend: Backend) -> bool:
        """Is this the code of the era that the client does not speak? In 2025, -32602 has another meaning, too."""
        if context.era is Era.Y2026:
            return True
        own = context.session.links.get(backend.name) if context.session is not None else None
        return (own.link.era if own is not None else backend.era) is Era.Y2026

    async def locate(self, context: RequestContext, uri: str, table: Table) -> Backend | None:
        """The backend of a URI, found by reading it if it is not known; None: no backend has it."""
        backend = await self.find(context, uri, table)
        if backend is None:
            answered = await self.ask(context, uri, "resources/read", {"uri": uri})
            backend = answered[0] if answered is not None else None
        return backend

    async def ask(
        self, context: RequestContext, uri: str, method: str, params: Mapping[str, Any]
    ) -> tuple[Backend, dict[str, Any]] | None:
        """Send a request to one backend after the other, until one has an answer. None: no backend has. The error of a
        backend that could not be asked is raised, for it may have the URI."""
        unreachable: HoldfastError | None = None
        async with self._asking:
            for backend in self._in_order(context, uri):
                request = BackendRequest(Route(backend.name, uri, {}, True), method, dict(params), True)
                try:
                    async with asyncio.timeout(ASK_SECONDS):
                        result = await self._calls.send(context, backend, request)
                except ErrorAnswer:
                    continue
                except HoldfastError as error:
                    unreachable = unreachable or error
                    continue
                except TimeoutError:
                    unreachable = unreachable or backend.health.unavailable()
                    continue
                if result.get(_CONTENT.get(method, ""), True):
                    self._gateway.seen_by(context).add((uri,), backend.name)
                    return backend, result
        if unreachable is not None:
            raise unreachable
        return None

    def _in_order(self, context: RequestContext, uri: str) -> list[Backend]:
        session, scheme = context.session, uri.partition(":")[0] + ":"

        def rank(backend: Backend) -> tuple[bool, bool]:
            known = backend.catalogue
            shown = known is not None and (
                any(str(item["uri"]).startswith(scheme) for item in known.resources)
                or any(str(item["uriTemplate"]).startswith(scheme) for item in known.templates)
            )
            would_start = backend.is_child and (session is None or backend.name not in session.links)
            return not shown, would_start

        return sorted((backend for backend in self._gateway.backends.values() if _reads(backend)), key=rank)


def _reads(backend: Backend) -> bool:
    """Does a backend have resources at all, as far as is known?"""
    known = backend.catalogue
    return known is None or "resources" in known.about or "templates" in known.about
