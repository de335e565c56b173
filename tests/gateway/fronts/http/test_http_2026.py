"""The front as 2026 clients see it: envelope and headers, keys of sessions, subscriptions, the four cells of eras."""

import asyncio
from pathlib import Path

import pytest
from fastmcp import Client as FastClient
from mcp import Client

from holdfast.gateway.auth import new_token
from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway

PROTOCOL = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


@pytest.mark.promise("gateway.front-2026")
async def test_a_stateless_call_has_its_envelope(tmp_path: Path) -> None:
    async with FaultServer(era="2026") as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            found = (await client.ask_2026("server/discover")).result
            assert found["supportedVersions"] == ["2026-07-28"]
            assert {"resultType", "ttlMs", "cacheScope", "capabilities"} <= set(found)
            listed = (await client.ask_2026("tools/list")).result
            assert listed["resultType"] == "complete"
            assert listed["cacheScope"] == "private"
            called = await client.call_2026("counter__echo", text="moss")
            assert called.text == "moss"
            assert called.result["resultType"] == "complete"
            assert "io.modelcontextprotocol/serverInfo" in called.result["_meta"]
            assert "dev.holdfast/notice" not in called.result["_meta"]
            assert "mcp-session-id" not in called.headers


@pytest.mark.promise("gateway.front-2026")
async def test_a_wrong_envelope_gets_its_code(tmp_path: Path) -> None:
    async with FaultServer(era="2026") as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            call = {"name": "counter__echo", "arguments": {}}
            for code, headers in (
                (-32020, {"mcp_method": "tools/list"}),
                (-32020, {"mcp_name": "another"}),
                (-32020, {"mcp_method": ""}),
                (-32020, {"mcp_protocol_version": ""}),
                (-32020, {"mcp_protocol_version": "2025-11-25"}),
            ):
                answer = await client.ask_2026("tools/call", call, **headers)
                assert (answer.status, answer.error["code"]) == (400, code), headers
            bare = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            headers = client.headers(mcp_protocol_version="2026-07-28", mcp_method="tools/list")
            answer = await client.send(bare, headers=headers)
            assert (answer.status, answer.error["code"]) == (400, -32602)
            odd = await client.ask_2026(
                "tools/call", {**call, "_meta": {PROTOCOL: "2099-01-01"}}, mcp_protocol_version="2099-01-01"
            )
            assert (odd.status, odd.error["code"]) == (400, -32022)
            assert odd.error["data"]["supported"] == ["2026-07-28"]
            unknown = await client.ask_2026("no/such")
            assert (unknown.status, unknown.error["code"]) == (404, -32601)
            assert (await client.ask_2026("ping")).status == 404  # 2026 has none
            for verb in ("GET", "DELETE"):
                assert (await client.send(b"", verb, client.headers(mcp_protocol_version="2026-07-28"))).status == 405
            note = {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"_meta": {PROTOCOL: "2026-07-28"}},
            }
            assert (await client.send(note)).status == 202


