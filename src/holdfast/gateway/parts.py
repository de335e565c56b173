"""The parts of a gateway, as the modules see them that answer for it."""

from collections.abc import Mapping
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.gateway.backends.backend import Backend
from holdfast.gateway.backends.caller_lists import CallerLists
from holdfast.gateway.backends.checks import HealthChecks
from holdfast.gateway.backends.routing import Table
from holdfast.gateway.config.settings import Settings
from holdfast.gateway.drain import CallsInProgress
from holdfast.gateway.sessions.registry import Sessions
from holdfast.stores.contract import Store


class GatewayParts(Protocol):
    """A gateway that runs."""

    @property
    def settings(self) -> Settings: ...
    @property
    def store(self) -> Store: ...
    @property
    def backends(self) -> Mapping[str, Backend]: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def table(self) -> Table: ...
    @property
    def caller_lists(self) -> CallerLists: ...
    @property
    def checks(self) -> HealthChecks: ...
    @property
    def calls(self) -> CallsInProgress: ...
    @property
    def leaving(self) -> bool:
        """Load balancers are to send no more work, and all goes on."""
        ...

    @property
    def draining(self) -> bool:
        """No session and no 2026 call begins any more."""
        ...

    def report(self, error: HoldfastError) -> None: ...
    async def settled(self) -> None: ...
