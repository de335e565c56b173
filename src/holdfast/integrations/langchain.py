"""Servers' tools as LangChain tools: `await tools([server, …])`. Calls use the current run and its sessions.

Definitions, results and errors are converted. With saved definitions there is no connection before the first call; the
metadata of each tool names its server and the tool there.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import mcp_types as types

from holdfast.client.server import Server
from holdfast.core.naming import public_names
from holdfast.errors import HoldfastError
from holdfast.integrations import missing

try:
    from langchain_core.tools import BaseTool, ToolException
except ModuleNotFoundError as error:
    raise missing(__name__, "langchain", error) from None

log = logging.getLogger("holdfast.integrations")

Errors: TypeAlias = Literal["message", "raise"]
Definitions: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]
"""Saved tool definitions by server name, as `definitions()` returns them."""


async def tools(
    servers: Sequence[Server], *, definitions: Definitions | None = None, errors: Errors = "message"
) -> list[BaseTool]:
    """One LangChain tool per tool of each server that is not disabled.

    `definitions` builds them without connecting. `errors`: what the model sees of a failure, a tool message, or the
    exception itself for your own code.
    """
    found: list[tuple[Server, types.Tool]] = []
    for server in servers:
        if server.disabled:
            continue
        if definitions is not None:
            saved = definitions.get(server.name, ())
            found.extend((server, types.Tool.model_validate(dict(each))) for each in saved)
        else:
            found.extend((server, tool) for tool in await server.list_tools())
    names = public_names((server.name, tool.name) for server, tool in found)
    built = [_tool(server, tool, names[server.name, tool.name], errors) for server, tool in found]
    if definitions is None:
        for tool in built:  # hints of a live listing are stored with it and dropped with it
            tool.definition = tool.definition.model_copy(update={"annotations": None})
    return [*built]


async def definitions(servers: Sequence[Server]) -> dict[str, list[dict[str, Any]]]:
    """The definitions for `tools(definitions=…)`, as plain JSON to be saved."""
    return {
        server.name: [
            tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in await server.list_tools()
        ]
        for server in servers
        if not server.disabled
    }


class McpTool(BaseTool):
    """One tool of one server. Arguments are passed unchanged, whatever their names."""

    server: Any
    original: str
    definition: Any = None
    errors: str = "message"
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"

    def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # LangChain has no public way to pass arguments named like its own: `config`, `run_manager`, `self`.
        given = self._parse_input(tool_input, tool_call_id)
        return ({"arguments": given if isinstance(given, dict) else {}},), {}

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("MCP tools are async only; use ainvoke")

    async def _arun(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        try:
            result = await self.server.call_tool(self.original, args[0]["arguments"], definition=self.definition)
        except HoldfastError as error:
            if self.errors == "raise":
                raise
            # The model reads this text; what the author needs is in the log and in the cause.
            log.warning("%s %s failed: %s", self.server.name, self.original, error)
            raise ToolException(error.public_text()) from error
        if result.is_error:
            raise ToolException(_text(result) or "the tool failed without a message")
        return _content(result), {"structured_content": result.structured_content, "result": result}


def _tool(server: Server, tool: types.Tool, name: str, errors: Errors) -> McpTool:
    metadata = {
        "server": server.name,
        "tool": tool.name,
        "title": tool.title or (tool.annotations.title if tool.annotations is not None else None),
        "kind": "mcp",
        "annotations": tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {},
        **server.labels,
    }
    return McpTool(
        name=name,
        description=tool.description or tool.title or tool.name,
        args_schema={"properties": {}, **tool.input_schema},
        handle_tool_error=errors == "message",
        metadata=metadata,
        server=server,
        original=tool.name,
        definition=tool,
        errors=errors,
    )


def _text(result: types.CallToolResult) -> str:
    return "\n".join(content.text for content in result.content if isinstance(content, types.TextContent))


def _content(result: types.CallToolResult) -> Any:
    """Convert content: text as text, images and audio as LangChain's content blocks."""
    blocks: list[Any] = []
    for content in result.content:
        if isinstance(content, types.TextContent):
            blocks.append({"type": "text", "text": content.text})
        elif isinstance(content, types.ImageContent):
            blocks.append({"type": "image", "base64": content.data, "mime_type": content.mime_type})
        elif isinstance(content, types.AudioContent):
            blocks.append({"type": "audio", "base64": content.data, "mime_type": content.mime_type})
        else:
            blocks.append({"type": "text", "text": content.model_dump_json(by_alias=True, exclude_none=True)})
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return blocks
