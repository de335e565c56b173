"""What a server sends beside calls: changes of lists, streams, and the sessions that they belong to."""

import asyncio
from typing import Any

from tests.deadlines import until
from tests.eras.cells import CLIENT_2025, CLIENT_2026, HTTP_ONLY, LINK, ONE_PIPE, SERVER_2025, NotApplicable, feature
from tests.eras.features.tools import call
from tests.eras.offers import PROMPT, RESOURCE, TOOL
from tests.eras.server import ServerCall
from tests.eras.walk import Walk

SUBJECT = "Changes and streams"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
NO_BATCHES = NotApplicable("the SDK has no batches", LINK)
ONE_STREAM = NotApplicable("2026 has no stream for it", client="2026")
UPDATED = "notifications/resources/updated"
CHANGED = "notifications/tools/list_changed"
DONE: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}


async def push_until_noticed(walk: Walk, client: Any, method: str, params: dict[str, Any] | None = None) -> Any:
    """Push it at the server until the client has it: once for a 2026 client, whose stream was acknowledged."""
    walk.server.push(method, params)
    if client.era == "2025":
        while not client.all_noticed(method):
            await asyncio.sleep(0.02)  # a GET stream opens in its own time at a gateway's server
            walk.server.push(method, params)
    return await client.noticed(method)


async def _changes(walk: Walk, kind: str, method: str, changed: dict[str, Any]) -> None:
    client = await walk.client()
    async with client.listening(kind) as id:
        kept = {"ttlMs": 0, "cacheScope": "private"} if walk.cell.server == "2026" else {}
        walk.server.on[method] = {**changed, **kept}
        notice = f"notifications/{kind}/list_changed"
        params = await push_until_noticed(walk, client, notice)
        if client.era == "2026":
            assert params["_meta"][SUBSCRIPTION_ID] == id
        (key,) = changed
        assert [each["name"].split("__")[-1] for each in (await client.request(method)).result[key]] == ["new"]


@feature(SUBJECT, "`tools/list_changed`, and the list after it")
async def tools_changed(walk: Walk) -> None:
    await _changes(walk, "tools", "tools/list", {"tools": [{**TOOL, "name": "new"}]})


@feature(SUBJECT, "`prompts/list_changed`, and the list after it")
async def prompts_changed(walk: Walk) -> None:
    await _changes(walk, "prompts", "prompts/list", {"prompts": [{**PROMPT, "name": "new"}]})


@feature(SUBJECT, "`resources/list_changed`, and the list after it")
async def resources_changed(walk: Walk) -> None:
    await _changes(walk, "resources", "resources/list", {"resources": [{**RESOURCE, "name": "new"}]})


@feature(SUBJECT, "`subscriptions/listen`: nothing that was not asked for", CLIENT_2026)
async def only_what_was_asked_for(walk: Walk) -> None:
    client = await walk.client()
    async with client.listening("prompts"):
        walk.server.on["tools/list"] = {"tools": [{**TOOL, "name": "newer"}], "ttlMs": 0, "cacheScope": "private"}
        walk.server.on["prompts/list"] = {"prompts": [], "ttlMs": 0, "cacheScope": "private"}
        walk.server.push("notifications/tools/list_changed")
        walk.server.push("notifications/prompts/list_changed")
        await client.noticed("notifications/prompts/list_changed")
        assert client.all_noticed("notifications/tools/list_changed") == []


@feature(SUBJECT, "updates of nothing but what was subscribed to")
async def only_what_was_subscribed(walk: Walk) -> None:
    client = await walk.client()
    async with client.listening(uris=["mem://listed"]):
        other = await walk.client()
        async with other.listening(uris=["mem://of/other"]):
            await push_until_noticed(walk, other, UPDATED, {"uri": "mem://of/other"})
            await push_until_noticed(walk, client, UPDATED, {"uri": "mem://listed"})
            assert {each["uri"] for each in client.all_noticed(UPDATED)} == {"mem://listed"}


