"""What a 2025 client sets for its session: the log level, and the resources that it subscribes to."""

from typing import Any

from holdfast.gateway.backends.call_logs import LEVELS
from holdfast.gateway.backends.links.subscriptions import LISTEN_URIS
from holdfast.gateway.calls.link_choice import LinkChoice
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.methods.offered import OfferedNames
from holdfast.gateway.methods.params import checked_uri, invalid
from holdfast.gateway.names.uris import UriRouting, not_found


class SessionSettings:
    """The settings of the sessions of one gateway."""

    def __init__(self, choice: LinkChoice, names: OfferedNames, uris: UriRouting) -> None:
        self._choice = choice
        self._names = names
        self._uris = uris

    async def set_level(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """`logging/setLevel`."""
        session, level = context.session, params.get("level")
        if session is None or level not in LEVELS:
            raise invalid(f"level is one of {', '.join(LEVELS)}")
        await session.links.set_log_level(level)
        return {}

    async def subscribe(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """`resources/subscribe`."""
        session = context.session
        if session is None:
            raise invalid("subscriptions need a session")
        uri = checked_uri(params.get("uri"))
        if len(session.record.subscriptions) >= LISTEN_URIS and uri not in session.record.subscriptions:
            raise invalid(f"a session subscribes to at most {LISTEN_URIS} resources; unsubscribe from some")
        backend = await self._uris.locate(context, uri, self._names.known(context))
        if backend is None:
            raise not_found(context.era, uri)
        followed = await session.links.follow(uri, backend)
        if followed is False:
            raise not_found(context.era, uri)
        if followed:
            return {}
        backend_link = await self._choice.for_session(context, backend, session)
        await self._choice.start(backend_link, backend)
        await session.links.subscribe(params, backend_link)
        return {}

    async def unsubscribe(self, context: RequestContext, params: dict[str, Any]) -> dict[str, Any]:
        """`resources/unsubscribe`."""
        session, uri = context.session, params.get("uri")
        if session is None or not isinstance(uri, str):
            raise invalid("a subscription is named by its uri")
        await session.links.unsubscribe(uri)
        return {}
