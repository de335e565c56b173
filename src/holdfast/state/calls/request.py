"""The current request: its scope, and the names by which its caller knows the tools of this server."""

import copy
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any


class Scope:
    """The values of one request; a nested call gets copies."""

    def __init__(
        self,
        request: object,
        values: dict[object, Any],
        arguments: Mapping[str, Any] | None = None,
        prefix: str = "",
    ) -> None:
        self.request = request
        self.values = values
        self.arguments = arguments
        """The arguments of the current call, including nested calls; None where they are not known."""
        self.prefix = prefix
        """The prefix of this server's tool names as the caller knows them: a mount's namespace."""

    def nested(self, arguments: Mapping[str, Any] | None = None, prefix: str = "") -> "Scope":
        copied = {scope: copy.deepcopy(value) for scope, value in self.values.items()}
        return Scope(self.request, copied, arguments, prefix or self.prefix)  # the innermost mount's prefix is complete


SCOPE: ContextVar[Scope | None] = ContextVar("holdfast_scope", default=None)


def known_as(*tools: str) -> str:
    """The names of tools as the current caller knows them. A gateway may add another prefix."""
    scope = SCOPE.get()
    prefix = scope.prefix if scope is not None else ""
    return " or ".join(f"{prefix}{tool}" for tool in tools)


ENDS_SO = "(or the tool whose name ends so)"
