"""The server that the official suite talks to in server mode: `fixture.py PORT`, at http://127.0.0.1:PORT/mcp.

It has every tool, resource and prompt that a required scenario names, in both eras, on the SDK's low-level server. It does not
support tasks and authorization, and refuses requests to other hosts than this machine.
"""

import asyncio
import base64
import io
import json
import logging
import re
import struct
import sys
import warnings
import wave
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, get_args

import mcp_types as types
import uvicorn
from jsonschema import Draft202012Validator
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.subscriptions import PromptsListChanged, ToolsListChanged
from starlette.applications import Starlette
from starlette.routing import Route

NAME = "holdfast-conformance-fixture"
PAUSE = 0.05  # seconds between two notifications of one call: the suite wants to see them arrive one by one
LEVELS: tuple[types.LoggingLevel, ...] = get_args(types.LoggingLevel)  # from debug to emergency

Ctx = ServerRequestContext[Any, Any]
Called = types.CallToolResult | types.InputRequiredResult
Prompted = types.GetPromptResult | types.InputRequiredResult


def png() -> str:
    """One red pixel, in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)  # 1×1, 8 bits, RGB
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\x00\xff\x00\x00")) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def wav() -> str:
    """Eight silent samples, in base64."""
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(b"\x80" * 8)
    return base64.b64encode(out.getvalue()).decode()


PNG, WAV = png(), wav()


# What a handler says


def text(words: str) -> types.TextContent:
    return types.TextContent(text=words)


def image() -> types.ImageContent:
    return types.ImageContent(data=PNG, mime_type="image/png")


def embedded(uri: str, mime_type: str, words: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=words))


def answer(*content: types.ContentBlock) -> types.CallToolResult:
    return types.CallToolResult(content=list(content))


def failed(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[text(words)], is_error=True)


def spoken(*content: types.ContentBlock) -> types.GetPromptResult:
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=block) for block in content])


def form(**fields: dict[str, Any]) -> dict[str, Any]:
    """An object schema whose fields are all required."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def elicitation(message: str, **fields: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=form(**fields)),
    )