@pytest.mark.promise("gateway.eras")
@pytest.mark.parametrize("backend_era", ["2025", "2026"])
@pytest.mark.parametrize("front", ["2025", "2026"])
async def test_lists_and_calls_in_all_four_cells(tmp_path: Path, front: str, backend_era: str) -> None:
    from tests.links.server_process import RealServer

    async with RealServer("sdk") as real:
        servers = {"real": {"url": real.url, "era": backend_era}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            assert program.gateway is not None
            await until(lambda: program.gateway is not None and program.gateway.table.tools, 20)
            ask = client.ask if front == "2025" else client.ask_2026
            if front == "2025":
                await client.initialize()
            assert "real__add" in [tool["name"] for tool in (await ask("tools/list")).result["tools"]]
            added = await ask("tools/call", {"name": "real__add", "arguments": {"a": 2, "b": 3}})
            assert added.text == "5"
            assert ("resultType" in added.result) == (front == "2026")
            assert [each["uri"] for each in (await ask("resources/list")).result["resources"]] == ["note://one"]
            templates = (await ask("resources/templates/list")).result["resourceTemplates"]
            assert [each["uriTemplate"] for each in templates] == ["note://{name}"]
            read = (await ask("resources/read", {"uri": "note://two"})).result
            assert read["contents"][0]["text"] == "note two"
            assert ("ttlMs" in read) == (front == "2026")
            assert [each["name"] for each in (await ask("prompts/list")).result["prompts"]] == ["real__greet"]
            prompt = (await ask("prompts/get", {"name": "real__greet", "arguments": {"name": "moss"}})).result
            assert "moss" in str(prompt["messages"])
            ref = {"type": "ref/prompt", "name": "real__greet"}
            complete = await ask("completion/complete", {"ref": ref, "argument": {"name": "name", "value": "m"}})
            assert complete.result["completion"]["values"] == ["moss", "myrtle"]
            missing = await ask("resources/read", {"uri": "elsewhere://x"})
            # The SDK's server says -32602 in both eras. Its word stands but where it is the other era's.
            assert missing.error["code"] == (-32002 if (front, backend_era) == ("2025", "2026") else -32602)


@pytest.mark.promise("gateway.counts")
async def test_clients_that_speak_both_eras_are_steered_and_count(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with Client(program.url) as one, Client(program.url) as other:
            for client in (one, other):
                counted = [(await client.call_tool("counter__count", {})).content[0].text for _ in range(3)]  # type: ignore[union-attr]
                assert counted == ["1", "2", "3"]
        async with FastClient(program.url) as fast:
            counted = [(await fast.call_tool("counter__count", {})).content[0].text for _ in range(3)]  # type: ignore[union-attr]
            assert counted == ["1", "2", "3"]


@pytest.mark.promise("gateway.counts")
async def test_a_2026_client_with_a_handle_counts(tmp_path: Path) -> None:
    sessions = {"handles": True}
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, sessions=sessions) as program:
        async with RawClient(program.url) as client:
            assert program.gateway is not None
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            assert (await client.ask_2026("server/discover")).status == 200  # nobody is steered away from handles
            tools = {tool["name"]: tool for tool in (await client.ask_2026("tools/list")).result["tools"]}
            assert "30 minutes" in tools["holdfast__open_session"]["description"]
            assert "holdfast_session" in tools["counter__count"]["inputSchema"]["properties"]
            handles = [
                (await client.call_2026("holdfast__open_session")).result["structuredContent"]["holdfast_session"]
                for _ in range(2)
            ]
            for handle in handles:
                counted = [(await client.call_2026("counter__count", holdfast_session=handle)).text for _ in range(3)]
                assert counted == ["1", "2", "3"]
            sent = [request.message for request in http.requests if request.method == "tools/call"]
            assert all("holdfast_session" not in str(message) for message in sent)
            ended = await client.call_2026("holdfast__end_session", holdfast_session=handles[0])
            assert not ended.result.get("isError")
            for wrong in (handles[0], "guessed", 7):
                refused = await client.call_2026("counter__count", holdfast_session=wrong)
                assert refused.result["isError"]
                assert "holdfast__open_session" in refused.text
            # A handle is no 2025 session.
            client.session = handles[1]
            assert (await client.ask("ping")).status == 404
            client.session = None
            # Without a key a call has a session of its own, and says so.
            alone = await client.call_2026("counter__count")
            assert alone.text == "1"
            assert "session of its own" in alone.result["content"][-1]["text"]
            assert "dev.holdfast/notice" in alone.result["_meta"]
        begun = [request for request in http.requests if request.method == "initialize"]
        assert len(begun) == 4  # two handles, the call without one, and the gateway's own for lists: none twice
        # The other handle's, and the gateway's own. A server that is slow to end one is waited for only so long.
        await until(lambda: len(http.sessions.sessions) == 2)


@pytest.mark.promise("gateway.counts")
async def test_a_2026_client_with_a_header_or_a_principal_counts(tmp_path: Path) -> None:
    (alice, alice_hash), (bob, bob_hash) = new_token(), new_token()
    auth = {"tokens": [{"hash": alice_hash, "principal": "alice"}, {"hash": bob_hash, "principal": "bob"}]}
    async with FaultServer() as http:
        servers = {"own": {"url": http.url}, "mine": {"url": http.url, "reuse": "principal"}}
        sessions = {"header": "X-Conversation"}
        async with gateway(tmp_path, servers, auth=auth, sessions=sessions) as program:
            async with RawClient(program.url, alice) as one, RawClient(program.url, bob) as other:
                assert program.gateway is not None
                await until(lambda: program.gateway is not None and len(program.gateway.table.tools) > 10)
                for client in (one, other):
                    for key in ("a", "b"):
                        call = {"name": "own__count", "arguments": {}}
                        counted = [
                            (await client.ask_2026("tools/call", call, x_conversation=key)).text for _ in range(3)
                        ]
                        assert counted == ["1", "2", "3"]
                    counted = [(await client.call_2026("mine__count")).text for _ in range(3)]
                    assert counted == ["1", "2", "3"]
                both = await asyncio.gather(
                    *(one.ask_2026("tools/call", {"name": "own__count"}, x_conversation="new") for _ in range(10))
                )
                assert sorted(int(answer.text) for answer in both) == list(range(1, 11))  # one session, begun once


@pytest.mark.promise("gateway.front-2026")
async def test_hanging_up_cancels_a_2026_call(tmp_path: Path) -> None:
    async with FaultServer(era="2026") as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
            assert program.gateway is not None
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            waiting = asyncio.create_task(client.call_2026("counter__wait"))
            await until(lambda: any(request.method == "tools/call" for request in http.requests))
            waiting.cancel()
            await until(lambda: waiting.done())
            common = program.gateway.backends["counter"].links.common().link
            await until(lambda: common.statistics().in_flight == 0)


@pytest.mark.promise("gateway.front-2026")
async def test_a_subscription_hears_that_lists_changed(tmp_path: Path) -> None:
    async with FaultServer(era="2026") as http, FaultServer() as late:
        servers = {"counter": {"url": http.url}, "late": {"url": late.url}}
        await late.refuse()
        async with gateway(tmp_path, servers, sessions={"steer": False}) as program, RawClient(program.url) as client:
            body = {
                "jsonrpc": "2.0",
                "id": "sub",
                "method": "subscriptions/listen",
                "params": {
                    "_meta": {PROTOCOL: "2026-07-28", CAPABILITIES: {}},
                    "notifications": {"toolsListChanged": True},
                },
            }
            assert program.gateway is not None
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "subscriptions/listen"}
            async with client.stream("POST", body, **headers) as events:
                agreed = await events.next()
                assert agreed["method"] == "notifications/subscriptions/acknowledged"
                assert agreed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "sub"
                await late.listen()
                backend = program.gateway.backends["late"]
                backend.health.next_try = 0.0
                await backend.check()
                changed = await events.next()
                assert changed["method"] == "notifications/tools/list_changed"
            names = [tool["name"] for tool in (await client.ask_2026("tools/list")).result["tools"]]
            assert "late__count" in names
            await until(lambda: program.gateway is not None and not len(program.gateway.listeners))


