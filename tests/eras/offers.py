"""What the raw server says of itself and lists in both eras: every member of the protocol, and unknown ones."""

from typing import Any

from holdfast.core.eras import SERVER_INFO

Json = dict[str, Any]
ICONS = [{"src": "https://x.example/icon.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}]
EXTRA: Json = {"title": "A title", "x-unknown": {"a": [1, None]}, "_meta": {"com.example/x": 1}}
"""What stands in a message beside what the protocol needs."""
INFO: Json = {
    "name": "everything",
    "title": "Everything",
    "version": "7.1",
    "description": "It has all of it.",
    "websiteUrl": "https://x.example/",
    "icons": ICONS,
}
INSTRUCTIONS = "Use it with care.\nAnd twice."
TASKS_2026 = "io.modelcontextprotocol/tasks"
CAPABILITIES: Json = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
    "extensions": {"com.example/extension": {"depth": 2}},
    "experimental": {"com.example/trial": {"on": True}},
}
TASKS_2025: Json = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}

TOOL: Json = {
    **EXTRA,
    "name": "full",
    "description": "Has all members.",
    "icons": ICONS,
    "annotations": {"title": "Another", "readOnlyHint": False, "destructiveHint": True, "x-hint": 1},
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"a": {"type": "string", "x-of-schema": 1}},
    },
    "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    "execution": {"taskSupport": "optional"},
}
ANY: Json = {"name": "any", "inputSchema": {"type": "object"}}
BY_REGION: Json = {
    "name": "by-region",
    "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
}
PROMPT: Json = {
    **EXTRA,
    "name": "ask",
    "description": "Asks.",
    "icons": ICONS,
    "arguments": [{"name": "a", "description": "It.", "required": True, **EXTRA}],
}
RESOURCE: Json = {
    **EXTRA,
    "uri": "mem://listed",
    "name": "listed",
    "description": "It is listed.",
    "mimeType": "text/plain",
    "size": 3,
    "icons": ICONS,
    "annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"},
}
TEMPLATE: Json = {**EXTRA, "uriTemplate": "mem://of/{name}", "name": "of", "mimeType": "text/plain", "icons": ICONS}
LIST_META = {"com.example/list": {"b": 2}}


def handshake_2025() -> dict[str, Any]:
    async def initialize(call: Any) -> Json:
        wanted = call.params["protocolVersion"]
        known = wanted in ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
        return {
            "protocolVersion": wanted if known else "2025-11-25",
            "capabilities": {**CAPABILITIES, "tasks": TASKS_2025},
            "serverInfo": INFO,
            "instructions": INSTRUCTIONS,
        }

    return {"initialize": initialize, "ping": {}}


def handshake_2026() -> dict[str, Any]:
    extensions = {**CAPABILITIES["extensions"], TASKS_2026: {}}
    discovered = {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {**CAPABILITIES, "extensions": extensions},
        "instructions": INSTRUCTIONS,
        "ttlMs": 60_000,
        "cacheScope": "public",
        "_meta": {SERVER_INFO: INFO},
    }
    return {"server/discover": discovered}


def lists(era: str) -> dict[str, Any]:
    """The lists, tools in two pages; calls that a walk says nothing of succeed."""
    kept = {"ttlMs": 60_000, "cacheScope": "public"} if era == "2026" else {}

    async def tools(call: Any) -> Json:
        if call.params.get("cursor") == "two":
            return {"tools": [ANY, BY_REGION], "_meta": LIST_META, **kept}
        return {"tools": [TOOL], "nextCursor": "two", "_meta": LIST_META, **kept}

    found: dict[str, Any] = {
        "tools/list": tools,
        "prompts/list": {"prompts": [PROMPT], "_meta": LIST_META, **kept},
        "resources/list": {"resources": [RESOURCE], "_meta": LIST_META, **kept},
        "resources/templates/list": {"resourceTemplates": [TEMPLATE], "_meta": LIST_META, **kept},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
        "prompts/get": {"messages": []},
        "resources/read": {"contents": [{"uri": "mem://listed", "text": "abc"}], **kept},
        "completion/complete": {"completion": {"values": []}},
    }
    if era == "2025":
        found |= {"resources/subscribe": {}, "resources/unsubscribe": {}, "logging/setLevel": {}}
    return found