@feature(SUBJECT, "`tools/list_changed` on a call's own stream", SERVER_2025)
async def changed_in_a_call(walk: Walk) -> None:
    async def changes(call: ServerCall) -> dict[str, Any]:
        walk.server.on["tools/list"] = {"tools": [{**TOOL, "name": "shown"}, {**TOOL, "name": "any"}]}
        await call.notify(CHANGED)
        return DONE

    walk.server.on["tools/call"] = changes
    client = await walk.client()
    async with client.listening("tools") as id:
        reply = await call(walk, client)
        assert reply.result["content"][0] == DONE["content"][0]
        params = await client.noticed(CHANGED)
        if client.era == "2026":
            assert params["_meta"][SUBSCRIPTION_ID] == id
            assert len(client.all_noticed(CHANGED)) == 1
            assert reply.notices == [] or walk.cell.way in ONE_PIPE  # where there is only one stream
        names = [tool["name"] for tool in (await client.request("tools/list")).result["tools"]]
        assert names == [walk.name("shown"), walk.name("any")]


@feature(SUBJECT, "log messages on the server's own stream", SERVER_2025, ONE_STREAM)
async def log_beside_calls(walk: Walk) -> None:
    client = await walk.client()
    async with client.listening():
        said = {"level": "error", "data": "x", "logger": "l"}
        assert await push_until_noticed(walk, client, "notifications/message", said) == said


@feature(SUBJECT, "vendor notifications on the server's own stream", SERVER_2025, ONE_STREAM)
async def vendor_beside_calls(walk: Walk) -> None:
    client = await walk.client()
    async with client.listening():
        said = {"a": [1]}
        assert await push_until_noticed(walk, client, "notifications/com.example/news", said) == said


@feature(SUBJECT, "a question on the server's own stream", SERVER_2025, ONE_STREAM)
async def question_beside_calls(walk: Walk) -> None:
    client = await walk.client({"roots": {}})
    client.answers["roots/list"] = {"result": {"roots": [{"uri": "file:///r"}]}}
    async with client.listening():
        await call(walk, client)
        session = walk.server.one("tools/call").headers["mcp-session-id"]
        answer = await walk.server.push_question(session, "roots/list")
        assert answer["result"] == {"roots": [{"uri": "file:///r"}]}


@feature(
    SUBJECT,
    "a question on the server's own stream in the middle of a call",
    SERVER_2025,
)
async def question_beside_its_call(walk: Walk) -> None:
    async def asks(call: ServerCall) -> dict[str, Any]:
        answer = await walk.server.push_question(call.headers["mcp-session-id"], "roots/list")
        return {"content": [{"type": "text", "text": answer["result"]["roots"][0]["uri"]}]}

    walk.server.on["tools/call"] = asks
    client = await walk.client({"roots": {}})
    client.answers["roots/list"] = {"result": {"roots": [{"uri": "file:///r"}]}}
    reply = await client.ask("tools/call", {"name": walk.name("any"), "arguments": {}})
    assert reply.result["content"][0]["text"] == "file:///r"


@feature(SUBJECT, "the GET stream, and 405 for it in 2026", HTTP_ONLY)
async def get_stream(walk: Walk) -> None:
    client = await walk.client()
    if client.era == "2025":
        async with client.listening():
            assert (await client.request("ping")).result == {}
    else:
        headers = {"accept": "text/event-stream", "mcp-protocol-version": "2026-07-28"}
        status, answered, _ = await client.send("GET", None, headers)
        assert status == 405
        assert "mcp-session-id" not in answered


