"""What one caller is offered, and which backend has a name of it."""

from typing import Literal

from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.lists.fresh_lists import FreshLists
from holdfast.gateway.methods.params import invalid
from holdfast.gateway.names.routing import Route, Table, own_name


class OfferedNames:
    """The names of one gateway, for requests."""

    def __init__(self, gateway: Gateway, lists: FreshLists) -> None:
        self._gateway = gateway
        self._lists = lists

    def known(self, context: RequestContext) -> Table:
        """What the caller is offered as far as it is known now, without headers of its own."""
        session = context.session
        own = session.lists.table if session is not None else None
        return own if own is not None else self._gateway.table

    async def table(self, context: RequestContext, *, fresh: bool = False) -> Table:
        """What the caller is offered, once servers that come up for the first time have been waited for."""
        await self._gateway.settled()
        own = self._gateway.caller_lists
        return await own.table(context, fresh=fresh) if own.needed else self.known(context)

    async def route(self, context: RequestContext, kind: Literal["tool", "prompt"], name: str) -> Route:
        """The backend that has a name. Backends that come up for the first time are waited for. A name that no list
        shows is of the backend with its prefix, or of the only one, which may know it all the same; else those that may
        have the name by now are asked for their lists once. Where the name's prefix is of a backend whose lists are not
        known, the name is not unknown: the backend is not available."""
        own = self._gateway.caller_lists
        for turn in range(3):
            if turn == 2:
                if (unlisted := self._unlisted(context, name)) is not None:
                    return unlisted
                if not await self._lists.look_for(context, "tools" if kind == "tool" else "prompts", name):
                    break
            first = turn == 0 and not own.needed
            table = self.known(context) if first else await self.table(context, fresh=turn == 2)
            route = (table.tools if kind == "tool" else table.prompts).get(name)
            if route is not None:
                return route
        unknown = self._lists.why_unknown(context, name)
        raise unknown if unknown is not None else invalid(f"Unknown {kind}: {name[:200]}")

    def _unlisted(self, context: RequestContext, name: str) -> Route | None:
        """The one backend that can have a name which no list shows. Lists that depend on the caller decide what it may
        call, so that such backends have no other names."""
        gateway = self._gateway
        if self._lists.why_unknown(context, name) is not None:
            return None
        for backend in gateway.backends.values():
            alone = len(gateway.backends) == 1
            own = own_name(gateway.settings.naming, backend.name, backend.policy, name, is_alone=alone)
            if own is not None and not backend.is_per_caller:
                return Route(backend.name, own, {})
        return None

    def backend(self, route: Route) -> Backend:
        """The backend that a route leads to."""
        backend = self._gateway.backends.get(route.backend)
        if backend is None:
            raise invalid(f"backend {route.backend!r} is no longer configured")
        return backend
