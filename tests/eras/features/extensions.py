"""What the protocol's core does not know: vendor methods, tasks in both forms, codes and methods of one era."""

from typing import Any

from tests.deadlines import until
from tests.eras.cells import CLIENT_2025, CLIENT_2026, LINK, SERVER_2025, SERVER_2026, NotApplicable, feature
from tests.eras.features.streams import push_until_noticed
from tests.eras.features.tools import call
from tests.eras.offers import EXTRA, TASKS_2026
from tests.eras.server import Refusal, ServerCall
from tests.eras.walk import Walk

SUBJECT = "Extensions and vendors"
TASKS = "Tasks"
ERRORS = "Errors of an era"
OF_2025 = (CLIENT_2025, NotApplicable("2026 has tasks of another form", server="2026"))
OF_2026 = (CLIENT_2026, NotApplicable("2025 has tasks of another form", server="2025"))
ID = "task ä/1"
RELATED = "io.modelcontextprotocol/related-task"
TASK: dict[str, Any] = {
    "taskId": ID,
    "status": "working",
    "statusMessage": "on it",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:01Z",
    "ttl": 60000,
    "pollInterval": 5,
    "x-unknown": 1,
}
TASK_2026: dict[str, Any] = {
    "resultType": "task",
    "taskId": ID,
    "status": "working",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:01Z",
    "ttlMs": 60000,
    "pollIntervalMs": 5,
}
ABLE = {"extensions": {TASKS_2026: {}}}


@feature(SUBJECT, "a vendor's method of the server")
async def vendor_method(walk: Walk) -> None:
    walk.server.on["com.example/do"] = {"done": [1], **EXTRA}
    client = await walk.client()
    asked = {"a": {"b": None}, "_meta": {"com.example/q": 1}}
    result = (await client.request("com.example/do", asked)).result
    assert (result["done"], result["x-unknown"], result["_meta"]["com.example/x"]) == ([1], EXTRA["x-unknown"], 1)
    sent = walk.server.one("com.example/do").params
    assert (sent["a"], sent["_meta"]["com.example/q"]) == ({"b": None}, 1)


@feature(SUBJECT, "a vendor's notification of the client", SERVER_2025, CLIENT_2025)
async def vendor_notification(walk: Walk) -> None:
    client = await walk.client()
    await call(walk, client)
    await client.notify("notifications/com.example/news", EXTRA)
    await until(lambda: walk.server.all("notifications/com.example/news"))
    assert walk.server.one("notifications/com.example/news").params == EXTRA


@feature(SUBJECT, "a vendor's question of the server", SERVER_2025, CLIENT_2025)
async def vendor_question(walk: Walk) -> None:
    async def asks(call: ServerCall) -> dict[str, Any]:
        return {"content": [], "structuredContent": await call.ask("com.example/ask", EXTRA)}

    walk.server.on["tools/call"] = asks
    client = await walk.client()
    client.answers["com.example/ask"] = {"result": {"yes": 1, **EXTRA}}
    reply = await call(walk, client)
    assert reply.result["structuredContent"]["result"] == {"yes": 1, **EXTRA}
    assert client.asked[0]["params"] == EXTRA


@feature(SUBJECT, "a method that nobody has: -32601, in 2026 with 404")
async def unknown_method(walk: Walk) -> None:
    reply = await (await walk.client()).request("com.example/nobody", {})
    assert reply.error["code"] == -32601
    assert reply.status in ((404, None) if walk.cell.client == "2026" else (200, None))


@feature(SUBJECT, "methods of the other era: -32601", NotApplicable("a link's user sends what it knows", LINK))
async def methods_of_other_era(walk: Walk) -> None:
    client = await walk.client()
    of_2025 = {
        "ping": {},
        "logging/setLevel": {"level": "info"},
        "resources/subscribe": {"uri": "mem://listed"},
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        },
    }
    of_2026 = {"subscriptions/listen": {"notifications": {}}, "server/discover": {}}
    for method, params in (of_2025 if client.era == "2026" else of_2026).items():
        reply = await client.request(method, params)
        assert reply.error["code"] == -32601, method


@feature(TASKS, "2025: a call as a task, `tasks/get`, `tasks/result`", *OF_2025)
async def task_2025(walk: Walk) -> None:
    walk.server.on |= {
        "tools/call": {"task": TASK, "_meta": {"com.example/x": 1}},
        "tasks/get": {**TASK, "status": "completed"},
        "tasks/result": {"content": [{"type": "text", "text": "done"}], "_meta": {RELATED: {"taskId": ID}}},
    }
    client = await walk.client()
    assert "call" in client.handshake["capabilities"]["tasks"]["requests"]["tools"]
    reply = await call(walk, client, "full", task={"ttl": 60000})
    assert walk.server.one("tools/call").params["task"] == {"ttl": 60000}
    own = {"taskId": reply.result["task"]["taskId"]}  # a gateway may give it another id
    assert (reply.result["task"], reply.result["_meta"]["com.example/x"]) == ({**TASK, **own}, 1)
    assert (await client.request("tasks/get", own)).result == {**TASK, **own, "status": "completed"}
    result = (await client.request("tasks/result", own)).result
    assert (result["content"][0]["text"], result["_meta"][RELATED]) == ("done", own)
    assert {walk.server.one(method).params["taskId"] for method in ("tasks/get", "tasks/result")} == {ID}


