"""The current request: its scope, and the names by which its caller knows the tools of this server."""

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.core.records import Key
from holdfast.state.calls.transaction import Transaction


class Scope:
    """The values of one request; a nested call gets copies."""

    def __init__(
        self,
        request: object,
        values: dict[object, Any],
        arguments: Mapping[str, Any] | None = None,
        prefix: str = "",
        transaction: Transaction | None = None,
        is_sdk: bool = False,
        outside: Transaction | None = None,
    ) -> None:
        self.request = request
        self.values = values
        self.arguments = arguments
        """The arguments of the current call, including nested calls; None where they are not known."""
        self.prefix = prefix
        """What the names of this server's tools begin with where the caller knows them: a mount's namespace."""
        self.transaction = transaction
        """Of the call under way; nested calls share it."""
        self.is_sdk = is_sdk
        """Whether the server is an MCPServer."""
        self.outside = outside
        """The transaction of which what is written is no part for a while."""

    def nested(self, arguments: Mapping[str, Any] | None = None, prefix: str = "") -> "Scope":
        copied = {scope: copy.deepcopy(value) for scope, value in self.values.items()}
        prefix = prefix or self.prefix  # the innermost mount's prefix is whole
        return Scope(self.request, copied, arguments, prefix, self.transaction, self.is_sdk)


SCOPE: ContextVar[Scope | None] = ContextVar("holdfast_scope", default=None)


def current_transaction() -> Transaction | None:
    """The transaction of the call under way; None once the call is over."""
    scope = SCOPE.get()
    transaction = scope.transaction if scope is not None else None
    return transaction if transaction is not None and transaction.is_open else None


def with_turn(key: Key) -> Transaction | None:
    """The transaction of the call under way, if it has its turn on this name, also while something is written that is
    no part of it."""
    scope = SCOPE.get()
    transaction = (scope.transaction or scope.outside) if scope is not None else None
    return transaction if transaction is not None and transaction.is_open and key in transaction.held else None


@contextmanager
def outside_transaction() -> Generator[None]:
    """What is written inside the block stands, whatever becomes of the call."""
    scope = SCOPE.get()
    if scope is None or scope.transaction is None:
        yield
        return
    token = SCOPE.set(
        Scope(scope.request, scope.values, scope.arguments, scope.prefix, None, scope.is_sdk, scope.transaction)
    )
    try:
        yield
    finally:
        SCOPE.reset(token)


def known_as(*tools: str) -> str:
    """The names of tools as the current caller knows them. A gateway may add another prefix."""
    scope = SCOPE.get()
    prefix = scope.prefix if scope is not None else ""
    return " or ".join(f"{prefix}{tool}" for tool in tools)


ENDS_SO = "(or the tool whose name ends so)"
