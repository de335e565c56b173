"""What a server asks its client in the middle of a call: requests in 2025, `input_required` in 2026."""

from typing import Any

from tests.eras.cells import CLIENT_2025, CLIENT_2026, LINK, SERVER_2025, SERVER_2026, NotApplicable, feature
from tests.eras.features.streams import push_until_noticed
from tests.eras.offers import EXTRA
from tests.eras.server import InputRequired, Refusal, ServerCall
from tests.eras.walk import Walk

SUBJECT = "Questions of the server"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "title": "Name", "default": "x"}, "n": {"enum": ["a", "b"]}},
    "required": ["name"],
}
FORM: dict[str, Any] = {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA, **EXTRA}
URL: dict[str, Any] = {
    "mode": "url",
    "message": "Go there.",
    "url": "https://x.example/",
    "elicitationId": "e1",
    **EXTRA,
}
TOOL_USE = {"type": "tool_use", "id": "u1", "name": "w", "input": {"a": 1}}
SAMPLING: dict[str, Any] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "maxTokens": 9,
    "systemPrompt": "Be brief.",
    "modelPreferences": {"hints": [{"name": "m"}], "costPriority": 0.1},
    "tools": [{"name": "w", "inputSchema": {"type": "object"}}],
    "toolChoice": {"mode": "auto"},
    **EXTRA,
}
SAMPLED = {"role": "assistant", "content": [TOOL_USE], "model": "m", "stopReason": "toolUse", **EXTRA}
ROOTS = {"roots": [{"uri": "file:///r", "name": "r", **EXTRA}]}
ACCEPTED = {"action": "accept", "content": {"name": "ada", "n": "b"}, **EXTRA}
ALL = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {"listChanged": True}}
ERRORS = NotApplicable("2026 clients answer with results only", client="2026")
BOTH_2026 = (CLIENT_2026, SERVER_2026)


async def _ask(
    walk: Walk, method: str, params: dict[str, Any] | None, answer: dict[str, Any], *, by: str = "tools/call"
) -> None:
    """The server asks one question in a call, and gets this answer."""
    answers: list[Any] = []

    async def asks(call: ServerCall) -> dict[str, Any]:
        answers.append((await call.questions({"one": (method, params)}))["one"])
        return {"content": [], "messages": [], "contents": [{"uri": "mem://listed", "text": "asked"}], **kept}

    kept = {"ttlMs": 0, "cacheScope": "private"} if walk.cell.server == "2026" else {}
    walk.server.on[by] = asks
    client = await walk.client(ALL)
    client.answers[method] = {"result": answer}
    asked = {
        "tools/call": {"name": walk.name("any"), "arguments": {}},
        "prompts/get": {"name": walk.name("ask"), "arguments": {"a": "1"}},
        "resources/read": {"uri": "mem://listed"},
    }
    reply = await client.ask(by, asked[by])
    assert reply.result.get("resultType") == ("complete" if client.era == "2026" else None)
    assert answers == [answer]
    (question,) = client.asked
    assert question["method"] == method
    if params is not None:
        assert question["params"] == params


@feature(SUBJECT, "form elicitation: schema, `_meta`, unknown members, content of the answer")
async def form(walk: Walk) -> None:
    await _ask(walk, "elicitation/create", FORM, ACCEPTED)


@feature(SUBJECT, "form elicitation: declined")
async def declined(walk: Walk) -> None:
    await _ask(walk, "elicitation/create", FORM, {"action": "decline"})


@feature(SUBJECT, "URL elicitation")
async def url(walk: Walk) -> None:
    await _ask(walk, "elicitation/create", URL, {"action": "accept"})


@feature(SUBJECT, "sampling with tools")
async def sampling(walk: Walk) -> None:
    await _ask(walk, "sampling/createMessage", SAMPLING, SAMPLED)


