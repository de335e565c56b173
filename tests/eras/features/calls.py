"""What goes beside a call: ping, progress, logs, cancellation."""

import asyncio
from typing import Any

from tests.deadlines import until
from tests.eras.cells import (
    CLIENT_2025,
    CLIENT_2026,
    HTTP_ONLY,
    PROGRESS_VALUES,
    SERVER_2025,
    NotApplicable,
    feature,
)
from tests.eras.features.tools import call
from tests.eras.offers import EXTRA
from tests.eras.server import Cut, ServerCall
from tests.eras.walk import Walk

SUBJECT = "Beside a call"
NO_LEVEL = NotApplicable("2026 servers send none without a level", server="2026")
LEVEL = "io.modelcontextprotocol/logLevel"
DONE: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}


@feature(SUBJECT, "`ping` of the client", CLIENT_2025)
async def ping(walk: Walk) -> None:
    assert (await (await walk.client()).request("ping")).result == {}


@feature(SUBJECT, "`ping` of the server", SERVER_2025)
async def ping_of_server(walk: Walk) -> None:
    answers: list[dict[str, Any]] = []

    async def asks(call: ServerCall) -> dict[str, Any]:
        answers.append(await call.ask("ping"))
        return DONE

    walk.server.on["tools/call"] = asks
    client = await walk.client()
    client.answers["ping"] = {"result": {}}
    await client.ask("tools/call", {"name": walk.name("any"), "arguments": {}})
    assert answers[0]["result"] == {}


@feature(SUBJECT, "progress of the server: the client's token, message, total, `_meta`", PROGRESS_VALUES)
async def progress(walk: Walk) -> None:
    async def works(call: ServerCall) -> dict[str, Any]:
        said = {"progressToken": call.token, "progress": 0.5, "total": 2, "message": "half", **EXTRA}
        await call.notify("notifications/progress", said)
        await call.notify("notifications/progress", {"progressToken": call.token, "progress": 2})
        return DONE

    walk.server.on["tools/call"] = works
    client = await walk.client()
    reply = await call(walk, client, _meta={"progressToken": "mine"})
    said = {"progressToken": "mine", "progress": 0.5, "total": 2, "message": "half", **EXTRA}
    assert [each["params"] for each in reply.notices] == [said, {"progressToken": "mine", "progress": 2}]


@feature(
    SUBJECT,
    "progress of the client on a question",
    CLIENT_2025,
    NotApplicable("2026 servers ask in results, which have no progress", server="2026"),
)
async def progress_of_client(walk: Walk) -> None:
    async def asks(call: ServerCall) -> dict[str, Any]:
        await call.ask("sampling/createMessage", {"messages": [], "maxTokens": 1, "_meta": {"progressToken": "s1"}})
        return DONE

    async def answer(question: dict[str, Any]) -> dict[str, Any]:
        token = question["params"]["_meta"]["progressToken"]
        await client.notify("notifications/progress", {"progressToken": token, "progress": 1, "message": "m"})
        await until(lambda: walk.server.all("notifications/progress"))
        return {"result": {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}}

    walk.server.on["tools/call"] = asks
    client = await walk.client({"sampling": {}})
    client.answers["sampling/createMessage"] = answer
    await call(walk, client)
    sent = walk.server.one("notifications/progress").params
    assert sent == {"progressToken": "s1", "progress": 1, "message": "m"}


async def _logs(call: ServerCall) -> dict[str, Any]:
    await call.notify("notifications/message", {"level": "info", "logger": "l", "data": {"a": 1}, **EXTRA})
    return DONE


@feature(SUBJECT, "log messages, once the client has set a level")
async def log_messages(walk: Walk) -> None:
    walk.server.on["tools/call"] = _logs
    client = await walk.client()
    if client.era == "2025":
        assert (await client.request("logging/setLevel", {"level": "debug"})).result == {}
    reply = await call(walk, client, **({"_meta": {LEVEL: "debug"}} if client.era == "2026" else {}))
    assert [each["params"] for each in reply.notices] == [{"level": "info", "logger": "l", "data": {"a": 1}, **EXTRA}]


@feature(SUBJECT, "the level reaches the server")
async def log_level(walk: Walk) -> None:
    client = await walk.client()
    if client.era == "2025":
        assert (await client.request("logging/setLevel", {"level": "warning"})).result == {}
    await call(walk, client, **({"_meta": {LEVEL: "warning"}} if client.era == "2026" else {}))
    if walk.cell.server == "2026":
        assert walk.server.one("tools/call").params["_meta"][LEVEL] == "warning"
    else:
        methods = [each.method for each in walk.server.seen]
        assert methods.index("logging/setLevel") < methods.index("tools/call")
        assert walk.server.all("logging/setLevel", level="warning")


@feature(SUBJECT, "no log messages without a level", CLIENT_2026, NO_LEVEL)
async def no_log_messages(walk: Walk) -> None:
    walk.server.on["tools/call"] = _logs
    reply = await call(walk, await walk.client())
    assert reply.notices == []


@feature(SUBJECT, "each call gets log messages of its own level", CLIENT_2026, NO_LEVEL)
async def level_of_a_call(walk: Walk) -> None:
    walk.server.on["tools/call"] = _logs
    client = await walk.client()
    levels = ("error", "debug", "warning", "info")
    replies = {level: await call(walk, client, _meta={LEVEL: level}) for level in levels}
    assert [level for level in levels if replies[level].notices] == ["debug", "info"]


