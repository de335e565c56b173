"""`async with holdfast.run():` and which run a call belongs to. Children inherit it; the root releases it.

It owns the context variable of runs. One that is set in an async generator leaks into the code that steps the
generator, so a run that was entered in a generator is also found by the generator's frame.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from contextvars import ContextVar
from inspect import CO_ASYNC_GENERATOR, currentframe
from types import CodeType, FrameType, TracebackType

from holdfast.client.callbacks import Callbacks, check_plain
from holdfast.client.declaration import MemoryFactory, ServerDeclaration
from holdfast.client.runs.handlers import Handlers, OnReplaced
from holdfast.client.runs.run import Run
from holdfast.core.models import ANONYMOUS, Principal, RunId, check_name, check_seconds
from holdfast.errors import UsageError
from holdfast.events import Sink
from holdfast.stores import MemoryStore, Store, open_store

log = logging.getLogger("holdfast.client")


class Scope:
    """One `async with run():`, and the run that it opened or joined."""

    __slots__ = ("callbacks", "code", "nested", "open", "outer", "previous", "run", "task", "warned")

    def __init__(self, run: Run, outer: "Scope | None", nested: Callbacks | None, code: CodeType | None) -> None:
        joined = outer is not None and outer.run is run
        above = outer.callbacks if outer is not None and joined else run.callbacks
        self.run = run
        self.outer = outer
        """The scope that this one was entered in."""
        self.previous = _current.get()
        """The context variable's value before: in an interleaved generator, another's."""
        self.nested = joined and (nested is not None or (outer is not None and outer.nested))
        """Do callbacks of a nested run hold in here?"""
        self.callbacks = nested.over(above) if joined and nested is not None else above
        self.code = code
        """Of the async generator that entered it."""
        self.task = asyncio.current_task()
        self.open = True
        self.warned: set[int] = set()
        """Links, by id, whose servers can't learn of the callbacks that are new in here."""

    def within(self, other: "Scope") -> bool:
        scope: Scope | None = self
        while scope is not None and scope is not other:
            scope = scope.outer
        return scope is other


_current: ContextVar[Scope | None] = ContextVar("holdfast_run", default=None)
_generators: dict[int, Scope] = {}
"""Runs that were entered in an async generator, by the id of its frame, which stays the same while it is suspended."""
_warned: set[tuple[CodeType, int]] = set()


def current_scope() -> Scope | None:
    """The scope that the caller is in, closed ones included."""
    scope = _current.get()
    return _by_frame(scope) if _generators else scope


def current_run() -> Run | None:
    """The run that this task belongs to; a closed one counts as none, and so does one of another event loop."""
    scope = current_scope()
    return scope.run if scope is not None and not scope.run.closed and scope.run.here else None


def _by_frame(scope: Scope | None) -> Scope | None:
    """The innermost generator on the stack that entered a run decides. The code that steps a generator does not call in
    the generator's run: it may work for another user."""
    frame = currentframe()
    while frame is not None:
        found = _generators.get(id(frame))
        if found is not None and found.code is frame.f_code and found.run.here:
            return scope if scope is not None and scope.within(found) else found
        frame = frame.f_back
    while scope is not None and _leaked(scope):
        scope = scope.previous
    return scope


def _leaked(scope: Scope | None) -> bool:
    """Was it entered in a generator that this task has stepped, but is not in now?"""
    if scope is None or scope.code is None or scope.task is not asyncio.current_task():
        return False
    frame = currentframe()
    while frame is not None:
        found = _generators.get(id(frame))
        if found is not None and found.within(scope):
            return False
        frame = frame.f_back
    return True


def _entering_generator() -> FrameType | None:
    """The async generator whose body enters the run. One behind `@asynccontextmanager` is meant to leave something
    behind, so its caller counts in its place; the same holds for `AsyncExitStack`."""
    here = currentframe()
    frame = here.f_back.f_back if here is not None and here.f_back is not None else None  # past `run.__aenter__`
    while frame is not None:
        above = frame.f_back
        generator = bool(frame.f_code.co_flags & CO_ASYNC_GENERATOR)
        managed = generator and above is not None and above.f_code.co_filename == contextlib.__file__
        if frame.f_code.co_filename != contextlib.__file__ and not managed:
            return frame if generator else None
        frame = above
    return None


def _warn(frame: FrameType) -> None:
    place = (frame.f_code, frame.f_lineno)
    if place not in _warned:
        _warned.add(place)
        log.warning(
            "a run was entered in the async generator %s (%s:%d): tasks that it starts, and the code that steps it, "
            "may find another run or none; enter the run outside and pass it in, or call through "
            "`server = run.bind(server)`",
            frame.f_code.co_qualname,
            frame.f_code.co_filename,
            frame.f_lineno,
        )