@feature(TASKS, "2025: `tasks/list`, `tasks/cancel`", *OF_2025)
async def task_list_2025(walk: Walk) -> None:
    walk.server.on |= {"tasks/list": {"tasks": [TASK]}, "tasks/cancel": {**TASK, "status": "cancelled"}}
    walk.server.on["tools/call"] = {"task": TASK}
    client = await walk.client()
    own = {"taskId": (await call(walk, client, "full", task={})).result["task"]["taskId"]}
    assert (await client.request("tasks/list", {})).result["tasks"] == [{**TASK, **own}]
    assert (await client.request("tasks/cancel", own)).result == {**TASK, **own, "status": "cancelled"}
    assert walk.server.one("tasks/cancel").params["taskId"] == ID


@feature(TASKS, "2025: `notifications/tasks/status`", *OF_2025)
async def task_status_2025(walk: Walk) -> None:
    walk.server.on["tools/call"] = {"task": TASK}
    client = await walk.client()
    async with client.listening():
        own = {"taskId": (await call(walk, client, "full", task={})).result["task"]["taskId"]}
        assert await push_until_noticed(walk, client, "notifications/tasks/status", TASK) == {**TASK, **own}


@feature(TASKS, "2026: a call that becomes a task, `tasks/get|update|cancel` with `Mcp-Name`", *OF_2026)
async def task_2026(walk: Walk) -> None:
    done = {**TASK_2026, "resultType": "complete", "status": "completed", "result": {"content": [], **EXTRA}}
    walk.server.on |= {"tools/call": TASK_2026, "tasks/get": done, "tasks/update": {}, "tasks/cancel": {}}
    client = await walk.client(ABLE)
    assert client.handshake["capabilities"]["extensions"][TASKS_2026] == {}
    result = (await call(walk, client)).result
    own = {"taskId": result["taskId"]}  # a gateway may give it another id
    assert {**TASK_2026, **own}.items() <= result.items()
    assert {**done, **own}.items() <= (await client.request("tasks/get", own)).result.items()
    answers = {"inputResponses": {"k": {"action": "decline"}}}
    assert (await client.request("tasks/update", {**own, **answers})).result["resultType"] == "complete"
    assert walk.server.one("tasks/update").params["inputResponses"] == answers["inputResponses"]
    assert (await client.request("tasks/cancel", own)).result["resultType"] == "complete"
    assert walk.server.one("tasks/cancel").params["taskId"] == ID


@feature(TASKS, "2026: `notifications/tasks` for the `taskIds` of a listen", *OF_2026)
async def task_listen_2026(walk: Walk) -> None:
    walk.server.on["tools/call"] = TASK_2026
    client = await walk.client(ABLE)
    own = (await call(walk, client)).result["taskId"]
    async with client.listening(taskIds=[own]) as id:
        await until(lambda: any(each.get("taskIds") == [ID] for each in walk.server.listens))
        params = await push_until_noticed(walk, client, "notifications/tasks", {"taskId": ID, "status": "working"})
        assert (params["taskId"], params["status"]) == (own, "working")
        assert params["_meta"] == {"io.modelcontextprotocol/subscriptionId": id}


@feature(
    TASKS,
    "a task of 2026 never reaches a 2025 client",
    NotApplicable("the client has tasks of its own", client="2026"),
    SERVER_2026,
)
async def no_task_of_2026(walk: Walk) -> None:
    async def creates(call: ServerCall) -> dict[str, Any]:
        known = call.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        return TASK_2026 if TASKS_2026 in known.get("extensions", {}) else {"content": []}

    walk.server.on["tools/call"] = creates
    client = await walk.client(ABLE)
    result = (await call(walk, client)).result
    assert result["content"] == []
    assert TASKS_2026 not in client.handshake["capabilities"].get("extensions", {})


@feature(
    ERRORS,
    "codes of 2026 (-32020 to -32099) are others for a 2025 client",
    NotApplicable("they are its own", client="2026"),
    SERVER_2026,
)
async def codes_of_2026(walk: Walk) -> None:
    for code, data in ((-32021, {"requiredCapabilities": {"sampling": {}}}), (-32020, None)):

        async def refuse(call: ServerCall, code: int = code, data: Any = data) -> dict[str, Any]:
            raise Refusal(code, "It says why", 400, **({"data": data} if data else {}))

        walk.server.on["tools/call"] = refuse
        client = await walk.client()
        error = (await call(walk, client)).error
        assert not -32099 <= error["code"] <= -32020, error
        assert "It says why" in error["message"]


@feature(ERRORS, "other codes of the server are kept, with message and data")
async def other_codes(walk: Walk) -> None:
    for code in (-32603, -32000, -32010, 7, 4001):

        async def refuse(call: ServerCall, code: int = code) -> dict[str, Any]:
            raise Refusal(code, "It says why", data={"c": code})

        walk.server.on["prompts/get"] = refuse
        client = await walk.client()
        reply = await client.request("prompts/get", {"name": walk.name("ask"), "arguments": {"a": "1"}})
        assert reply.error == {"code": code, "message": "It says why", "data": {"c": code}}
