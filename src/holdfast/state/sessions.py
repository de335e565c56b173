"""`Sessions`, which the author of a server declares once for each kind of state."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any, TypeVar

from holdfast.errors import UsageError
from holdfast.state.calls.transaction import TURN_SECONDS, TURN_TTL
from holdfast.state.frameworks.injection import Injectable
from holdfast.state.frameworks.install import install
from holdfast.state.frameworks.taking import take
from holdfast.state.identity import PRESETS, Chain, FromArgument, IdentitySource, Per
from holdfast.state.model import SessionState
from holdfast.state.storage.store_handle import StoreHandle
from holdfast.state.storage.table import HISTORY, SessionTable
from holdfast.stores.contract import MAX_RECORD_BYTES, Store

S = TypeVar("S", bound=SessionState)
F = TypeVar("F", bound=Callable[..., Any])


class Sessions(Injectable[S]):
    """All sessions of one kind of state: `sessions = Sessions(Basket, store="sqlite:///baskets.db")`."""

    def __init__(
        self,
        kind: type[S],
        store: str | Store = "memory:",
        *,
        per: Per | None = None,
        identity: Sequence[IdentitySource] | None = None,
        idle: float | EllipsisType | None = ...,
        max_age: float | EllipsisType | None = ...,
        quota: int | None = None,
        keys: Sequence[bytes | str] | None = None,
        history: int = HISTORY,
        max_bytes: int = MAX_RECORD_BYTES,
        name: str | None = None,
        noun: str | None = None,
        turn_wait: float = TURN_SECONDS,
        turn_ttl: float = TURN_TTL,
    ) -> None:
        """
        `per` says whose a session is: `"conversation"` (the default) is found by the id that the model passes on, or by
        the connection of 2025, and lasts 30 days, one without use; `"user"` is found by the user that the server
        authenticated, or that runs it on stdio, and lasts until it was not used for 90 days; `"everyone"` is one for
        all callers, and lasts for ever. `identity` are other places where a call may name its session, in order. A
        session ends `idle` seconds after its last use and `max_age` seconds after it began; None means never.

        `store` is a store or its URL, which is opened by the first call; `keys` then seal it, and `max_bytes` limits a
        record. `quota` limits the sessions of one caller, implicit ones included (all anonymous callers together have
        10,000 then), `history` the revisions that can be gone back to. `name` distinguishes kinds of state in one
        store; it is the class's name if left out. `noun` is what a session is called in names of tools and arguments:
        `create_basket`, `basket_id`; for the class ShoppingBasket it is shopping_basket if left out. A call under
        `writes` waits `turn_wait` seconds for its turn; the turn of a process that died is free after `turn_ttl`.
        """
        if not isinstance(kind, type) or not issubclass(kind, SessionState):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{kind!r:.80} is not a class of state", remedy="derive it from holdfast.SessionState")
        if per is not None and identity is not None:
            raise UsageError("per= and identity= both say whose a session is", remedy="leave one of them out")
        if (preset := PRESETS.get(per or "conversation")) is None:
            raise UsageError(f"per={per!r:.60} is unknown", remedy=f"use one of {', '.join(map(repr, PRESETS))}")
        name = name or kind.__name__
        noun = noun if noun is not None else _snake(kind.__name__)
        if not noun.isidentifier():
            raise UsageError(f"noun={noun!r:.60} makes no name of a tool", remedy="use letters, digits and _")
        handle = StoreHandle(store, keys=keys, max_bytes=max_bytes, owner=name)
        table = SessionTable(
            kind,
            name,
            handle,
            idle=preset.idle if idle is ... else idle,
            max_age=preset.max_age if max_age is ... else max_age,
            history=history,
            quota=quota,
            turn_wait=turn_wait,
            turn_ttl=turn_ttl,
        )
        places = preset.identity if identity is None else identity
        named = [replace(each, name=f"{noun}_id") if each == FromArgument() else each for each in places]
        super().__init__(table, Chain(named), noun)

    def writes(self, function: F) -> F:
        """A decorator, below a tool's: fill the parameter of `function` that is annotated with the class of state, and
        write what the call changes in it when the call ends; nothing is written if it fails.

        Calls that write one session take turns, in all processes. An argument that names the session is added.
        """
        return take(function, self, writes=True)

    def reads(self, function: F) -> F:
        """Like `writes`, for a `function` that changes nothing, of a tool, resource or prompt: it waits for no other
        call, and the state that it gets can't be changed."""
        return take(function, self, writes=False)

    def install(
        self,
        server: object,
        *,
        create: Sequence[str] = (),
        tools: bool | Sequence[str] | None = None,
    ) -> None:
        """Put the lifecycle tools, the transactions of calls and the closing of the store on a FastMCP or MCPServer
        `server`.

        `tools=("create", "list", "end")` are those of the five tools to offer; True for all, and False for none. They
        are create_basket, list_baskets, resume_basket, fork_basket and end_basket, by the sessions' noun; `create` are
        the fields of the state that create_… takes. Sessions that callers can't name, as those of users and of
        everyone, have none.
        """
        install(server, self, create, tools)


def _snake(name: str) -> str:
    """A class's name as part of a tool's."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).strip("_").lower()
