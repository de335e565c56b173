"""Resources that no list shows are read, followed and completed at the server that has them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.names import uris
from holdfast.gateway.names.seen_uris import PER_ENTRY, SEEN_BYTES, SeenByCallers, SeenUris, ui_uris, uris_in
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Era, Refusal, Scripted
from tests.gateway.test_whole_messages import CELLS, ENVELOPE, LISTEN, UPDATED, ask


def having(era: Era, name: str, *own: str, **results: Any) -> Scripted:
    """A server with these resources, none of them listed; it refuses others."""

    def read(params: dict[str, Any]) -> dict[str, Any]:
        if params["uri"] not in own:
            raise Refusal({"code": -32602 if era == "2026" else -32002, "message": "Resource not found"})
        return {"contents": [{"uri": params["uri"], "text": name}]}

    return Scripted(era, resources__read=read, **results)


async def read(client: RawClient, era: str, uri: str) -> str:
    return (await ask(client, era, "resources/read", {"uri": uri})).result["contents"][0]["text"]


LINK = {"content": [{"type": "resource_link", "uri": "x://far", "name": "far"}]}
EMBEDDED = {"content": [{"type": "resource", "resource": {"uri": "x://far", "text": ""}}]}
IN_META = {"content": [], "_meta": {"vendor": {"ui": ["ui://far/app"]}}}


@pytest.mark.promise("gateway.unlisted-uris")
@CELLS
@pytest.mark.parametrize(
    ("shown", "uri"),
    [(LINK, "x://far"), (EMBEDDED, "x://far"), (IN_META, "ui://far/app")],
    ids=["link", "part", "meta"],
)
async def test_what_a_call_showed_is_read_at_its_server(
    tmp_path: Path, client_era: str, server_era: Era, shown: dict[str, Any], uri: str
) -> None:
    near = having(server_era, "near")
    far = having(server_era, "far", uri, tools__call=shown)
    async with near.serving(), far.serving():
        servers = {"near": near.entry, "far": far.entry}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await ask(client, client_era, "tools/call", {"name": "far__t", "arguments": {}})
            assert await read(client, client_era, uri) == "far"
            assert near.count("resources/read") == 0


@pytest.mark.promise("gateway.unlisted-uris")
@CELLS
async def test_what_lists_prompts_and_resources_link_to_is_read_at_their_server(
    tmp_path: Path, client_era: str, server_era: Era
) -> None:
    app = {"name": "t", "inputSchema": {"type": "object"}, "_meta": {"ui": {"resourceUri": "ui://far/app"}}}
    far = having(server_era, "far", "ui://far/app", "x://far", tools__list={"tools": [app]})
    far.results["prompts/list"] = {"prompts": [{"name": "p"}]}
    far.results["prompts/get"] = {"messages": [{"role": "user", "content": LINK["content"][0]}]}
    near = having(server_era, "near")
    async with near.serving(), far.serving():
        servers = {"near": near.entry, "far": far.entry}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await ask(client, client_era, "tools/list")
            assert await read(client, client_era, "ui://far/app") == "far"
            await ask(client, client_era, "prompts/get", {"name": "far__p"})
            assert await read(client, client_era, "x://far") == "far"
            assert near.count("resources/read") == 0


@pytest.mark.promise("gateway.unlisted-uris")
@CELLS
async def test_one_server_alone_has_every_uri_and_its_own_words(
    tmp_path: Path, client_era: str, server_era: Era
) -> None:
    alone = having(server_era, "alone", "skill://a/SKILL.md")
    async with alone.serving(), gateway(tmp_path, {"b": alone.entry}) as program, RawClient(program.url) as client:
        assert await read(client, client_era, "skill://a/SKILL.md") == "alone"
        error = (await ask(client, client_era, "resources/read", {"uri": "no://no"})).error
        assert error == {"code": -32602 if client_era == "2026" else -32002, "message": "Resource not found"}
        assert alone.count("resources/read") == 2


@pytest.mark.promise("gateway.unlisted-uris")
@CELLS
async def test_the_configuration_says_who_has_a_uri(tmp_path: Path, client_era: str, server_era: Era) -> None:
    one, two = having(server_era, "one", "ui://x/1", "ui://y"), having(server_era, "two", "ui://x/1", "ui://y")
    async with one.serving(), two.serving():
        servers = {"one": one.entry, "two": {**two.entry, "uris": ["ui://x/*"]}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            assert await read(client, client_era, "ui://x/1") == "two"
            assert one.count("resources/read") == 0
            assert await read(client, client_era, "ui://y") == "one"


@pytest.mark.promise("gateway.unlisted-uris")
async def test_of_two_servers_that_showed_a_uri_the_first_in_the_file_has_it(tmp_path: Path) -> None:
    one = having("2025", "one", "x://far", tools__call=LINK)
    two = having("2025", "two", "x://far", tools__call=LINK)
    async with one.serving(), two.serving():
        async with gateway(tmp_path, {"one": one.entry, "two": two.entry}) as program, RawClient(program.url) as client:
            await client.initialize()
            await client.call("two__t")
            assert await read(client, "2025", "x://far") == "two"
            await client.call("one__t")
            assert await read(client, "2025", "x://far") == "one"
            async with RawClient(program.url) as other:
                await other.initialize()
                await other.call("two__t")
                assert await read(other, "2025", "x://far") == "two"


@pytest.mark.promise("gateway.unlisted-uris")
@CELLS
async def test_after_a_restart_servers_are_asked_in_order(tmp_path: Path, client_era: str, server_era: Era) -> None:
    store = f"sqlite:///{tmp_path}/g.db"
    one, two, three = (having(server_era, name, f"x://{name}") for name in ("one", "two", "three"))
    two.results["tools/call"] = {"content": [{"type": "resource_link", "uri": "x://two", "name": "two"}]}
    three.results["resources/list"] = {"resources": [{"uri": "y://listed", "name": "y"}]}
    three.results["resources/read"] = {"contents": [{"uri": "y://other", "text": "three"}]}
    async with one.serving(), two.serving(), three.serving():
        servers = {"one": one.entry, "two": two.entry, "three": three.entry}
        async with gateway(tmp_path, servers, store=store) as program, RawClient(program.url) as client:
            await ask(client, client_era, "tools/call", {"name": "two__t", "arguments": {}})
            assert await read(client, client_era, "x://two") == "two"
            session = client.session
        async with gateway(tmp_path, servers, store=store) as program, RawClient(program.url) as client:
            client.session = session
            for _ in range(3):
                assert await read(client, client_era, "x://two") == "two"
            assert (one.count("resources/read"), two.count("resources/read")) == (1, 4)  # asked once
            assert await read(client, client_era, "y://other") == "three"  # the only one with that scheme
            assert (one.count("resources/read"), two.count("resources/read")) == (1, 4)


@pytest.mark.promise("gateway.unlisted-uris")
async def test_a_uri_that_nobody_has_and_one_that_a_silent_server_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uris, "ASK_SECONDS", 0.5)
    one, two = having("2025", "one"), having("2025", "two", "x://two")
    toolsonly = having("2025", "tools", "x://no")
    toolsonly.capabilities = {"tools": {}}
    async with one.serving(), two.serving(), toolsonly.serving():
        servers = {"one": one.entry, "two": two.entry, "tools": toolsonly.entry}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            error = (await client.ask("resources/read", {"uri": "x://no"})).error
            assert error == {"code": -32002, "message": "Resource not found", "data": {"uri": "x://no"}}
            new = (await client.ask_2026("resources/read", {"uri": "x://no"}, mcp_session_id="")).error
            assert new["code"] == -32602
            assert toolsonly.count("resources/read") == 0
            one.delays["resources/read"] = 60
            assert await read(client, "2025", "x://two") == "two"
            silent = (await client.ask("resources/read", {"uri": "x://no"})).error
            assert silent["data"]["kind"] == "NoBackend"


@pytest.mark.promise("gateway.unlisted-uris")
@CELLS
@pytest.mark.parametrize("was_seen", [True, False], ids=["seen", "asked for"])
async def test_an_unlisted_uri_is_subscribed_to(
    tmp_path: Path, client_era: str, server_era: Era, was_seen: bool
) -> None:
    near = having(server_era, "near")
    far = having(server_era, "far", "x://far", tools__call=LINK)
    async with near.serving(), far.serving():
        servers = {"near": near.entry, "far": far.entry}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            if was_seen:
                await ask(client, client_era, "tools/call", {"name": "far__t", "arguments": {}})
            if client_era == "2025":
                await ask(client, client_era, "ping")
                stream = client.stream()
            else:
                wanted = {"notifications": {"resourceSubscriptions": ["x://far", "x://no"]}, "_meta": ENVELOPE}
                body = {"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": wanted}
                stream = client.stream("POST", body, **LISTEN)
            async with stream as events:
                if client_era == "2025":
                    assert (await client.ask("resources/subscribe", {"uri": "x://far"})).result == {}
                    assert (await client.ask("resources/subscribe", {"uri": "x://no"})).error["code"] == -32002
                else:
                    given = (await events.next())["params"]["notifications"]
                    assert given == {"resourceSubscriptions": ["x://far"]}
                await until(lambda: far.listening > 0)
                far.push(UPDATED, {"uri": "x://far"})
                while (said := await events.next())["method"] != UPDATED:
                    pass
                assert said["params"]["uri"] == "x://far"
                if client_era == "2025":
                    await client.ask("resources/unsubscribe", {"uri": "x://far"})


@pytest.mark.promise("gateway.unlisted-uris")
@CELLS
async def test_an_unlisted_uri_is_completed(tmp_path: Path, client_era: str, server_era: Era) -> None:
    def complete(params: dict[str, Any]) -> dict[str, Any]:
        if params["ref"]["uri"] != "x://{far}":
            raise Refusal({"code": -32602, "message": "no"})
        return {"completion": {"values": ["v"]}}

    near, far = having(server_era, "near"), having(server_era, "far", completion__complete=complete)
    async with near.serving(), far.serving():
        servers = {"near": near.entry, "far": far.entry}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            for uri, found in (("x://{far}", True), ("x://{no}", False)):
                asked = {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "far", "value": ""}}
                answer = await ask(client, client_era, "completion/complete", asked)
                if found:
                    assert answer.result["completion"] == {"values": ["v"]}
                else:
                    assert answer.error["code"] == -32602


@pytest.mark.promise("gateway.unlisted-uris")
def test_what_was_seen_is_bounded_in_bytes_and_callers() -> None:
    seen = SeenUris()
    seen.add((f"x://{n}/" + "y" * 1000 for n in range(2_000)), "b")
    assert 0 < len(seen) <= SEEN_BYTES // (1000 + PER_ENTRY)
    assert seen.backends("x://0/" + "y" * 1000) == ()
    assert seen.backends("x://1999/" + "y" * 1000) == ("b",)
    callers = SeenByCallers()
    callers.for_caller("first").add(["x://1"], "b")
    for n in range(300):
        callers.for_caller(f"caller {n}")
    assert callers.for_caller("first").backends("x://1") == ()


@pytest.mark.promise("gateway.unlisted-uris")
def test_uris_of_any_shape_are_taken_from_results() -> None:
    odd: list[Any] = [None, 7, "x", {}, {"type": "resource"}, {"type": "resource", "resource": 3}]
    odd += [
        {"type": "resource_link"},
        {"type": "resource_link", "uri": 7},
        {"type": "resource_link", "uri": "x" * 9000},
    ]
    assert uris_in("tools/call", {"content": odd}) == []
    assert uris_in("tools/call", {"content": "x", "_meta": 3}) == []
    assert uris_in("resources/read", {"contents": [{"uri": "x://1", "_meta": {"a": "ui://2"}}]}) == ["x://1", "ui://2"]
    assert list(ui_uris({"n": [["ui://deep"], "http://x", "ui://" + "x" * 9000]})) == ["ui://deep"]
    assert len(list(ui_uris(["ui://x"] * 10_000))) < 1_000


@pytest.mark.promise("gateway.unlisted-uris")
async def test_many_ask_at_once_and_all_are_answered(tmp_path: Path) -> None:
    names = [f"x://{n}" for n in range(60)]
    one, two = having("2025", "one"), having("2025", "two", *names)
    async with one.serving(), two.serving():
        async with gateway(tmp_path, {"one": one.entry, "two": two.entry}) as program, RawClient(program.url) as client:
            await client.initialize()
            async with asyncio.timeout(patience(20)):
                assert set(await asyncio.gather(*(read(client, "2025", uri) for uri in names))) == {"two"}