@feature(SUBJECT, "cancellation by the client")
async def cancellation(walk: Walk) -> None:
    async def hangs(call: ServerCall) -> dict[str, Any]:
        await call.notify("notifications/com.example/begun")
        await asyncio.Event().wait()
        return DONE

    walk.server.on["tools/call"] = hangs
    client = await walk.client()
    running = await client.begin("tools/call", {"name": walk.name("any"), "arguments": {}})
    await until(lambda: walk.server.all("tools/call") and walk.server.running)
    await running.cancel()
    if walk.cell.server == "2025":
        await until(lambda: walk.server.all("notifications/cancelled"))
        cancelled = walk.server.one("notifications/cancelled").params["requestId"]
        assert cancelled == walk.server.one("tools/call").message["id"]
    else:
        await until(lambda: "tools/call" in walk.server.hung_up)


@feature(
    SUBJECT,
    "a lost connection is no cancellation",
    HTTP_ONLY,
    NotApplicable("to hang up is to cancel in 2026", client="2026"),
)
async def hang_up(walk: Walk) -> None:
    released, finished = asyncio.Event(), asyncio.Event()

    async def waits(call: ServerCall) -> dict[str, Any]:
        await released.wait()
        finished.set()
        return DONE

    walk.server.on["tools/call"] = waits
    client = await walk.client()
    running = await client.begin("tools/call", {"name": walk.name("any"), "arguments": {}})
    await until(lambda: walk.server.all("tools/call"))
    await running.hang_up()
    assert (await client.request("ping")).result == {}
    released.set()
    await finished.wait()
    assert walk.server.all("notifications/cancelled") == []
    assert "tools/call" not in walk.server.hung_up


@feature(SUBJECT, "the server takes its question back", SERVER_2025, CLIENT_2025)
async def question_taken_back(walk: Walk) -> None:
    async def asks(call: ServerCall) -> dict[str, Any]:
        id, _ = walk.server.question()
        await call.send({"id": id, "method": "roots/list"})
        await until(lambda: client.asked)
        await call.notify("notifications/cancelled", {"requestId": id, "reason": "too late"})
        return DONE

    async def never(question: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    walk.server.on["tools/call"] = asks
    client = await walk.client({"roots": {}})
    client.answers["roots/list"] = never
    reply = await call(walk, client)
    assert reply.result["content"] == DONE["content"]
    assert (await client.noticed("notifications/cancelled"))["requestId"] == client.asked[0]["id"]


@feature(SUBJECT, "vendor notifications on a call's stream")
async def vendor_notification(walk: Walk) -> None:
    async def notifies(call: ServerCall) -> dict[str, Any]:
        await call.notify("notifications/com.example/news", EXTRA)
        return DONE

    walk.server.on["tools/call"] = notifies
    reply = await call(walk, await walk.client())
    assert [(each["method"], each["params"]) for each in reply.notices] == [("notifications/com.example/news", EXTRA)]


@feature(SUBJECT, "an answer's stream that breaks is resumed at the server", SERVER_2025)
async def resumed_at_server(walk: Walk) -> None:
    async def cut(call: ServerCall) -> dict[str, Any]:
        await call.send({"method": "notifications/com.example/news", "params": {"n": 1}}, event_id="e-1")
        walk.server.rest.append({"id": call.id, "result": {"content": [{"type": "text", "text": "the rest"}]}})
        raise Cut

    walk.server.on["tools/call"] = cut
    reply = await call(walk, await walk.client())
    assert reply.result["content"][0]["text"] == "the rest"
    assert walk.server.resumed == ["e-1"]
    assert len(reply.notices) == 1


@feature(SUBJECT, "ids and progress tokens: strings, 0, numbers")
async def ids(walk: Walk) -> None:
    async def works(call: ServerCall) -> dict[str, Any]:
        await call.notify("notifications/progress", {"progressToken": call.token, "progress": 1})
        return DONE

    walk.server.on["tools/call"] = works
    client = await walk.client()
    for id in ("a/b ä", 0, "0", 2**40):
        client.ids = iter([id])
        reply = await call(walk, client, _meta={"progressToken": id})
        assert repr(reply.message["id"]) == repr(id)
        assert [repr(each["params"]["progressToken"]) for each in reply.notices] == [repr(id)]


@feature(SUBJECT, "calls of two clients with the same ids and tokens, answered in another order")
async def two_clients(walk: Walk) -> None:
    async def works(call: ServerCall) -> dict[str, Any]:
        name = call.params["arguments"]["name"]
        begun.append(name)
        await until(lambda: len(begun) == 2)
        if name == begun[0]:
            await second_is_done.wait()
        await call.notify("notifications/progress", {"progressToken": call.token, "progress": 1, "message": name})
        return {"content": [{"type": "text", "text": name}]}

    begun, second_is_done = list[str](), asyncio.Event()
    walk.server.on["tools/call"] = works
    running: dict[str, Any] = {}
    for name in ("ada", "bob"):
        client = await walk.client()
        client.ids = iter(["same"])
        asked = {"name": walk.name("any"), "arguments": {"name": name}, "_meta": {"progressToken": "same"}}
        running[name] = await client.begin("tools/call", asked)
        await until(lambda name=name: name in begun)
    for name in ("bob", "ada"):
        reply = await running[name].reply()
        assert reply.result["content"][0]["text"] == name
        assert [each["params"]["message"] for each in reply.notices] == [name]
        second_is_done.set()
