"""Resources, prompts and completion."""

from typing import Any

from tests.deadlines import until
from tests.eras.cells import feature
from tests.eras.features.streams import push_until_noticed
from tests.eras.features.tools import CONTENT
from tests.eras.offers import EXTRA, LIST_META, PROMPT, RESOURCE, TEMPLATE
from tests.eras.server import Refusal, ServerCall
from tests.eras.walk import Walk

SUBJECT = "Resources"
PROMPTS = "Prompts and completion"
UPDATED = "notifications/resources/updated"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
LISTED, UNLISTED = "mem://listed", "mem://unlisted"


@feature(SUBJECT, "`resources/list`: every member, `_meta`")
async def resources_list(walk: Walk) -> None:
    result = (await (await walk.client()).request("resources/list")).result
    assert result["resources"] == [RESOURCE]
    assert LIST_META.items() <= result["_meta"].items()


@feature(SUBJECT, "`resources/templates/list`: every member, `_meta`")
async def templates_list(walk: Walk) -> None:
    result = (await (await walk.client()).request("resources/templates/list")).result
    assert result["resourceTemplates"] == [TEMPLATE]
    assert LIST_META.items() <= result["_meta"].items()


@feature(SUBJECT, "`resources/read`: text, blob, several contents, `_meta`, unknown members")
async def read(walk: Walk) -> None:
    contents = [
        {"uri": LISTED, "mimeType": "text/plain", "text": "abc", **EXTRA},
        {"uri": f"{LISTED}#b", "mimeType": "image/png", "blob": "AAAA", **EXTRA},
    ]
    kept = {"ttlMs": 0, "cacheScope": "private"} if walk.cell.server == "2026" else {}
    walk.server.on["resources/read"] = {"contents": contents, **kept, **EXTRA}
    client = await walk.client()
    result = (await client.request("resources/read", {"uri": LISTED, "_meta": {"com.example/q": 1}})).result
    assert result["contents"] == contents
    assert (result["title"], result["x-unknown"]) == (EXTRA["title"], EXTRA["x-unknown"])
    assert result["_meta"]["com.example/x"] == 1
    sent = walk.server.one("resources/read").params
    assert (sent["uri"], sent["_meta"]["com.example/q"]) == (LISTED, 1)


async def _read_by_uri(call: ServerCall) -> dict[str, Any]:
    kept = {"ttlMs": 0, "cacheScope": "private"} if "mcp-method" in call.headers else {}
    return {"contents": [{"uri": call.params["uri"], "text": call.params["uri"]}], **kept}


@feature(SUBJECT, "`resources/read` of what no list shows: by a template, by a link, by nothing")
async def read_unlisted(walk: Walk) -> None:
    walk.server.on["resources/read"] = _read_by_uri
    walk.server.on["tools/call"] = {"content": CONTENT}
    client = await walk.client()
    await client.request("tools/call", {"name": walk.name("any"), "arguments": {}})
    for uri in ("mem://of/ada", "mem://linked", "ui://page/1", "mem://ä b"):
        result = (await client.request("resources/read", {"uri": uri})).result
        assert result["contents"] == [{"uri": uri, "text": uri}]


@feature(SUBJECT, "a resource that nobody has: -32002 in 2025, -32602 in 2026, data kept")
async def missing(walk: Walk) -> None:
    code = -32002 if walk.cell.server == "2025" else -32602

    async def refuse(call: ServerCall) -> dict[str, Any]:
        raise Refusal(code, "Resource not found", data={"uri": call.params["uri"]})

    walk.server.on["resources/read"] = refuse
    client = await walk.client()
    for uri in (LISTED, "mem://nowhere"):
        error = (await client.request("resources/read", {"uri": uri})).error
        assert error["code"] == (-32002 if client.era == "2025" else -32602)
        assert error["data"]["uri"] == uri


async def _updated(walk: Walk, uri: str) -> None:
    client = await walk.client()
    async with client.listening(uris=[uri]) as id:
        params = await push_until_noticed(walk, client, UPDATED, {"uri": uri, **EXTRA})
        meta = {SUBSCRIPTION_ID: id} if client.era == "2026" else {}
        assert params == {"uri": uri, **EXTRA, "_meta": {**EXTRA["_meta"], **meta}}


