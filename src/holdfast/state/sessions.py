"""`Sessions`: what the author of a server declares, once for each kind of state."""

from collections.abc import Sequence
from typing import TypeVar

from holdfast.errors import UsageError
from holdfast.state.frameworks.injection import Injectable
from holdfast.state.frameworks.install import install
from holdfast.state.frameworks.middleware import StateMiddleware
from holdfast.state.identity import DEFAULT, Chain, IdentitySource
from holdfast.state.model import SessionState
from holdfast.state.storage.pointers import DAY
from holdfast.state.storage.store_handle import StoreHandle
from holdfast.state.storage.table import HISTORY, SessionTable
from holdfast.stores.contract import MAX_RECORD_BYTES, Store

S = TypeVar("S", bound=SessionState)


class Sessions(Injectable[S]):
    """All sessions of one kind of state: `sessions = Sessions(Basket, store="sqlite:///baskets.db")`."""

    def __init__(
        self,
        kind: type[S],
        store: str | Store = "memory:",
        *,
        identity: Sequence[IdentitySource] = DEFAULT,
        idle: float | None = DAY,
        max_age: float | None = 30 * DAY,
        quota: int | None = None,
        keys: Sequence[bytes | str] | None = None,
        history: int = HISTORY,
        max_bytes: int = MAX_RECORD_BYTES,
        name: str | None = None,
    ) -> None:
        """
        `store` is a store or its URL, which is opened by the first call; `keys` then seal it, and `max_bytes` limits a
        record. `identity` says where a call may name its session, in order. A session ends `idle` seconds after its
        last use and `max_age` seconds after it began; None means never. `quota` limits the sessions of one
        caller, implicit ones included (all anonymous callers together have 10,000 then), `history` the revisions that
        can be gone back to. `name` distinguishes kinds of state in
        one store; it is the class's name if left out.
        """
        if not isinstance(kind, type) or not issubclass(kind, SessionState):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{kind!r:.80} is not a class of state", remedy="derive it from holdfast.SessionState")
        name = name or kind.__name__
        handle = StoreHandle(store, keys=keys, max_bytes=max_bytes, owner=name)
        table = SessionTable(kind, name, handle, idle=idle, max_age=max_age, history=history, quota=quota)
        super().__init__(table, Chain(identity))

    def install(
        self,
        server: object,
        *,
        noun: str = "session",
        create: Sequence[str] = (),
        save: bool = False,
        tools: bool = True,
    ) -> None:
        """Put the lifecycle tools, the request's scope and the closing of the store on a FastMCP or MCPServer `server`.

        `noun="basket"` names the tools create_basket, list_baskets, resume_basket, fork_basket and end_basket;
        `create` are the fields of the state that create_… takes; `save=True` saves `session.draft` after each call.
        """
        install(server, self, noun, create, save, tools)

    def middleware(self, *, save: bool = True) -> StateMiddleware:
        """For `FastMCP(middleware=[…])` and `MCPServer(middleware=[…])`: loads before a call and, with
        `save`, saves after it."""
        return StateMiddleware(self, save=save)
