"""`async with holdfast.run():` and which run a call belongs to.
Child tasks inherit the run; the outermost scope releases it.

The current run is in a context variable. When set in an async generator, it leaks into the code that steps the
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
from holdfast.client.declaration import MemoryFactory, ServerDeclaration, check_memory
from holdfast.client.runs.handlers import Handlers, OnReplaced
from holdfast.client.runs.run import Run
from holdfast.client.tracebacks import shortened
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
        """The enclosing scope."""
        self.previous = _current.get()
        """The context variable's previous value; in an interleaved generator it may be another one's."""
        self.nested = joined and (nested is not None or (outer is not None and outer.nested))
        """Whether callbacks of a nested run apply in this scope."""
        self.callbacks = nested.over(above) if joined and nested is not None else above
        self.code = code
        """The code of the async generator that entered it."""
        self.task = _task()
        self.open = True
        self.warned: set[int] = set()
        """Ids of links whose servers can't be informed of this scope's new callbacks."""

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
    """The scope of the caller, even if it is closed. Raises `UsageError` where it can't be determined."""
    scope = _current.get()
    return _by_frame(scope) if _generators else scope


def _root(scope: Scope | None) -> Scope | None:
    """The outer scope whose run a generator joined, else the scope itself."""
    while scope is not None and scope.code is not None and scope.outer is not None and scope.outer.run is scope.run:
        scope = scope.outer
    return scope


def _task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None


def inherited_principal(scope: Scope | None) -> Principal | None:
    """The principal of the current task, which keeps that of its run even after the run or in another event loop.
    Runs left by a generator do not count.
    """
    root = _root(scope)
    if scope is None or root is None or root.code is not None or (not scope.open and scope.task is _task()):
        return None
    return root.run.principal


def current_run() -> Run | None:
    """The run of the current task; None if it is closed, belongs to another event loop, or can't be determined."""
    try:
        return run_of_call()
    except UsageError:
        return None


def run_of_call() -> Run | None:
    """The same for a call: raises `UsageError` where the run can't be determined."""
    scope = current_scope()
    return scope.run if scope is not None and not scope.run.closed and scope.run.here else None


def _by_frame(scope: Scope | None) -> Scope | None:
    """Find the scope by the innermost generator on the stack that entered a run.
    Code that steps a generator does not call in the generator's run, because it may work for another user.
    """
    frame = currentframe()
    while frame is not None:
        found = _generators.get(id(frame))
        if found is not None and found.code is frame.f_code and found.run.here:
            return scope if scope is not None and scope.within(found) else found
        frame = frame.f_back
    while scope is not None and _leaked(scope):
        scope = scope.previous
    root = _root(scope)
    # Tasks of the code that steps a generator find its run as the generator's own tasks do, and tasks of interleaved
    # generators find the run that was entered last, which may be another user's. Nothing distinguishes them.
    if root is not None and root.code is not None and root.open and root.task is not _task():
        raise UsageError(
            f"a task found the run {root.run.id}, which was entered in the async generator {root.code.co_qualname}; it "
            "can't be determined whether the task belongs to that run or to the code that steps the generator",
            remedy="call through `server = run.bind(server)`, enter the run outside the generator, or open one with "
            "principal= in the task",
        )
    return scope


def _leaked(scope: Scope | None) -> bool:
    """Whether it was entered in a generator that this task has stepped but is not executing now."""
    if scope is None or scope.code is None or scope.task is not _task():
        return False
    frame = currentframe()
    while frame is not None:
        found = _generators.get(id(frame))
        if found is not None and found.within(scope):
            return False
        frame = frame.f_back
    return True


def _entering_generator() -> FrameType | None:
    """The async generator whose body enters the run.
    A generator behind `@asynccontextmanager` enters the run for its caller, so the caller counts in its place; the same
    holds for `AsyncExitStack`.
    """
    here = currentframe()
    frame = here
    for _ in range(3):  # past `run.__aenter__` and the wrapper of `shortened`
        frame = frame.f_back if frame is not None else None
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
    """The scope of an agent's work: calls in it share one session per server, and the sessions end with it.

    A nested run joins the outer one, and its callbacks and sinks apply while it is open. With an id, a memory or a
    principal it is a separate run, with the outer one's principal unless it gives one."""

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
                    raise UsageError(f"{span}= is for durable runs only", remedy="give store= as well, or leave it out")
        if store is not None and id is None:
            raise UsageError(
                "a durable run needs an id by which it can be continued", remedy="run('conversation-7', store=store)"
            )
        if id is not None and store is None and memory is None:
            raise UsageError(
                f"run({id!r:.80}) has an id, but no store: it could not be continued",
                remedy="give store= (a store, or a URL such as 'sqlite:///runs.db') or memory=, or leave out the id",
            )
        if not (principal is None or isinstance(principal, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"run(principal=…) must be a str, not a {type(principal).__name__}",
                remedy="give the caller's name as a str",
            )
        if principal == "":
            raise UsageError("run(principal='') is empty", remedy="give the caller's name, or leave out principal=")
        if not (callbacks is None or isinstance(callbacks, Callbacks)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"run(callbacks=…) must be Callbacks, not a {type(callbacks).__name__}",
                remedy="give Callbacks(elicit=…, sample=…, roots=…)",
            )
        if memory is not None:
            check_memory(memory, "run: memory=")
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

    @shortened
    async def __aenter__(self) -> Run:
        if self._scope is not None:
            raise UsageError("this run() was entered already", remedy="make a new one for each `async with`")
        generator = _entering_generator()
        try:
            scope = current_scope()
        except UsageError:
            if self._principal is None:
                raise
            scope = None
        if generator is not None and _leaked(scope):
            scope = None  # another generator's run
        outer = scope.run if scope is not None and not scope.run.closed and scope.run.here else None
        joined = outer is not None and self._joins(outer)
        if joined and outer is not None:
            run = outer
            run.handlers.add(self._handlers)
        else:
            run = self._make(outer.principal if outer is not None else inherited_principal(scope))
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
        del generator  # its frame references this run
        try:
            links = await asyncio.gather(*(run.link(server) for server in self._eager))
            await asyncio.gather(*(link.open() for link in links))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return run

    def _make(self, outer: Principal | None) -> Run:
        principal = next(name for name in (self._principal, outer, ANONYMOUS) if name is not None)
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
        if _current.get() is scope:  # otherwise: another context, or a generator that was entered after this one
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
                # A timeout scope cancels again at every await. What was opened here is released first, in bounded time.
                cancelled = error
        if cancelled is not None:
            raise cancelled