@pytest.mark.promise("gateway.counts")
async def test_handles_headers_and_principals_count_on_after_a_restart(tmp_path: Path) -> None:
    token, digest = new_token()
    auth = {"tokens": [{"hash": digest, "principal": "alice"}]}
    store, handle = f"sqlite:///{tmp_path}/s.db", ""
    async with FaultServer() as http:
        servers = {"own": {"url": http.url}, "mine": {"url": http.url, "reuse": "principal"}}
        sessions = {"handles": True, "header": "x-key"}
        for turn in range(3):
            async with gateway(tmp_path, servers, auth=auth, sessions=sessions, store=store) as program:
                async with RawClient(program.url, token) as client:
                    if not handle:
                        opened = await client.call_2026("holdfast__open_session")
                        handle = opened.result["structuredContent"]["holdfast_session"]
                    by_key = await client.ask_2026("tools/call", {"name": "own__count"}, x_key="k")
                    by_handle = await client.call_2026("own__count", holdfast_session=handle)
                    by_principal = await client.call_2026("mine__count")
                    assert [each.text for each in (by_key, by_handle, by_principal)] == [str(turn + 1)] * 3


@pytest.mark.promise("gateway.front-2026")
async def test_a_streaming_call_whose_session_ends_has_an_answer(tmp_path: Path) -> None:
    async with FaultServer(answers="sse") as http:
        settings = {"handles": True, "drain": 0.3}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=settings) as program:
            async with RawClient(program.url) as client:
                opened = await client.call_2026("holdfast__open_session")
                handle = opened.result["structuredContent"]["holdfast_session"]
                waiting = asyncio.create_task(client.call_2026("counter__wait", holdfast_session=handle))
                await until(lambda: any("wait" in str(request.message) for request in http.requests))
                await client.call_2026("holdfast__end_session", holdfast_session=handle)
                answer = await waiting
                assert "error" in answer.last or answer.result.get("isError")