@feature(SUBJECT, "roots")
async def roots(walk: Walk) -> None:
    await _ask(walk, "roots/list", None, ROOTS)


@feature(SUBJECT, "a question in `prompts/get`")
async def in_prompt(walk: Walk) -> None:
    await _ask(walk, "elicitation/create", FORM, ACCEPTED, by="prompts/get")


@feature(SUBJECT, "a question in `resources/read`")
async def in_resource(walk: Walk) -> None:
    await _ask(walk, "elicitation/create", FORM, ACCEPTED, by="resources/read")


@feature(SUBJECT, "two questions at once")
async def two_at_once(walk: Walk) -> None:
    async def asks(call: ServerCall) -> dict[str, Any]:
        answers.append(await call.questions({"who": ("elicitation/create", FORM), "where": ("roots/list", None)}))
        return {"content": []}

    answers: list[Any] = []
    walk.server.on["tools/call"] = asks
    client = await walk.client(ALL)
    client.answers |= {"elicitation/create": {"result": ACCEPTED}, "roots/list": {"result": ROOTS}}
    await client.ask("tools/call", {"name": walk.name("any"), "arguments": {}})
    assert answers == [{"who": ACCEPTED, "where": ROOTS}]


@feature(SUBJECT, "three rounds of questions")
async def rounds(walk: Walk) -> None:
    async def asks(call: ServerCall) -> dict[str, Any]:
        found = [
            (await call.questions({"k": ("elicitation/create", {**FORM, "message": each})}))["k"] for each in "abc"
        ]
        return {"content": [], "structuredContent": {"found": found}}

    async def answer(question: dict[str, Any]) -> dict[str, Any]:
        return {"result": {"action": "accept", "content": {"name": question["params"]["message"]}}}

    walk.server.on["tools/call"] = asks
    client = await walk.client(ALL)
    client.answers["elicitation/create"] = answer
    reply = await client.ask("tools/call", {"name": walk.name("any"), "arguments": {}})
    assert [each["content"]["name"] for each in reply.result["structuredContent"]["found"]] == ["a", "b", "c"]


@feature(SUBJECT, "the client answers with an error", ERRORS)
async def error_answer(walk: Walk) -> None:
    async def asks(call: ServerCall) -> dict[str, Any]:
        return {"content": [], **(await call.questions({"one": ("elicitation/create", FORM)}))["one"]}

    walk.server.on["tools/call"] = asks
    client = await walk.client(ALL)
    client.answers["elicitation/create"] = {"error": {"code": -1, "message": "User rejected it"}}
    reply = await client.ask("tools/call", {"name": walk.name("any"), "arguments": {}})
    assert (reply.error["code"], reply.error["message"]) == (-1, "User rejected it")


@feature(SUBJECT, "a question that the client has not declared: -32021 in 2026, no question in 2025")
async def not_declared(walk: Walk) -> None:
    required = {"elicitation": {}}

    async def asks(call: ServerCall) -> dict[str, Any]:
        if walk.cell.server == "2026":
            known = call.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            assert "elicitation" not in known
            raise Refusal(-32021, "Missing capability", 400, data={"requiredCapabilities": required})
        await call.questions({"one": ("elicitation/create", FORM)})
        return {"content": []}

    walk.server.on["tools/call"] = asks
    client = await walk.client({"roots": {}})
    reply = await client.ask("tools/call", {"name": walk.name("any"), "arguments": {}})
    if client.era == "2026":
        assert reply.error["code"] == -32021
        assert "elicitation" in reply.error["data"]["requiredCapabilities"]
    else:
        assert not -32099 <= reply.error["code"] <= -32020
    assert walk.cell.way in LINK or client.asked == []


