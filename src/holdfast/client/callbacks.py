"""What a server may ask of an agent: elicitation, sampling, roots, logging; and what it says by itself.

It owns the translation between the SDK's typed parameters and the wire, in both eras: the same callbacks answer a 2025
server's requests and a 2026 server's input rounds. It refuses to promise a server what nobody here can do.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.errors import ErrorAnswer

if TYPE_CHECKING:
    import mcp_types as types

    Elicit: TypeAlias = "Callable[[types.ElicitRequestParams], Awaitable[types.ElicitResult]]"
    Sample: TypeAlias = "Callable[[types.CreateMessageRequestParams], Awaitable[types.CreateMessageResult]]"
    Roots: TypeAlias = "Sequence[str] | Callable[[], Awaitable[Sequence[types.Root]]]"

METHOD_NOT_FOUND = -32601


@dataclass(frozen=True)
class Callbacks:
    """On a run, or on one server. `roots` are URIs, or an async callable that returns `Root`s."""

    elicit: "Elicit | None" = None
    sample: "Sample | None" = None
    roots: "Roots | None" = None
    on_log: Callable[[Mapping[str, Any]], None] | None = None
    on_notification: Callable[[str, Mapping[str, Any] | None], None] | None = None

    def __post_init__(self) -> None:
        if self.roots is not None and not callable(self.roots):
            object.__setattr__(self, "roots", tuple(self.roots))  # so that equal declarations stay equal

    def over(self, other: "Callbacks | None") -> "Callbacks":
        """These, and where they are silent the other's."""
        if other is None:
            return self
        return Callbacks(
            self.elicit or other.elicit,
            self.sample or other.sample,
            self.roots if self.roots is not None else other.roots,
            self.on_log or other.on_log,
            self.on_notification or other.on_notification,
        )

    @property
    def capabilities(self) -> dict[str, Any]:
        """What we may promise."""
        found: dict[str, Any] = {}
        if self.elicit is not None:
            found["elicitation"] = {"form": {}, "url": {}}
        if self.sample is not None:
            found["sampling"] = {}
        if self.roots is not None:
            found["roots"] = {"listChanged": False}
        return found

    async def answer(self, method: str, params: Mapping[str, Any] | None, id: str | int = "") -> dict[str, Any]:
        """Answer a server's question. `ErrorAnswer` if nobody can."""
        import mcp_types as types
        from pydantic import TypeAdapter

        given = dict(params or {})
        if method == "elicitation/create" and self.elicit is not None:
            adapter: Any = TypeAdapter(types.ElicitRequestParams)
            return _plain(await self.elicit(adapter.validate_python(given)))
        if method == "sampling/createMessage" and self.sample is not None:
            return _plain(await self.sample(types.CreateMessageRequestParams.model_validate(given)))
        if method == "roots/list" and self.roots is not None:
            roots = await self.roots() if callable(self.roots) else [types.Root(uri=uri) for uri in self.roots]  # type: ignore[arg-type]
            return _plain(types.ListRootsResult(roots=list(roots)))
        raise ErrorAnswer(f"nobody answers {method}", code=METHOD_NOT_FOUND, message=f"{method} is not supported here")

    def heard(self, method: str, params: Mapping[str, Any] | None) -> None:
        """A notification."""
        if method == "notifications/message" and self.on_log is not None and params is not None:
            self.on_log(params)
        if self.on_notification is not None:
            self.on_notification(method, params)


def _plain(model: Any) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
