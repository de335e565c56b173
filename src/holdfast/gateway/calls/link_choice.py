"""Which link to a backend a call goes over: the session's, the principal's, one for all clients, or none of these."""

from collections.abc import Mapping

from holdfast.core.eras import Era
from holdfast.errors import NoBackend, RunsElsewhere, StoreDown, Unavailable
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.links.link import BackendLink
from holdfast.gateway.backends.links.subscriptions import Subscriptions
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.sessions.registry import Sessions
from holdfast.gateway.sessions.session import GatewaySession

LISTEN_SECONDS = (
    1.0  # that a link's first call waits for the server's own stream, on which the server may ask something
)


class LinkChoice:
    """Chooses by the backend's setting `reuse`, the era, and what the backend keeps."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def _is_sessions_own(self, context: RequestContext, backend: Backend) -> bool:
        """Does a call in a session go over a link that the session has for itself?"""
        reuse = backend.policy.reuse
        return context.session is not None and (reuse == "session" or (reuse == "principal" and context.is_anonymous))

    def ready(self, context: RequestContext, backend: Backend) -> BackendLink | None:
        """The session's own link, if it is up: most calls go over it."""
        if context.session is None or not self._is_sessions_own(context, backend):
            return None
        backend_link = context.session.links.get(backend.name)
        return backend_link if backend_link is not None and backend_link.is_up else None

    async def for_call(self, context: RequestContext, backend: Backend) -> BackendLink | None:
        """The link for a call, brought up; None if the call has to have a session of its own."""
        session, reuse = context.session, backend.policy.reuse
        backend_link = None
        if session is not None and self._is_sessions_own(context, backend):
            backend_link = await self.for_session(context, backend, session)
        elif reuse == "principal" and not context.is_anonymous:
            backend_link = self._for_principal(context, backend, backend.passed(context.headers))
        elif reuse == "shared" or await self._keeps_nothing(backend):
            backend_link = backend.links.common()
        elif context.era is Era.Y2026 and reuse != "call":
            backend_link = await self._stateless(backend)
        if backend_link is not None:
            await self.start(backend_link, backend)
        return backend_link

    async def for_lists(
        self, context: RequestContext, backend: Backend, passed: Mapping[str, str]
    ) -> tuple[BackendLink, bool]:
        """The link over which a caller's own lists are fetched; True if it is for that alone."""
        if context.session is not None and self._is_sessions_own(context, backend):
            return await self.for_session(context, backend, context.session), False
        if backend.policy.reuse == "principal" and not context.is_anonymous:
            return self._for_principal(context, backend, passed), False
        return backend.new(principal=context.principal, caller=context.principal, passed=passed), True

    async def for_updates(self, context: RequestContext, backend: Backend) -> tuple[Subscriptions, ...]:
        """The subscriptions of the links over which a caller's resources are followed, the first that agrees. A link of
        a session's own or of a principal may show it other resources than the link for all, and a server that offers
        both eras may announce what 2026 calls change there only."""
        if context.session is not None and self._is_sessions_own(context, backend):
            backend_link = await self.for_session(context, backend, context.session)
            await self.start(backend_link, backend)
            return (context.session.links.subscriptions(backend_link),)
        if backend.policy.reuse == "principal" and not context.is_anonymous:
            backend_link = self._for_principal(context, backend, backend.passed(context.headers))
            return (backend.links.subscriptions(backend_link, context.principal),)
        common = backend.links.subscriptions(backend.links.common())
        if backend.policy.reuse == "session" and backend.era is Era.Y2025 and backend.health.state == "up":
            of_2026 = await backend.links.stateless_subscriptions()
            return (common,) if of_2026 is None else (of_2026, common)
        return (common,)

    async def for_session(self, context: RequestContext, backend: Backend, session: GatewaySession) -> BackendLink:
        """The session's own link."""
        return await session.links.to(backend, backend.passed(context.headers))

    def _for_principal(self, context: RequestContext, backend: Backend, passed: Mapping[str, str]) -> BackendLink:
        return backend.links.for_principal(context.principal, self._sessions.settings.idle, passed)

    async def _keeps_nothing(self, backend: Backend) -> bool:
        """May calls of different callers share a link? Only if the backend remembers nothing of them."""
        if backend.policy.reuse == "call" or backend.is_per_caller or (backend.is_child and backend.catalogue is None):
            return False
        if backend.keeps_sessions and backend.catalogue is not None:
            return False
        common = backend.links.common()
        await self.start(common, backend)
        if backend.catalogue is None or (common.link.keeps_state and backend.policy.stateful):
            await backend.lists.refresh(common.link)  # it was not known, or offers more than when it was looked at
        return not backend.keeps_sessions

    async def _stateless(self, backend: Backend) -> BackendLink | None:
        try:
            return await backend.links.stateless()
        except Unavailable as error:
            raise backend.health.unavailable(error) from error

    async def start(self, backend_link: BackendLink, backend: Backend) -> None:
        """Bring a link up, or raise the error that its callers may see."""
        if backend_link.is_up:
            return
        try:
            await backend_link.start()
        except (RunsElsewhere, NoBackend, StoreDown):
            raise
        except Unavailable as error:
            raise backend.health.unavailable(error) from error
        await backend_link.link.stream.wait_listening(LISTEN_SECONDS)