@feature(SUBJECT, "resumption of a call's stream (`Last-Event-ID`)", HTTP_ONLY, CLIENT_2025)
async def resumption(walk: Walk) -> None:
    released = asyncio.Event()

    async def waits(call: ServerCall) -> dict[str, Any]:
        await call.notify("notifications/progress", {"progressToken": call.token, "progress": 1})
        await released.wait()
        return DONE

    walk.server.on["tools/call"] = waits
    client = await walk.client()
    asked = {"name": walk.name("any"), "arguments": {}, "_meta": {"progressToken": "p"}}
    running = await client.begin("tools/call", asked)
    await until(lambda: client.event_ids and client.notices)
    await running.hang_up()
    released.set()
    messages = [each async for each in client.resume(client.event_ids[-1])]
    assert [each["result"]["content"] for each in messages if each.get("id") == running.id] == [DONE["content"]]


@feature(SUBJECT, "DELETE ends the session, also at the server; 405 in 2026", HTTP_ONLY)
async def delete(walk: Walk) -> None:
    client = await walk.client()
    if client.era == "2026":
        assert (await client.send("DELETE", None, {"mcp-protocol-version": "2026-07-28"}))[0] == 405
        return
    await call(walk, client)
    used = walk.server.one("tools/call").headers.get("mcp-session-id")
    status, _, _ = await client.send("DELETE")
    assert status in (200, 204)
    assert (await client.request("ping")).status == 404
    if walk.cell.server == "2025":
        await until(lambda: used in walk.server.ended)


@feature(SUBJECT, "DELETE with calls under way: they are answered and cancelled at once", HTTP_ONLY, CLIENT_2025)
async def delete_in_a_call(walk: Walk) -> None:
    async def hangs(call: ServerCall) -> dict[str, Any]:
        await asyncio.Event().wait()
        return DONE

    walk.server.on["tools/call"] = hangs
    client = await walk.client()
    running = await client.begin("tools/call", {"name": walk.name("any"), "arguments": {}})
    await until(lambda: walk.server.all("tools/call"))
    assert (await client.send("DELETE"))[0] in (200, 204)
    reply = (await running.reply()).message
    assert reply.get("error", reply.get("result", {}).get("isError"))
    await until(lambda: walk.server.all("notifications/cancelled") or "tools/call" in walk.server.hung_up)


@feature(SUBJECT, "400 without a session, 404 for one that is gone", HTTP_ONLY, CLIENT_2025)
async def lost_session(walk: Walk) -> None:
    client = await walk.client()
    own, client.session = client.session, None
    assert (await client.request("ping")).status == 400
    client.session = "gone"
    assert (await client.request("ping")).status == 404
    client.session = own
    assert (await client.request("ping")).status == 200


@feature(
    SUBJECT,
    "2026 ignores a session id, and gives none",
    HTTP_ONLY,
    CLIENT_2026,
)
async def no_session_id(walk: Walk) -> None:
    client = await walk.client()
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": client.stamped({})}
    status, headers, answer = await client.send("POST", message, client.headers(message, mcp_session_id="gone"))
    assert status == 200
    assert answer["result"]["tools"]
    assert "mcp-session-id" not in headers


@feature(SUBJECT, "a session that the server lost is replaced", SERVER_2025)
async def session_replaced(walk: Walk) -> None:
    client = await walk.client()
    await client.request("resources/read", {"uri": "mem://listed"})
    walk.server.forget_sessions()
    assert (await client.request("resources/read", {"uri": "mem://listed"})).result["contents"]


@feature(SUBJECT, "batches of 2025-03-26", NO_BATCHES, CLIENT_2025)
async def batches(walk: Walk) -> None:
    client = await walk.client(version="2025-03-26")
    asked = {"name": walk.name("any"), "arguments": {}}
    batch = [
        {"jsonrpc": "2.0", "id": "a", "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        {"jsonrpc": "2.0", "id": "b", "method": "tools/call", "params": asked},
    ]
    answers = {each["id"]: each.get("result") for each in await client.send_batch(batch)}
    assert answers.keys() == {"a", "b"}
    assert answers["b"]["content"] == DONE["content"]
    if walk.cell.way == "gateway":
        assert (await client.send("POST", [{"jsonrpc": "2.0", "method": "notifications/x"}]))[0] == 202