class run:  # noqa: N801 - it reads as a verb: `async with holdfast.run():`
    """The scope of an agent's work: calls in it share one session per server, which end with it.

    Nested in another it joins that one, and its callbacks and sinks hold while it is open. With an id, a memory or a
    principal of its own it is a run of its own, for the outer one's principal unless it names one."""

    def __init__(
        self,
        id: str | None = None,
        *,
        store: Store | str | None = None,
        memory: MemoryFactory | None = None,
        principal: str | None = None,
        callbacks: Callbacks | None = None,
        on_replaced: OnReplaced | None = None,
        on_event: Sink | None = None,
        eager: Iterable[ServerDeclaration] = (),
        idle: float | None = None,
        max_age: float | None = None,
    ) -> None:
        if id is not None:
            check_name(id, "run id")
        for span, value in (("idle", idle), ("max_age", max_age)):
            if value is not None:
                check_seconds(value, f"run: {span}")
                if store is None:
                    raise UsageError(f"{span}= is about durable runs", remedy="give store= as well, or leave it out")
        if store is not None and id is None:
            raise UsageError(
                "a durable run needs an id to be continued by", remedy="run('conversation-7', store=store)"
            )
        if id is not None and store is None and memory is None:
            raise UsageError(
                f"run({id!r:.80}) names an id, but no store to keep it in: it could not be continued",
                remedy="give store= (a store, or a URL such as 'sqlite:///runs.db') or memory=, or leave out the id",
            )
        if not (principal is None or isinstance(principal, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"run(principal=…) is a {type(principal).__name__}", remedy="give the caller's name as a str"
            )
        if not (callbacks is None or isinstance(callbacks, Callbacks)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"run(callbacks=…) is a {type(callbacks).__name__}",
                remedy="give Callbacks(elicit=…, sample=…, roots=…)",
            )
        if on_event is not None:
            check_plain(on_event, "run: on_event=", "event")
        if on_replaced is not None:
            check_plain(on_replaced, "run: on_replaced=", "replaced")
        eager = tuple(eager)
        if not all(isinstance(server, ServerDeclaration) for server in eager):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("run(eager=…) has what is not a Server", remedy="give eager=[server, …]")
        self._id = id
        self._store = store
        self._opened = open_store(store) if isinstance(store, str) else store
        if isinstance(store, str) and isinstance(self._opened, MemoryStore):
            raise UsageError(
                "run(store='memory:') would be forgotten when the run ends",
                remedy="give a URL that lasts, or open the store yourself: `async with open_store('memory:') …`",
            )
        self._memory = memory
        self._principal = principal
        self._handlers = Handlers(callbacks or Callbacks(), on_replaced, on_event)
        self._nested = callbacks
        self._eager = eager
        self._idle = idle
        self._max_age = max_age
        self._scope: Scope | None = None
        self._frame: int | None = None
        self._covered: Scope | None = None
        self._root = False

    async def __aenter__(self) -> Run:
        if self._scope is not None:
            raise UsageError("this run() was entered already", remedy="make a new one for each `async with`")
        generator, scope = _entering_generator(), current_scope()
        if generator is not None and _leaked(scope):
            scope = None  # another generator's run
        outer = scope.run if scope is not None and not scope.run.closed and scope.run.here else None
        joined = outer is not None and self._joins(outer)
        if joined and outer is not None:
            run = outer
            run.handlers.add(self._handlers)
        else:
            run = self._make(outer)
            await run.open()
            self._root = True
            if generator is not None:
                _warn(generator)
        self._scope = Scope(run, scope, self._nested, generator.f_code if generator is not None else None)
        if generator is not None:
            self._frame = id(generator)
            self._covered = _generators.get(self._frame)
            _generators[self._frame] = self._scope
        _current.set(self._scope)
        del generator  # its frame holds us
        try:
            links = await asyncio.gather(*(run.link(server) for server in self._eager))
            await asyncio.gather(*(link.open() for link in links))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return run

    def _make(self, outer: Run | None) -> Run:
        principal = self._principal or (outer.principal if outer is not None else ANONYMOUS)
        return Run(
            RunId(self._id) if self._id is not None else None,
            self._opened,
            self._memory,
            Principal(principal),
            self._handlers,
            self._idle,
            self._max_age,
            named=(self._id, self._store),
        )

    def _joins(self, outer: Run) -> bool:
        if self._principal not in (None, outer.principal):
            return False
        return outer.is_same(self._id, self._store, self._memory)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        scope = self._scope
        if scope is None or not scope.open:
            return
        scope.open = False
        if self._frame is not None and _generators.pop(self._frame, None) and self._covered is not None:
            _generators[self._frame] = self._covered
        if _current.get() is scope:  # else: another context, or a generator that was entered after this one
            before = scope.previous
            while before is not None and not before.open and before.task is scope.task:
                before = before.previous
            _current.set(before)
        if not self._root:
            scope.run.handlers.remove(self._handlers)
            return  # the root releases
        releasing = asyncio.get_running_loop().create_task(scope.run.release(), name=f"release {scope.run.id}")
        cancelled: asyncio.CancelledError | None = None
        while not releasing.done():
            try:
                await asyncio.shield(releasing)
            except asyncio.CancelledError as error:
                # A timeout scope says it again at every await. What we opened is released first, in bounded time.
                cancelled = error
        if cancelled is not None:
            raise cancelled
