"""Tools: lists, calls, results, errors."""

from typing import Any

from tests.eras.cells import CLIENT_2026, HTTP_ONLY, NotApplicable, feature
from tests.eras.offers import ANY, BY_REGION, EXTRA, ICONS, LIST_META, TOOL
from tests.eras.server import HEADER_MISMATCH, Refusal, ServerCall
from tests.eras.walk import Walk

SUBJECT = "Tools"
RESOURCE_LINK = {"type": "resource_link", "uri": "mem://linked", "name": "linked", "icons": ICONS, **EXTRA}
CONTENT: list[dict[str, Any]] = [
    {"type": "text", "text": "a\u2028b \U0001f600", "annotations": {"audience": ["user"], "priority": 1.0}, **EXTRA},
    {"type": "image", "data": "AAAA", "mimeType": "image/png", **EXTRA},
    {"type": "audio", "data": "AAAA", "mimeType": "audio/wav", **EXTRA},
    RESOURCE_LINK,
    {"type": "resource", "resource": {"uri": "mem://in", "text": "in", "mimeType": "text/plain", **EXTRA}, **EXTRA},
    {"type": "resource", "resource": {"uri": "mem://blob", "blob": "AAAA", **EXTRA}},
    {"type": "com.example/kind", **EXTRA},
]