def sampling(prompt: str, max_tokens: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=text(prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


def ask(state: str | None = None, **requests: types.InputRequest) -> types.InputRequiredResult:
    """The 2026 way to ask: the client answers by calling again."""
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def reply(params: types.InputResponseRequestParams, key: str, field: str) -> Any:
    """One field of the form that the client sent back under `key`. None where there is none."""
    response = (params.input_responses or {}).get(key)
    if isinstance(response, types.ElicitResult) and response.action == "accept":
        return (response.content or {}).get(field)
    return None


# Tools


@dataclass(frozen=True)
class Handled:
    """A tool as listed, and what a call of it does."""

    listed: types.Tool
    run: Callable[[Ctx, types.CallToolRequestParams], Awaitable[Called]]


TOOLS: dict[str, Handled] = {}
BUS = InMemorySubscriptionBus()
levels: dict[str, types.LoggingLevel] = {}  # 2025: the level that each session set


def tool(
    schema: dict[str, Any] | None = None,
) -> Callable[[Callable[[Ctx, types.CallToolRequestParams], Awaitable[Called]]], None]:
    """Registers a function under its name; its docstring is the description."""

    def register(run: Callable[[Ctx, types.CallToolRequestParams], Awaitable[Called]]) -> None:
        listed = types.Tool(name=run.__name__, description=run.__doc__, input_schema=schema or form())
        TOOLS[run.__name__] = Handled(listed, run)

    return register


def session_id(ctx: Ctx) -> str:
    return ctx.request.headers.get("mcp-session-id", "") if ctx.request is not None else ""


async def log(ctx: Ctx, words: str) -> None:
    """A log entry at info. In 2025 the session's level decides, in 2026 the SDK reads the request's own."""
    if LEVELS.index(levels.get(session_id(ctx), "debug")) <= LEVELS.index("info"):
        await ctx.session.send_log_message("info", words, related_request_id=ctx.request_id)


@tool()
async def test_simple_text(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Answers one text. It stands first in the list: the header scenario calls whatever does."""
    return answer(text("This is a simple text response for testing."))


@tool()
async def test_image_content(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Answers one image."""
    return answer(image())


@tool()
async def test_audio_content(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Answers one sound."""
    return answer(types.AudioContent(data=WAV, mime_type="audio/wav"))


@tool()
async def test_embedded_resource(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Answers one embedded resource."""
    return answer(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))


@tool()
async def test_multiple_content_types(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Answers a text, an image and a resource."""
    mixed = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return answer(text("Multiple content types test:"), image(), mixed)


@tool()
async def test_error_handling(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Always fails."""
    return failed("This tool intentionally returns an error for testing")


@tool()
async def test_tool_with_logging(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Logs three times while it works."""
    await log(ctx, "Tool execution started")
    await asyncio.sleep(PAUSE)
    await log(ctx, "Tool processing data")
    await asyncio.sleep(PAUSE)
    await log(ctx, "Tool execution completed")
    return answer(text("Logged three times."))


@tool()
async def test_logging_tool(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Logs once. In 2026 only a request that asked for logs gets it."""
    await log(ctx, "A log entry")
    return answer(text("Logged once."))


@tool()
async def test_tool_with_progress(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Reports 0, 50 and 100 of 100, if the request has a progress token."""
    await ctx.session.report_progress(0, 100)
    await asyncio.sleep(PAUSE)
    await ctx.session.report_progress(50, 100)
    await asyncio.sleep(PAUSE)
    await ctx.session.report_progress(100, 100)
    return answer(text("Reported progress three times."))


@tool()
async def test_reconnection(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Closes its own stream in mid-call (2025). The client gets the answer when it comes back."""
    await asyncio.sleep(PAUSE)
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(2 * PAUSE)
    return answer(text("Reconnection test completed."))


@tool(form(prompt={"type": "string", "description": "What to ask the model"}))
async def test_sampling(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks the client's model (2025)."""
    message = types.SamplingMessage(role="user", content=text((params.arguments or {})["prompt"]))
    result = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
    said = result.content.text if isinstance(result.content, types.TextContent) else result.content.type
    return answer(text(f"LLM response: {said}"))


async def elicited(ctx: Ctx, prefix: str, message: str, schema: dict[str, Any]) -> Called:
    """Asks the user and tells what came back (2025)."""
    result = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
    return answer(text(f"{prefix}: action={result.action}, content={json.dumps(result.content)}"))


@tool(form(message={"type": "string", "description": "What to ask the user"}))
async def test_elicitation(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks the user for a name and an address (2025)."""
    schema = form(
        username={"type": "string", "description": "User's response"},
        email={"type": "string", "description": "User's email address"},
    )
    return await elicited(ctx, "User response", (params.arguments or {})["message"], schema)


@tool()
async def test_elicitation_sep1034_defaults(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks with a default for every primitive type (2025)."""
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await elicited(ctx, "Elicitation completed", "Check the defaults", {"type": "object", "properties": fields})


@tool()
async def test_elicitation_sep1330_enums(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks with each of the five ways to write an enum (2025)."""
    options = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second", "Third"), 1)
    ]
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await elicited(ctx, "Elicitation completed", "Choose", {"type": "object", "properties": fields})


@tool(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
async def json_schema_2020_12_tool(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Has an input schema with the words of JSON Schema 2020-12."""
    return answer(text(json.dumps(params.arguments)))


@tool(form(region={"type": "string", "description": "Also sent as a header", "x-mcp-header": "Region"}))
async def test_x_mcp_header(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Takes one argument that a 2026 client repeats in the header Mcp-Param-Region. The SDK compares them."""
    return answer(text(f"Region: {(params.arguments or {})['region']}"))


@tool()
async def test_missing_capability(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Refuses a client that did not declare sampling."""
    declared = ctx.session.client_capabilities
    if declared is None or declared.sampling is None:
        needed = types.ClientCapabilities(sampling=types.SamplingCapability())
        data = types.MissingRequiredClientCapabilityErrorData(required_capabilities=needed)
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This tool needs the sampling capability",
            data.model_dump(by_alias=True, exclude_none=True),
        )
    return answer(text("The client declared sampling."))


@tool()
async def test_streaming_elicitation(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Reports progress, then asks for a confirmation (2026)."""
    await ctx.session.report_progress(50, 100)
    if reply(params, "confirm", "ok") is None:
        return ask(confirm=elicitation("Please confirm", ok={"type": "boolean"}))
    return answer(text("Confirmed."))


@tool()
async def test_trigger_tool_change(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Tells the 2026 subscribers that the tools changed."""
    await BUS.publish(ToolsListChanged())
    return answer(text("Announced."))


@tool()
async def test_trigger_prompt_change(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Tells the 2026 subscribers that the prompts changed."""
    await BUS.publish(PromptsListChanged())
    return answer(text("Announced."))


# Tools that ask by their result (2026)


@tool()
async def test_input_required_result_elicitation(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks for a name and greets it. Without one it asks again."""
    name = reply(params, "user_name", "name")
    if not isinstance(name, str):
        return ask(user_name=elicitation("What is your name?", name={"type": "string"}))
    return answer(text(f"Hello, {name}!"))


@tool()
async def test_input_required_result_sampling(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks the client's model one question."""
    response = (params.input_responses or {}).get("capital_question")
    if not isinstance(response, types.CreateMessageResult) or not isinstance(response.content, types.TextContent):
        return ask(capital_question=sampling("What is the capital of France?", 100))
    return answer(text(response.content.text))


@tool()
async def test_input_required_result_list_roots(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks for the client's roots and names them."""
    response = (params.input_responses or {}).get("client_roots")
    if not isinstance(response, types.ListRootsResult):
        return ask(client_roots=types.ListRootsRequest())
    return answer(text("Roots: " + ", ".join(str(root.uri) for root in response.roots)))


@tool()
async def test_input_required_result_request_state(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks for a confirmation and wants its own state back."""
    if params.request_state != "confirming" or reply(params, "confirm", "ok") is None:
        return ask("confirming", confirm=elicitation("Please confirm", ok={"type": "boolean"}))
    return answer(text("state-ok"))


@tool()
async def test_input_required_result_tampered_state(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """The same with a state that the scenario forges. The SDK refuses it before we see it."""
    if params.request_state != "untouched" or reply(params, "confirm", "ok") is None:
        return ask("untouched", confirm=elicitation("Please confirm", ok={"type": "boolean"}))
    return answer(text("The state came back untouched."))


@tool()
async def test_input_required_result_multiple_inputs(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks the user, the model and the roots at once."""
    wanted: dict[str, types.InputRequest] = {
        "user_name": elicitation("What is your name?", name={"type": "string"}),
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    if params.request_state != "collecting" or not wanted.keys() <= (params.input_responses or {}).keys():
        return ask("collecting", **wanted)
    return answer(text(f"Got all of {', '.join(wanted)}."))


@tool()
async def test_input_required_result_multi_round(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks for a name, then for a color. The state carries the name."""
    state = json.loads(params.request_state or "{}")
    name = state.get("name") or reply(params, "step1", "name")
    if not name:
        return ask("{}", step1=elicitation("Step 1: What is your name?", name={"type": "string"}))
    color = reply(params, "step2", "color")
    if not color:
        question = elicitation("Step 2: What is your favorite color?", color={"type": "string"})
        return ask(json.dumps({"name": name}), step2=question)
    return answer(text(f"{name} likes {color}."))


@tool()
async def test_input_required_result_capabilities(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    """Asks only for what the client declared that it can do."""
    declared = ctx.session.client_capabilities or types.ClientCapabilities()
    wanted: dict[str, types.InputRequest] = {}
    if declared.sampling is not None:
        wanted["greeting"] = sampling("Generate a greeting", 50)
    if declared.elicitation is not None:
        wanted["user_name"] = elicitation("What is your name?", name={"type": "string"})
    if declared.roots is not None:
        wanted["client_roots"] = types.ListRootsRequest()
    if wanted.keys() <= (params.input_responses or {}).keys():
        return answer(text(f"Got all of {', '.join(wanted) or 'nothing'}."))
    return ask(None, **wanted)


async def list_tools(ctx: Ctx, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[handled.listed for handled in TOOLS.values()])


async def call_tool(ctx: Ctx, params: types.CallToolRequestParams) -> Called:
    handled = TOOLS.get(params.name)
    if handled is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    wrong = next(Draft202012Validator(handled.listed.input_schema).iter_errors(params.arguments or {}), None)
    return failed(f"Invalid arguments: {wrong.message}") if wrong else await handled.run(ctx, params)


def input_schema(name: str) -> dict[str, Any] | None:
    return TOOLS[name].listed.input_schema if name in TOOLS else None


# Resources

TEMPLATE = re.compile(r"test://template/([^/]+)/data")
RESOURCES: dict[str, types.TextResourceContents | types.BlobResourceContents] = {
    contents.uri: contents
    for contents in (
        types.TextResourceContents(
            uri="test://static-text", mime_type="text/plain", text="This is the content of the static text resource."
        ),
        types.BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=PNG),
        types.TextResourceContents(
            uri="test://watched-resource", mime_type="text/plain", text="This is the content of the watched resource."
        ),
    )
}


async def list_resources(ctx: Ctx, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=uri, name=uri.removeprefix("test://"), description=uri, mime_type=contents.mime_type)
            for uri, contents in RESOURCES.items()
        ]
    )


async def list_templates(ctx: Ctx, params: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
    listed = types.ResourceTemplate(
        uri_template="test://template/{id}/data",
        name="template",
        description="Says its id",
        mime_type="application/json",
    )
    return types.ListResourceTemplatesResult(resource_templates=[listed])


async def read_resource(ctx: Ctx, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    if params.uri in RESOURCES:
        return types.ReadResourceResult(contents=[RESOURCES[params.uri]])
    match = TEMPLATE.fullmatch(params.uri)
    if match is None:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": params.uri})
    words = json.dumps({"id": match[1], "templateTest": True, "data": f"Data for ID: {match[1]}"})
    contents = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=words)
    return types.ReadResourceResult(contents=[contents])


async def subscribe(ctx: Ctx, params: types.SubscribeRequestParams) -> types.EmptyResult:
    """Accepts. No resource here ever changes, so there is nothing to remember."""
    return types.EmptyResult()


async def unsubscribe(ctx: Ctx, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


# Prompts, completion, logging

PROMPTS = (
    types.Prompt(name="test_simple_prompt", description="Says one text"),
    types.Prompt(
        name="test_prompt_with_arguments",
        description="Says its two arguments",
        arguments=[
            types.PromptArgument(name="arg1", description="First test argument", required=True),
            types.PromptArgument(name="arg2", description="Second test argument", required=True),
        ],
    ),
    types.Prompt(
        name="test_prompt_with_embedded_resource",
        description="Embeds a resource",
        arguments=[types.PromptArgument(name="resourceUri", description="URI of the resource to embed", required=True)],
    ),
    types.Prompt(name="test_prompt_with_image", description="Shows an image"),
    types.Prompt(name="test_input_required_result_prompt", description="Asks for a context first (2026)"),
)


async def list_prompts(ctx: Ctx, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=list(PROMPTS))


async def get_prompt(ctx: Ctx, params: types.GetPromptRequestParams) -> Prompted:
    listed = next((prompt for prompt in PROMPTS if prompt.name == params.name), None)
    if listed is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    given = params.arguments or {}
    missing = [argument.name for argument in listed.arguments or [] if argument.name not in given]
    if missing:
        raise MCPError(types.INVALID_PARAMS, f"Missing arguments: {', '.join(missing)}")
    match listed.name:
        case "test_prompt_with_arguments":
            return spoken(text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"))
        case "test_prompt_with_embedded_resource":
            resource = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            return spoken(resource, text("Please process the embedded resource above."))
        case "test_prompt_with_image":
            return spoken(image(), text("Please analyze the image above."))
        case "test_input_required_result_prompt":
            context = reply(params, "user_context", "context")
            if context is None:
                question = elicitation("What context should the prompt use?", context={"type": "string"})
                return ask(user_context=question)
            return spoken(text(f"Use this context: {context}"))
        case _:
            return spoken(text("This is a simple prompt for testing."))


async def complete(ctx: Ctx, params: types.CompleteRequestParams) -> types.CompleteResult:
    values = [word for word in ("paris", "park", "party", "test") if word.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


async def set_level(ctx: Ctx, params: types.SetLevelRequestParams) -> types.EmptyResult:
    levels[session_id(ctx)] = params.level
    return types.EmptyResult()


# Serving


class Events(EventStore):
    """What one session has sent, in memory, for clients that come back."""

    def __init__(self) -> None:
        self.ids = count(1)
        self.sent: list[tuple[str, str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        event_id = str(next(self.ids))
        self.sent.append((event_id, stream_id, message))
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        at = next((n for n, (event_id, _, _) in enumerate(self.sent) if event_id == last_event_id), None)
        if at is None:
            return None
        stream = self.sent[at][1]
        for event_id, stream_id, message in self.sent[at + 1 :]:
            if stream_id == stream and message is not None:
                await send_callback(EventMessage(message, event_id))
        return stream


class Sessions(StreamableHTTPSessionManager):
    """Gives each session a store of its own. The SDK names a stream by its request id, so sessions cannot share one."""

    @property
    def event_store(self) -> EventStore:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Events()

    @event_store.setter
    def event_store(self, _: EventStore | None) -> None:
        """The SDK's constructor sets it once."""


def build() -> Starlette:
    hint = CacheHint(ttl_ms=5000, scope="public")
    server: Server[Any] = Server(
        NAME,
        version="1.0.0",
        cache_hints={
            "tools/list": hint,
            "prompts/list": hint,
            "resources/list": hint,
            "resources/templates/list": hint,
            "resources/read": hint,
        },
        get_tool_input_schema=input_schema,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(BUS),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_set_logging_level=set_level,
    )
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))
    hosts = ["127.0.0.1:*", "localhost:*"]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]
    )
    sessions = Sessions(server, retry_interval=100, security_settings=security)
    return Starlette(
        routes=[Route("/mcp", endpoint=StreamableHTTPASGIApp(sessions))], lifespan=lambda app: sessions.run()
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # the suite provokes refusals, and the SDK warns of each
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # 2025 still has logging and sampling
    # h11 strips the blanks around a header's value, as one scenario wants; httptools does not.
    uvicorn.run(build(), port=int(sys.argv[1]), log_level="error", http="h11", timeout_graceful_shutdown=1)
