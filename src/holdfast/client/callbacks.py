"""Callbacks for a server's requests (elicitation, sampling, roots), logs and notifications.

The same callbacks answer a 2025 server's requests and a 2026 server's input rounds; parameters are converted to the
SDK's types. Only capabilities for which there is a callback are declared to a server.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from holdfast.errors import CallbackFailed, ConfigError, ErrorAnswer
from holdfast.links.background import cancelling

if TYPE_CHECKING:
    import mcp_types as types

    Elicit: TypeAlias = "Callable[[types.ElicitRequestParams], Awaitable[types.ElicitResult]]"
    Sample: TypeAlias = "Callable[[types.CreateMessageRequestParams], Awaitable[types.CreateMessageResult]]"
    Roots: TypeAlias = "Sequence[str] | Callable[[], Awaitable[Sequence[types.Root]]]"

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

log = logging.getLogger("holdfast.client")


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a run or of one server. `roots` are URIs, or an async callable that returns `Root`s.

    `elicit`, `sample` and such a `roots` are async functions; `on_log` and `on_notification` are plain ones.
    """

    elicit: "Elicit | None" = None
    sample: "Sample | None" = None
    roots: "Roots | None" = None
    on_log: Callable[[Mapping[str, Any]], None] | None = None
    on_notification: Callable[[str, Mapping[str, Any] | None], None] | None = None
    log_level: str = "debug"
    """The minimum level of the messages that servers send to `on_log`."""

    def __post_init__(self) -> None:
        for name in ("elicit", "sample"):
            if (given := getattr(self, name)) is not None:
                check_async(given, f"Callbacks: {name}=", "params")
        if callable(self.roots):
            check_async(self.roots, "Callbacks: roots=")
        elif self.roots is not None:
            if isinstance(self.roots, str) or not all(isinstance(uri, str) for uri in self.roots):  # pyright: ignore[reportUnnecessaryIsInstance]
                kind = type(self.roots).__name__
                raise ConfigError(
                    f"Callbacks: roots= must be a list of URIs, not a {kind}",
                    remedy="give roots=['file:///srv/project']",
                )
            object.__setattr__(self, "roots", tuple(self.roots))  # so that equal declarations stay equal
        if self.on_log is not None:
            check_plain(self.on_log, "Callbacks: on_log=", "params")
        if self.on_notification is not None:
            check_plain(self.on_notification, "Callbacks: on_notification=", "method", "params")
        if self.log_level not in LEVELS:
            raise ConfigError(
                f"Callbacks: log_level={self.log_level!r:.40} is not a level", remedy=f"give one of {', '.join(LEVELS)}"
            )

    def over(self, other: "Callbacks | None") -> "Callbacks":
        """These callbacks, with the other's where one is missing."""
        if other is None:
            return self
        return Callbacks(
            self.elicit or other.elicit,
            self.sample or other.sample,
            self.roots if self.roots is not None else other.roots,
            self.on_log or other.on_log,
            self.on_notification or other.on_notification,
            self.log_level if self.on_log is not None else other.log_level,
        )

    @property
    def capabilities(self) -> dict[str, Any]:
        """The client capabilities that these callbacks provide."""
        found: dict[str, Any] = {}
        if self.elicit is not None:
            found["elicitation"] = {"form": {}, "url": {}}
        if self.sample is not None:
            found["sampling"] = {}
        if self.roots is not None:
            found["roots"] = {"listChanged": False}
        return found

    @property
    def wanted_level(self) -> str | None:
        """The log level to request from servers; None without `on_log`: a 2026 server then sends no log messages."""
        return self.log_level if self.on_log is not None else None

    async def answer(
        self, method: str, params: Mapping[str, Any] | None, id: str | int = "", *, server: str = ""
    ) -> dict[str, Any]:
        """Answer a server's request.
        Raises `ErrorAnswer` if there is no callback for it or the callback refuses, and `CallbackFailed`, after logging
        the traceback, if it raised or returned a wrong type.
        """
        import mcp_types as types
        from pydantic import TypeAdapter, ValidationError

        given = dict(params or {})
        arguments: list[Any] = []
        try:
            if method == "elicitation/create" and self.elicit is not None:
                name, callback, expected = "elicit", self.elicit, types.ElicitResult
                adapter: Any = TypeAdapter(types.ElicitRequestParams)
                arguments.append(adapter.validate_python(given))
            elif method == "sampling/createMessage" and self.sample is not None:
                name, callback = "sample", self.sample
                expected = (types.CreateMessageResult, types.CreateMessageResultWithTools)
                arguments.append(types.CreateMessageRequestParams.model_validate(given))
            elif method == "roots/list" and self.roots is not None:
                name, callback, expected = "roots", self._list_roots, types.ListRootsResult
            else:
                raise ErrorAnswer(
                    f"no callback answers {method}", code=METHOD_NOT_FOUND, message=f"{method} is not supported here"
                )
        except ValidationError as error:
            raise ErrorAnswer(
                f"{method} can't be read: {error}"[:400],
                code=INVALID_PARAMS,
                message=f"the params of {method} are invalid",
            ) from error
        return await _called(name, cast("Any", callback), arguments, expected, server)

    async def _list_roots(self) -> Any:
        import mcp_types as types

        roots: Any = await self.roots() if callable(self.roots) else self.roots
        if isinstance(roots, types.ErrorData):
            return roots
        return types.ListRootsResult(
            roots=[types.Root(uri=cast("Any", root)) if isinstance(root, str) else root for root in roots]
        )

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Pass a notification to `on_log` and `on_notification`."""
        if method == "notifications/message" and self.on_log is not None and params is not None:
            self.on_log(params)
        if self.on_notification is not None:
            self.on_notification(method, params)


async def _called(
    name: str, callback: Callable[..., Awaitable[Any]], arguments: list[Any], expected: Any, server: str
) -> dict[str, Any]:
    from mcp import MCPError
    from mcp_types import ErrorData

    try:
        result = await callback(*arguments)
        if isinstance(result, ErrorData):
            raise ErrorAnswer(result.message, message=result.message, code=result.code, data=result.data)
        if not isinstance(result, expected):
            wanted = expected if isinstance(expected, type) else expected[0]
            raise TypeError(f"it returned {type(result).__name__}, not {wanted.__name__}")
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    except ErrorAnswer:
        raise
    except MCPError as error:  # by which the SDK's callbacks refuse
        raise ErrorAnswer(error.message, message=error.message, code=error.code, data=error.data) from error
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancelling():
            raise  # otherwise it came from something that the callback awaited
        log.exception("%s: the callback %s= failed", server or "a server", name)
        raise CallbackFailed(
            f"{server!r} asked for input, and Callbacks({name}=) failed: {error!r:.200}",
            server=server,
            phase="call",
            remedy="see its traceback in the log, and correct the function",
        ) from error


def failed_callback(error: ErrorAnswer, server: str) -> CallbackFailed | None:
    """The failure of this client's own callback, if a 2025 server returned it as its answer to the call."""
    data: Any = error.data
    if not isinstance(data, dict) or cast("dict[str, Any]", data).get("kind") != CallbackFailed.__name__:
        return None
    return CallbackFailed(
        f"{server!r} asked for input, and the callback for it failed",
        server=server,
        phase="call",
        remedy="see its traceback in the log, and correct the function",
    )


def check_async(function: object, what: str, *names: str) -> None:
    """Raise at declaration if the function is not async."""
    plain = inspect.unwrap(function) if callable(function) else function
    if not (inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(getattr(plain, "__call__", None))):  # noqa: B004
        raise ConfigError(
            f"{what} must be an async function, not {function!r:.80}",
            remedy=f"write `async def answer({', '.join(names)}): …`",
        )
    _check_signature(function, what, names, "async def")


def check_plain(function: object, what: str, *names: str) -> None:
    """Raise at declaration if the function is async or can't be called with these arguments."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise ConfigError(
            f"{what} is an async function, but it is called without await",
            remedy=f"write `def take({', '.join(names)}): …`, which may put what it gets into a queue",
        )
    _check_signature(function, what, names, "def")


def _check_signature(function: Any, what: str, names: tuple[str, ...], word: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a builtin without a signature
    except TypeError:
        signature = None
    try:
        if signature is not None:
            signature.bind(*names)
            return
        problem = f"it is a {type(function).__name__}"
    except TypeError as error:
        problem = str(error)
    called = ", ".join(names)
    raise ConfigError(f"{what} can't be called with ({called}): {problem}", remedy=f"write `{word} …({called}): …`")