async def tools_of(walk: Walk, client: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All pages, as items and as results."""
    results: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    while not results or "nextCursor" in results[-1]:
        results.append((await client.request("tools/list", params)).result)
        params = {"cursor": results[-1].get("nextCursor")}
    return [tool for result in results for tool in result["tools"]], results


async def call(walk: Walk, client: Any, tool: str = "any", **params: Any) -> Any:
    return await client.request("tools/call", {"name": walk.name(tool), "arguments": {}, **params})


@feature(SUBJECT, "`tools/list`: title, icons, annotations, schemas, `_meta`, unknown members")
async def tools_list(walk: Walk) -> None:
    tools, _ = await tools_of(walk, await walk.client())
    assert tools[0] == {**TOOL, "name": walk.name("full")}


@feature(SUBJECT, "`tools/list` in pages, in the server's order")
async def tools_pages(walk: Walk) -> None:
    tools, _ = await tools_of(walk, await walk.client())
    assert [tool["name"] for tool in tools] == [walk.name(tool["name"]) for tool in (TOOL, ANY, BY_REGION)]


@feature(SUBJECT, "`_meta` of `tools/list`")
async def tools_list_meta(walk: Walk) -> None:
    _, results = await tools_of(walk, await walk.client())
    assert LIST_META.items() <= results[0]["_meta"].items()


@feature(SUBJECT, "`tools/call`: every kind of content, and kinds that nobody knows")
async def content(walk: Walk) -> None:
    walk.server.on["tools/call"] = {"content": CONTENT}
    content = (await call(walk, await walk.client())).result["content"]
    assert content[: len(CONTENT)] == CONTENT
    assert all("session of its own" in each["text"] for each in content[len(CONTENT) :])  # of a 2026 client in 2025


@feature(SUBJECT, "`structuredContent`, `_meta` and unknown members of a result")
async def structured(walk: Walk) -> None:
    walk.server.on["tools/call"] = {"content": [], "structuredContent": {"n": 12345678901234567890}, **EXTRA}
    result = (await call(walk, await walk.client())).result
    assert result["structuredContent"] == {"n": 12345678901234567890}
    assert (result["title"], result["x-unknown"]) == (EXTRA["title"], EXTRA["x-unknown"])
    assert result["_meta"]["com.example/x"] == 1
    assert result.get("isError") in (None, False)


@feature(SUBJECT, "`isError`")
async def is_error(walk: Walk) -> None:
    said: dict[str, Any] = {
        "content": [{"type": "text", "text": "It failed."}],
        "isError": True,
        "structuredContent": {"why": 3},
    }
    walk.server.on["tools/call"] = said
    result = (await call(walk, await walk.client())).result
    assert (result["isError"], result["structuredContent"]) == (True, {"why": 3})
    assert result["content"][0] == said["content"][0]


@feature(SUBJECT, "arguments, `_meta` and unknown parameters of a call")
async def parameters(walk: Walk) -> None:
    client = await walk.client()
    arguments = {"null": None, "list": [1, 2.5, "ä"], "big": 12345678901234567890, "deep": {"a": {"b": []}}}
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
    meta = {"com.example/q": {"z": 1}, "baggage": "c=d", **trace}
    await call(walk, client, arguments=arguments, _meta=meta, **{"x-unknown": 1})
    sent = walk.server.one("tools/call").params
    assert sent["name"] == "any"
    assert sent["arguments"] == arguments
    assert sent["x-unknown"] == 1
    assert sent["_meta"]["com.example/q"] == {"z": 1}


@feature(SUBJECT, "trace context in `_meta`")
async def trace_context(walk: Walk) -> None:
    client = await walk.client()
    id = "4bf92f3577b34da6a3ce929d0e0e4736"
    meta = {"traceparent": f"00-{id}-00f067aa0ba902b7-01", "tracestate": "a=b", "baggage": "c=d"}
    await call(walk, client, _meta=meta)
    sent = walk.server.one("tools/call").params["_meta"]
    assert sent["traceparent"].split("-")[1] == id  # who stands between may add a span of its own
    assert (sent["tracestate"], sent["baggage"]) == ("a=b", "c=d")


@feature(SUBJECT, "a JSON-RPC error: code 0, message, data")
async def json_rpc_error(walk: Walk) -> None:
    async def refuse(_: ServerCall) -> dict[str, Any]:
        raise Refusal(0, "zero", data={"a": [None]}, status=200)

    walk.server.on["tools/call"] = refuse
    assert (await call(walk, await walk.client())).error == {"code": 0, "message": "zero", "data": {"a": [None]}}


@feature(SUBJECT, "a tool that nobody has: -32602")
async def unknown_tool(walk: Walk) -> None:
    async def refuse(call: ServerCall) -> dict[str, Any]:
        raise Refusal(-32602, f"Unknown tool: {call.params['name']}")

    walk.server.on["tools/call"] = refuse
    assert (await call(walk, await walk.client(), "nobody")).error["code"] == -32602


@feature(SUBJECT, "results in the shape of the client's era")
async def shape(walk: Walk) -> None:
    client = await walk.client()
    cached = [
        (await client.request(method, params)).result
        for method, params in (
            ("tools/list", {}),
            ("prompts/list", {}),
            ("resources/list", {}),
            ("resources/templates/list", {}),
            ("resources/read", {"uri": "mem://listed"}),
        )
    ]
    called = (await call(walk, client)).result
    for result in (*cached, called):
        if client.era == "2026":
            assert result["resultType"] == "complete"
        else:
            assert not {"ttlMs", "cacheScope", "resultType"} & result.keys()
            assert "io.modelcontextprotocol/serverInfo" not in result.get("_meta", {})
    if client.era == "2026":
        assert all(result["ttlMs"] >= 0 and result["cacheScope"] in ("public", "private") for result in cached)


@feature(
    SUBJECT,
    "`ttlMs` of the server",
    CLIENT_2026,
    NotApplicable("2025 servers say nothing of it", server="2025"),
)
async def ttl(walk: Walk) -> None:
    client = await walk.client()
    for method, params in (("tools/list", {}), ("resources/list", {}), ("resources/read", {"uri": "mem://listed"})):
        result = (await client.request(method, params)).result
        assert 0 < result["ttlMs"] <= 60_000, (method, result["ttlMs"])


@feature(SUBJECT, "parameters in headers (`x-mcp-header`)")
async def header_parameters(walk: Walk) -> None:
    async def by_region(call: ServerCall) -> dict[str, Any]:
        if walk.cell.server == "2026" and call.headers.get("mcp-param-region") != "north":
            raise Refusal(HEADER_MISMATCH, "Mcp-Param-Region is wrong", 400)
        return {"content": [{"type": "text", "text": call.params["arguments"]["region"]}]}

    walk.server.on["tools/call"] = by_region
    client = await walk.client()
    await tools_of(walk, client)
    headers = {"mcp_param_region": "north"} if client.era == "2026" else {}
    params = {"name": walk.name("by-region"), "arguments": {"region": "north"}}
    reply = await client.request("tools/call", params, **headers)
    assert reply.result["content"][0]["text"] == "north"
    if walk.cell.server == "2025":
        assert "mcp-param-region" not in walk.server.one("tools/call").headers


@feature(SUBJECT, "a parameter's header that differs: -32020", CLIENT_2026, HTTP_ONLY)
async def header_parameters_differ(walk: Walk) -> None:
    client = await walk.client()
    params = {"name": walk.name("by-region"), "arguments": {"region": "north"}}
    reply = await client.request("tools/call", params, mcp_param_region="south")
    assert (reply.status, reply.error["code"]) == (400, HEADER_MISMATCH)
    assert walk.server.all("tools/call") == []


@feature(
    SUBJECT,
    "a parameter that goes into a header since the list was read",
    NotApplicable("2026 clients list again themselves", client="2026"),
    NotApplicable("2025 servers have no such headers", server="2025"),
)
async def header_parameters_since(walk: Walk) -> None:
    async def by_zone(call: ServerCall) -> dict[str, Any]:
        if call.headers.get("mcp-param-zone") != "north":
            raise Refusal(HEADER_MISMATCH, "Mcp-Param-Zone is missing", 400)
        return {"content": [{"type": "text", "text": "north"}]}

    walk.server.on["tools/call"] = by_zone
    client = await walk.client()
    await tools_of(walk, client)
    schema = {"type": "object", "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}}
    kept = {"ttlMs": 0, "cacheScope": "private"}
    walk.server.on["tools/list"] = {"tools": [{"name": "any", "inputSchema": schema}], **kept}
    reply = await call(walk, client, arguments={"zone": "north"})
    assert reply.result["content"][0]["text"] == "north"
