"""What backends report to the gateway."""

from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.core.models import Principal


class BackendListener(Protocol):
    """The receiver of what all backends of a gateway report."""

    def state_changed(self) -> None:
        """A backend went up or down."""
        ...

    def lists_changed(self) -> None:
        """A backend offers other things now."""
        ...

    def lists_announced(self, kind: str) -> None:
        """A server announced a change of its "tools", "prompts" or "resources", and no difference shows."""
        ...

    def resource_updated(self, uri: str, params: Mapping[str, Any], principal: Principal | None = None) -> None:
        """A server announced a change of a resource, on a link of no session; `principal`: on that caller's link."""
        ...

    def server_replaced(self, backend: str) -> None:
        """A server whose lists depend on the caller may offer other things now."""
        ...
