"""Every member of a message passes the gateway, in all four cells: `_meta`, titles, unknown fields, code 0."""

from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.gateway.clients import Answer, RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Era, Refusal, Scripted

CELLS = pytest.mark.parametrize(
    ("client_era", "server_era"), [(client, server) for client in ("2025", "2026") for server in ("2025", "2026")]
)
UPDATED = "notifications/resources/updated"
LISTEN = {"mcp_protocol_version": "2026-07-28", "mcp_method": "subscriptions/listen"}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
EXTRA = {"title": "A title", "x-unknown": {"a": [1, None]}, "_meta": {"vendor/x": 1}}
"""What stands in a message beside what the protocol needs."""


async def ask(client: RawClient, era: str, method: str, params: dict[str, Any] | None = None) -> Answer:
    if era == "2026":
        return await client.ask_2026(method, params)
    if client.session is None:
        await client.initialize()
    return await client.ask(method, params)


def has_extra(said: dict[str, Any]) -> bool:
    return (
        said["title"] == EXTRA["title"] and said["x-unknown"] == EXTRA["x-unknown"] and said["_meta"]["vendor/x"] == 1
    )


@pytest.mark.promise("gateway.whole-messages")
@CELLS
@pytest.mark.parametrize(
    "error", [{"code": 0, "message": "zero"}, {"code": -1, "message": ""}, {"code": 7, "message": "m", "data": None}]
)
async def test_an_error_keeps_its_code_message_and_data(
    tmp_path: Path, client_era: str, server_era: Era, error: dict[str, Any]
) -> None:
    def refuse(_: object) -> dict[str, Any]:
        raise Refusal(error)

    async with (
        Scripted(server_era, tools__call=refuse).serving() as server,
        gateway(tmp_path, {"b": server.entry}) as program,
        RawClient(program.url) as client,
    ):
        answer = await ask(client, client_era, "tools/call", {"name": "b__t", "arguments": {}})
        assert answer.error == error


@pytest.mark.promise("gateway.whole-messages")
@CELLS
async def test_items_requests_and_results_keep_all_their_members(
    tmp_path: Path, client_era: str, server_era: Era
) -> None:
    icons = [{"src": "https://x.example/i.png", "sizes": ["any"]}]
    extra = {**EXTRA, "icons": icons}
    server = Scripted(
        server_era,
        tools__list={"tools": [{"name": "t", "inputSchema": {"type": "object"}, "execution": {"x": 1}, **extra}]},
        prompts__list={"prompts": [{"name": "p", "arguments": [{"name": "a", **EXTRA}], **extra}]},
        resources__list={"resources": [{"uri": "x://r", "name": "r", "size": 3, **extra}]},
        resources__templates__list={"resourceTemplates": [{"uriTemplate": "x://t/{n}", "name": "n", **extra}]},
        tools__call={"content": [{"type": "new-kind", **EXTRA}], **EXTRA},
        prompts__get={"messages": [{"role": "user", "content": {"type": "text", "text": "x", **EXTRA}}], **EXTRA},
        resources__read={"contents": [{"uri": "x://r", "text": "x", **EXTRA}], **EXTRA},
        completion__complete={"completion": {"values": ["x"], "x-unknown": 1}, **EXTRA},
    )
    async with server.serving(), gateway(tmp_path, {"b": server.entry}) as program, RawClient(program.url) as client:
        for method, key in (
            ("tools/list", "tools"),
            ("prompts/list", "prompts"),
            ("resources/list", "resources"),
            ("resources/templates/list", "resourceTemplates"),
        ):
            (item,) = (await ask(client, client_era, method)).result[key]
            assert has_extra(item)
            assert item["icons"] == icons
        for method, named in (
            ("tools/call", {"name": "b__t", "arguments": {}}),
            ("prompts/get", {"name": "b__p", "arguments": {"a": "1"}}),
            ("resources/read", {"uri": "x://r"}),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": "b__p", "title": "A title"}, "argument": {}},
            ),
        ):
            meta = {"vendor/q": 2, **(ENVELOPE if client_era == "2026" else {})}
            asked = {**named, "x-unknown": 1, "_meta": meta}
            result = (await ask(client, client_era, method, asked)).result
            assert has_extra(result)
            (sent,) = server.params_of(method)
            assert sent["x-unknown"] == 1
            assert sent["_meta"]["vendor/q"] == 2
        assert sent["ref"]["title"] == "A title"


@pytest.mark.promise("gateway.whole-messages")
@CELLS
async def test_notifications_of_a_call_keep_all_their_members(tmp_path: Path, client_era: str, server_era: Era) -> None:
    server = Scripted(server_era)
    server.before = [
        {"method": "notifications/progress", "params": {"progressToken": "@TOKEN@", "progress": 1, **EXTRA}},
        {"method": "notifications/message", "params": {"level": "info", "data": "x", **EXTRA}},
        {"method": "notifications/vendor", "params": EXTRA},
    ]
    async with server.serving(), gateway(tmp_path, {"b": server.entry}) as program, RawClient(program.url) as client:
        meta: dict[str, Any] = {"progressToken": "mine"}
        if client_era == "2026":
            meta |= {**ENVELOPE, "io.modelcontextprotocol/logLevel": "debug"}
        asked = {"name": "b__t", "arguments": {}, "_meta": meta}
        *said, _ = (await ask(client, client_era, "tools/call", asked)).messages
        assert [each["method"] for each in said] == [each["method"] for each in server.before]
        assert all(has_extra(each["params"]) for each in said)
        assert said[0]["params"]["progressToken"] == "mine"


@pytest.mark.promise("gateway.whole-messages")
@CELLS
async def test_an_update_of_a_resource_keeps_all_its_members(tmp_path: Path, client_era: str, server_era: Era) -> None:
    server = Scripted(server_era, resources__list={"resources": [{"uri": "x://r", "name": "r"}]})
    async with server.serving(), gateway(tmp_path, {"b": server.entry}) as program, RawClient(program.url) as client:
        if client_era == "2025":
            await client.initialize()
            stream = client.stream()
        else:
            wanted = {"notifications": {"resourceSubscriptions": ["x://r"]}, "_meta": ENVELOPE}
            body = {"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": wanted}
            stream = client.stream("POST", body, **LISTEN)
        async with stream as events:
            before = server.listening
            if client_era == "2025":
                asked = {"uri": "x://r", "_meta": {"vendor/q": 2}}
                assert (await client.ask("resources/subscribe", asked)).result == {}
                if server_era == "2025":
                    assert server.params_of("resources/subscribe") == [asked]
            else:
                acknowledged = await events.next()
                assert acknowledged["params"]["notifications"] == {"resourceSubscriptions": ["x://r"]}
            await until(lambda: server.listening > 0 and (server_era == "2025" or server.listening >= before))
            server.push(UPDATED, {"uri": "x://r", **EXTRA})
            while (said := await events.next())["method"] != UPDATED:
                pass
            assert has_extra(said["params"])
            ours = {"vendor/x": 1} | ({"io.modelcontextprotocol/subscriptionId": 9} if client_era == "2026" else {})
            assert said["params"]["_meta"] == ours
