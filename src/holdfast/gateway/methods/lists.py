"""`tools/list` and the other lists, page by page."""

import functools
from collections.abc import Mapping
from typing import Any

from holdfast.core.eras import Era
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.lists.fresh_lists import FreshLists
from holdfast.gateway.methods.offered import OfferedNames
from holdfast.gateway.methods.params import invalid
from holdfast.gateway.names.routing import BadCursor, Routes, page
from holdfast.gateway.sessions import handles
from holdfast.links.crossing.shapes import tool_for_2025

_KEYS = {"tools": "tools", "prompts": "prompts", "resources": "resources", "templates": "resourceTemplates"}
"""The member of a result that has the items of a list."""


class ListMethods:
    """The lists of one gateway."""

    def __init__(self, gateway: Gateway, names: OfferedNames, lists: FreshLists) -> None:
        self._gateway = gateway
        self._names = names
        self._lists = lists

    async def answer(self, name: str, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """One page of a list."""
        if params.get("cursor") is None:  # a later page goes with the first
            await self._lists.freshen(context, name)
        routes: Routes = getattr(await self._names.table(context, fresh=True), name)
        show = None
        extra: list[Mapping[str, Any]] = []
        if name == "tools" and context.era is Era.Y2026 and self._gateway.settings.sessions.handles:
            show = functools.partial(self._with_handle, routes)
            extra = handles.tools(self._gateway.settings.sessions) if params.get("cursor") is None else []
        elif name == "tools" and context.era is Era.Y2025:
            show = tool_for_2025  # clients refuse a whole list for one schema that 2025 does not have
        try:
            items, following = page(routes, params.get("cursor"), show=show)
        except BadCursor as error:
            raise invalid(str(error)) from None
        result: dict[str, Any] = {**self._lists.members(context, name), _KEYS[name]: [*extra, *items]}
        if following is not None:
            result["nextCursor"] = following
        return result

    def _with_handle(self, routes: Routes, item: Mapping[str, Any]) -> Mapping[str, Any]:
        route = routes.get(str(item["name"]))
        keeps = route is not None and self._gateway.backends[route.backend].keeps_sessions
        return handles.with_handle(item) if keeps else item
