"""The tools that the server of a link has listed, as long as the link's session is valid.

From a tool's definition it derives whether a call may be repeated, which parameters are sent in headers, and whether
the result matches its schema. It makes no requests: a listing is known only after a caller has made it.
"""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, cast

import mcp_types as types
from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

from holdfast.client import hints
from holdfast.client.declaration import ServerDeclaration
from holdfast.client.hints import Hints
from holdfast.client.runs.pool import pool
from holdfast.core.eras import Era
from holdfast.errors import BadAnswer
from holdfast.links.link import Link


class ListedTools:
    """The tools that one session of a link listed."""

    __slots__ = ("_hints", "_tools", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._tools: dict[str, types.Tool] = {}
        self._hints: Hints | None = None

    @classmethod
    def for_link(cls, link: Link) -> "ListedTools":
        """The tools that are known now, without those of an earlier session."""
        known = _of_link.get(link)
        if known is None or known.generation != link.generation:
            known = _of_link[link] = cls(link.generation)
        return known

    def get(self, name: str) -> types.Tool | None:
        return self._tools.get(name)

    def learn(self, server: ServerDeclaration, link: Link, tools: Iterable[types.Tool]) -> None:
        """Record a complete listing."""
        self._tools = {tool.name: tool for tool in tools}
        listed = ((tool.name, _is_repeatable(tool)) for tool in self._tools.values())
        now = pool.clock.monotonic()
        self._hints = hints.learn(server.plain, link.principal, _version(link), listed, now)

    def may_repeat(self, server: ServerDeclaration, link: Link, name: str, definition: types.Tool | None) -> bool:
        """Whether a tool is idempotent, by the listing of this session, else by an earlier one, else by a saved
        definition if it is still valid."""
        known = self._hints
        now = pool.clock.monotonic()
        if known is None or known.revoked or now - known.listed > hints.HINT_SECONDS:
            known = hints.known(server.plain, link.principal, _version(link), now)
        listed = None if known is None else known.repeatable.get(name)
        if listed is None:
            return _is_repeatable(definition) and hints.saved_count(server.plain, link.principal, _version(link))
        return listed


_of_link: "weakref.WeakKeyDictionary[Link, ListedTools]" = weakref.WeakKeyDictionary()


def _version(link: Link) -> object:
    """The server's name and version; None before the handshake."""
    return None if link.handshake is None else (link.handshake.server_info or {})


def _is_repeatable(tool: types.Tool | None) -> bool:
    """Whether a call may be repeated, by the tool's annotations."""
    annotations = tool.annotations if tool is not None else None
    return annotations is not None and (annotations.read_only_hint is True or annotations.idempotent_hint is True)


def param_headers(link: Link, tool: types.Tool | None, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that a 2026 tool requires in headers as well."""
    if tool is None or link.era is not Era.Y2026:
        return {}
    return mcp_param_headers(x_mcp_header_map(tool.input_schema), arguments)


def check_result(
    server: ServerDeclaration, tool: types.Tool | None, result: types.CallToolResult
) -> types.CallToolResult:
    """Return the result. Raises `BadAnswer` if it does not match the tool's output schema, where that is known."""
    if tool is None or tool.output_schema is None or result.is_error or result.structured_content is None:
        return result
    from jsonschema.validators import validator_for
    from referencing import Registry

    try:
        # An empty registry: a schema comes from a server and must not make us fetch URLs.
        nothing = cast("Any", Registry)()
        kind: Any = validator_for(tool.output_schema)
        kind.check_schema(tool.output_schema)
        kind(tool.output_schema, registry=nothing).validate(result.structured_content)
    except Exception as error:  # a mismatch, an invalid schema, an unresolvable reference
        why = getattr(error, "message", None) or str(error)
        raise BadAnswer(
            f"tools/call: {server.name!r} {tool.name!r}: the result does not match its schema: {why}"[:400],
            server=server.name,
            phase="call",
            remedy="this is a fault of the server; the tool was executed",
        ) from error
    return result