@feature(SUBJECT, "a subscription, and updates with `_meta` and unknown members")
async def subscription(walk: Walk) -> None:
    await _updated(walk, LISTED)


@feature(SUBJECT, "a subscription to a resource that no list shows")
async def unlisted_subscription(walk: Walk) -> None:
    walk.server.on["resources/read"] = _read_by_uri
    await _updated(walk, UNLISTED)


def _subscribed(walk: Walk, uri: str) -> bool:
    """Is the server to send updates of it?"""
    if walk.cell.server == "2026":
        return any(uri in each.get("resourceSubscriptions", ()) for each in walk.server.listens)
    asked = [each.method for each in walk.server.seen if each.params.get("uri") == uri]
    return asked.count("resources/subscribe") > asked.count("resources/unsubscribe")


@feature(SUBJECT, "the end of a subscription reaches the server")
async def unsubscribe(walk: Walk) -> None:
    client = await walk.client()
    async with client.listening(uris=["mem://listed"]):
        await until(lambda: _subscribed(walk, LISTED))
        if client.era == "2025":
            assert (await client.request("resources/unsubscribe", {"uri": LISTED})).result == {}
            await until(lambda: not _subscribed(walk, LISTED))
    await until(lambda: not _subscribed(walk, LISTED))


# Prompts and completion


@feature(PROMPTS, "`prompts/list`: title, icons, arguments, `_meta`")
async def prompts_list(walk: Walk) -> None:
    result = (await (await walk.client()).request("prompts/list")).result
    assert result["prompts"] == [{**PROMPT, "name": walk.name("ask")}]
    assert LIST_META.items() <= result["_meta"].items()


@feature(PROMPTS, "`prompts/get`: messages with every kind of content, `_meta`")
async def prompt(walk: Walk) -> None:
    messages = [{"role": "assistant", "content": each} for each in CONTENT]
    walk.server.on["prompts/get"] = {"description": "It.", "messages": messages, **EXTRA}
    client = await walk.client()
    asked = {"name": walk.name("ask"), "arguments": {"a": "ä"}, "_meta": {"com.example/q": 1}}
    result = (await client.request("prompts/get", asked)).result
    assert (result["description"], result["messages"]) == ("It.", messages)
    assert (result["title"], result["x-unknown"]) == (EXTRA["title"], EXTRA["x-unknown"])
    assert result["_meta"]["com.example/x"] == 1
    sent = walk.server.one("prompts/get").params
    assert (sent["name"], sent["arguments"], sent["_meta"]["com.example/q"]) == ("ask", {"a": "ä"}, 1)


@feature(PROMPTS, "a prompt that nobody has: -32602")
async def missing_prompt(walk: Walk) -> None:
    async def refuse(call: ServerCall) -> dict[str, Any]:
        raise Refusal(-32602, "Unknown prompt")

    walk.server.on["prompts/get"] = refuse
    reply = await (await walk.client()).request("prompts/get", {"name": walk.name("nobody")})
    assert reply.error["code"] == -32602


@feature(PROMPTS, "`completion/complete` with context, of a prompt and of a template")
async def completion(walk: Walk) -> None:
    completed = {"values": ["a", "ä"], "total": 7, "hasMore": True, "x-unknown": 1}
    walk.server.on["completion/complete"] = {"completion": completed, **EXTRA}
    client = await walk.client()
    context = {"arguments": {"b": "2"}}
    for ref, sent in (
        ({"type": "ref/prompt", "name": walk.name("ask"), "title": "A"}, {"name": "ask", "title": "A"}),
        ({"type": "ref/resource", "uri": TEMPLATE["uriTemplate"]}, {"uri": TEMPLATE["uriTemplate"]}),
    ):
        walk.server.seen.clear()
        asked = {"ref": ref, "argument": {"name": "a", "value": "x"}, "context": context}
        result = (await client.request("completion/complete", asked)).result
        assert result["completion"] == completed
        assert result["_meta"]["com.example/x"] == 1
        params = walk.server.one("completion/complete").params
        assert sent.items() <= params["ref"].items()
        assert (params["argument"], params["context"]) == (asked["argument"], context)
