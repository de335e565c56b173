"""Tools and prompts that no list shows are called at the server whose they are, where that is clear."""

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Era, Refusal, Scripted
from tests.gateway.test_whole_messages import CELLS, ask

OWN_ERROR = {"code": -32602, "message": "no flux here", "data": {"own": True}}


def having(era: Era, *own: str) -> Scripted:
    """A server with tools and prompts of these names, none of them listed; it refuses others."""

    def take(params: dict[str, Any]) -> dict[str, Any]:
        name = params["name"] if "name" in params else params["ref"]["name"]
        if name not in own:
            raise Refusal(OWN_ERROR)
        return {"content": [], "messages": [], "completion": {"values": []}}

    server = Scripted(era, tools__call=take, prompts__get=take, completion__complete=take)
    server.results["tools/list"] = {"tools": []}
    return server


async def take_each(client: RawClient, era: str, name: str) -> list[dict[str, Any]]:
    """The answers to a tool call, a prompt and a completion of this name."""
    requests: dict[str, dict[str, Any]] = {
        "tools/call": {"name": name, "arguments": {}},
        "prompts/get": {"name": name},
        "completion/complete": {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "a", "value": ""}},
    }
    return [(await ask(client, era, method, params)).last for method, params in requests.items()]


@pytest.mark.promise("gateway.unlisted-names")
@CELLS
@pytest.mark.parametrize("mode", ["none", "priority", "prefix"])
async def test_one_server_alone_has_every_name_and_its_own_errors(
    tmp_path: Path, client_era: str, server_era: Era, mode: str
) -> None:
    before = "b__" if mode == "prefix" else ""
    async with (
        having(server_era, "flux").serving() as server,
        gateway(tmp_path, {"b": server.entry}, naming={"mode": mode}) as program,
        RawClient(program.url) as client,
    ):
        for answer in await take_each(client, client_era, f"{before}flux"):
            assert "error" not in answer, answer
        for answer in await take_each(client, client_era, f"{before}rust"):
            assert answer["error"] == OWN_ERROR


@pytest.mark.promise("gateway.unlisted-names")
@CELLS
async def test_of_several_servers_the_prefix_tells_which(tmp_path: Path, client_era: str, server_era: Era) -> None:
    async with (
        having(server_era, "flux").serving() as one,
        having(server_era, "flux", "moved").serving() as two,
        gateway(
            tmp_path, {"one": one.entry, "two": two.entry}, naming={"rename": {"two.moved": "elsewhere"}}
        ) as program,
        RawClient(program.url) as client,
    ):
        for name in ("two__flux", "elsewhere"):
            for answer in await take_each(client, client_era, name):
                assert "error" not in answer, answer
        for name in ("flux", "two__moved", "three__flux", "two__"):
            for answer in await take_each(client, client_era, name):
                assert answer["error"]["code"] == -32602
        assert one.count("tools/call") == 0
        assert [params["name"] for params in two.params_of("tools/call")] == ["flux", "moved"]


@pytest.mark.promise("gateway.unlisted-names")
async def test_what_the_configuration_denies_is_not_called(tmp_path: Path) -> None:
    async with having("2025", "flux", "rust", "calm").serving() as server:
        servers = {"b": {**server.entry, "allow": ["flux", "rust"], "deny": ["rust"]}}
        async with gateway(tmp_path, servers, naming={"mode": "none"}) as program, RawClient(program.url) as client:
            await client.initialize()
            assert "error" not in (await client.call("flux")).last
            for name in ("rust", "calm"):
                assert (await client.call(name)).error["message"] == f"Unknown tool: {name}"
            assert server.count("tools/call") == 1