@feature(SUBJECT, "`requestState` comes back to the byte", *BOTH_2026)
async def request_state(walk: Walk) -> None:
    state = 'ä"\\ \u2028\t' + "s" * 2000

    async def asks(call: ServerCall) -> dict[str, Any]:
        if "requestState" not in call.params:
            raise InputRequired({"resultType": "input_required", "inputRequests": asked, "requestState": state})
        states.append(call.params["requestState"])
        return {"content": []}

    asked, states = {"k": {"method": "roots/list"}}, list[str]()
    walk.server.on["tools/call"] = asks
    client = await walk.client(ALL)
    client.answers["roots/list"] = {"result": ROOTS}
    await client.ask("tools/call", {"name": walk.name("any"), "arguments": {}})
    assert states == [state]


@feature(SUBJECT, "`input_required` without questions: the same request again", SERVER_2026)
async def state_only(walk: Walk) -> None:
    async def later(call: ServerCall) -> dict[str, Any]:
        if call.params.get("requestState") != "later":
            raise InputRequired({"resultType": "input_required", "requestState": "later"})
        return {"content": [{"type": "text", "text": "later"}]}

    walk.server.on["tools/call"] = later
    client = await walk.client(ALL)
    reply = await client.ask("tools/call", {"name": walk.name("any"), "arguments": {}})
    assert reply.result["content"][0]["text"] == "later"


@feature(SUBJECT, "a changed or used `requestState` is refused: -32602", CLIENT_2026, SERVER_2025)
async def false_state(walk: Walk) -> None:
    async def asks(call: ServerCall) -> dict[str, Any]:
        await call.questions({"one": ("roots/list", None)})
        return {"content": []}

    walk.server.on["tools/call"] = asks
    client = await walk.client(ALL)
    client.answers["roots/list"] = {"result": ROOTS}
    asked = {"name": walk.name("any"), "arguments": {}}
    wanted = (await client.request("tools/call", asked)).result
    again = {**asked, **await client.answers_to(wanted)}
    changed = {**again, "requestState": again["requestState"][:-4] + "AAAA"}
    assert (await client.request("tools/call", changed)).error["code"] == -32602
    assert (await client.request("tools/call", again)).result["resultType"] == "complete"
    assert (await client.request("tools/call", again)).error["code"] == -32602
    assert len(walk.server.all("tools/call")) == 1


@feature(SUBJECT, "-32042, URLs to visit first: an error in 2025, `input_required` in 2026", SERVER_2025)
async def urls_first(walk: Walk) -> None:
    async def refuse(call: ServerCall) -> dict[str, Any]:
        if len(walk.server.all("tools/call")) > 1:
            return {"content": [{"type": "text", "text": "visited"}]}
        raise Refusal(-32042, "Visit them", data={"elicitations": [URL]})

    walk.server.on["tools/call"] = refuse
    client = await walk.client(ALL)
    client.answers["elicitation/create"] = {"result": {"action": "accept"}}
    asked = {"name": walk.name("any"), "arguments": {}}
    if client.era == "2025":
        error = (await client.request("tools/call", asked)).error
        assert (error["code"], error["data"]) == (-32042, {"elicitations": [URL]})
    else:
        reply = await client.ask("tools/call", asked)
        assert reply.result["content"][0]["text"] == "visited"
        assert client.asked[0]["params"]["url"] == URL["url"]


@feature(SUBJECT, "`elicitation/complete`", SERVER_2025, CLIENT_2025)
async def elicitation_complete(walk: Walk) -> None:
    client = await walk.client(ALL)
    async with client.listening():
        said = {"elicitationId": "e1", **EXTRA}
        assert await push_until_noticed(walk, client, "notifications/elicitation/complete", said) == said


@feature(SUBJECT, "`roots/list_changed` reaches the server", SERVER_2025, CLIENT_2025)
async def roots_changed(walk: Walk) -> None:
    from tests.deadlines import until

    client = await walk.client(ALL)
    await client.request("tools/call", {"name": walk.name("any"), "arguments": {}})
    await client.notify("notifications/roots/list_changed")
    await until(lambda: walk.server.all("notifications/roots/list_changed"))
