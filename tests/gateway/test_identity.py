"""What servers and clients say of themselves passes the gateway: capabilities, `serverInfo`, instructions, `_meta`."""

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.config.file import ServerEntry
from holdfast.gateway.server import Program
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import PATIENT, config_of, gateway
from tests.gateway.raw_backend import raw_program
from tests.gateway.scripted_backend import Era, Scripted
from tests.gateway.test_whole_messages import CELLS, ENVELOPE, ask

INFO = "io.modelcontextprotocol/serverInfo"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
ICONS = [{"src": "data:image/png;base64,AA==", "mimeType": "image/png"}]
WHO = {"name": "mine", "version": "3", "title": "My server", "websiteUrl": "https://x.example", "icons": ICONS}
UI = {"mimeTypes": ["text/html;profile=mcp-app"]}


def introducing(era: Era, info: dict[str, Any], capabilities: dict[str, Any], **extra: Any) -> Scripted:
    server = Scripted(era)
    server.capabilities |= capabilities
    meta = {**extra.pop("_meta", {}), **({INFO: info} if era == "2026" else {})}
    server.handshake = {**extra, **({"serverInfo": info} if era == "2025" else {}), **({"_meta": meta} if meta else {})}
    return server


async def introduced(client: RawClient, era: str) -> dict[str, Any]:
    """The result of a handshake, with `serverInfo` where 2025 has it."""
    if era == "2025":
        return (await client.initialize({"roots": {}, "extensions": {"x.example/a": {"n": 1}}})).result
    result = (await client.ask_2026("server/discover")).result
    return {**result, "serverInfo": result["_meta"].pop(INFO)}


@pytest.mark.promise("gateway.identity")
@CELLS
async def test_one_server_is_introduced_as_itself(tmp_path: Path, client_era: str, server_era: Era) -> None:
    capabilities = {
        "extensions": {"io.modelcontextprotocol/ui": UI},
        "experimental": {"x.example/y": {"deep": [1, None]}},
        "x.example/unknown": {"z": True},
        "logging": {"x": 1},
    }
    extra = {"instructions": "Use me.", "x-more": [1], "_meta": {"x.example/m": {"a": 1}}}
    async with (
        introducing(server_era, WHO, capabilities, **extra).serving() as server,
        gateway(tmp_path, {"b": server.entry}, sessions={"steer": False}) as program,
        RawClient(program.url) as client,
    ):
        said = await introduced(client, client_era)
        assert said["serverInfo"] == WHO
        assert said["instructions"] == "Use me."
        assert said["x-more"] == [1]
        assert said["_meta"]["x.example/m"] == {"a": 1}
        assert said["_meta"]["dev.holdfast/gateway"]["name"] == "holdfast"
        assert {name: said["capabilities"][name] for name in capabilities} == capabilities
        assert said["capabilities"]["tools"] == {"listChanged": True}


@pytest.mark.promise("gateway.identity")
@CELLS
async def test_several_servers_are_merged_and_what_clashes_is_in_meta(
    tmp_path: Path, client_era: str, server_era: Era
) -> None:
    one = introducing(server_era, {"name": "one", "version": "1"}, {"extensions": {"e/both": {"v": 1}, "e/same": {}}})
    two = introducing(
        server_era,
        WHO,
        {"extensions": {"e/both": {"v": 2}, "e/same": {}, "e/two": {}}, "experimental": {"x": {}}},
        instructions="Two.",
    )
    async with one.serving(), two.serving():
        servers = {"one": one.entry, "two": two.entry}
        async with gateway(tmp_path, servers, sessions={"steer": False}) as program, RawClient(program.url) as client:
            said = await introduced(client, client_era)
            assert said["serverInfo"]["name"] == "holdfast"
            assert said["_meta"]["dev.holdfast/servers"]["two"] == {"serverInfo": WHO}
            assert said["_meta"]["dev.holdfast/servers"]["one"]["serverInfo"]["name"] == "one"
            assert said["instructions"] == "# two\nTwo."
            extensions = said["capabilities"]["extensions"]
            assert extensions == {"e/both": {"v": 1}, "e/same": {}, "e/two": {}}
            assert said["capabilities"]["experimental"] == {"x": {}}
            hidden = said["_meta"]["dev.holdfast/others"]
            assert hidden == {"two": {"capabilities": {"extensions": {"e/both": {"v": 2}}}}}


@pytest.mark.promise("gateway.identity")
@CELLS
async def test_client_info_and_capabilities_reach_every_server(
    tmp_path: Path, client_era: str, server_era: Era
) -> None:
    own = {"roots": {}, "extensions": {"x.example/a": {"n": 1}}}
    who = {"name": "raw", "version": "1", "title": "T"} if client_era == "2026" else {"name": "raw", "version": "1"}
    async with Scripted(server_era).serving() as server:
        servers = {"b": server.entry, "c": server.entry}
        async with gateway(tmp_path, servers, sessions={"steer": False}) as program, RawClient(program.url) as client:
            meta = {**ENVELOPE, CLIENT_CAPABILITIES: own, CLIENT_INFO: who} if client_era == "2026" else {}
            if client_era == "2025":
                await client.initialize(own)
            params = {"name": "c__t", "arguments": {}, "_meta": meta}
            assert (await ask(client, client_era, "tools/call", params)).result["content"] is not None
            if server_era == "2026":
                told = server.params_of("tools/call")[-1]["_meta"]
                assert (told[CLIENT_CAPABILITIES], told[CLIENT_INFO]) == (own, who)
            else:
                handshakes = server.params_of("initialize")
                assert (own, who) in [(each["capabilities"], each["clientInfo"]) for each in handshakes]


@pytest.mark.promise("gateway.identity")
@pytest.mark.parametrize("reuse", ["principal", "shared"])
async def test_links_that_callers_share_tell_a_2026_server_of_each_client(tmp_path: Path, reuse: str) -> None:
    async with Scripted("2026").serving() as server:
        entry = {**server.entry, "reuse": reuse}
        async with (
            gateway(tmp_path, {"b": entry}) as program,
            RawClient(program.url) as one,
            RawClient(program.url) as other,
        ):
            await one.initialize({"roots": {}})
            await other.initialize({"elicitation": {}})
            await one.call("b__t")
            await other.call("b__t")
            told = [each["_meta"][CLIENT_CAPABILITIES] for each in server.params_of("tools/call")]
            assert told == [{"roots": {}}, {"elicitation": {}}]


@pytest.mark.promise("gateway.identity")
@pytest.mark.parametrize("reuse", ["principal", "shared"])
async def test_a_2025_session_that_callers_share_declares_nothing_of_any_client(tmp_path: Path, reuse: str) -> None:
    async with Scripted("2025").serving() as server:
        async with gateway(tmp_path, {"b": {**server.entry, "reuse": reuse}}, **two_users()) as program:
            async with RawClient(program.url, "ann") as client:
                await client.initialize({"roots": {}})
                await client.call("b__t")
        assert {json.dumps(each["capabilities"]) for each in server.params_of("initialize")} == {"{}"}


def two_users() -> dict[str, Any]:
    """Settings in which the tokens `ann` and `bob` are two callers."""

    def token(name: str) -> dict[str, str]:
        return {"hash": f"sha256:{hashlib.sha256(name.encode()).hexdigest()}", "principal": name}

    return {"auth": {"tokens": [token("ann"), token("bob")]}}


@pytest.mark.promise("gateway.identity")
@CELLS
async def test_results_name_the_server_that_answered(tmp_path: Path, client_era: str, server_era: Era) -> None:
    if client_era != "2026":
        pytest.skip("results of 2025 name no server")
    meta = {"_meta": {INFO: WHO}} if server_era == "2026" else {}
    one = introducing(server_era, WHO, {})
    one.results["tools/call"] = {"content": [], **meta}
    async with one.serving():
        async with gateway(tmp_path, {"b": one.entry}, sessions={"steer": False}) as program:
            async with RawClient(program.url) as client:
                await client.ask_2026("tools/list")
                assert (await client.call_2026("b__t")).result["_meta"][INFO] == WHO
        servers = {"b": one.entry, "c": one.entry}
        async with gateway(tmp_path, servers, sessions={"steer": False}) as program, RawClient(program.url) as client:
            told = (await client.call_2026("b__t")).result["_meta"]
            assert told[INFO]["name"] == "holdfast"
            assert told.get("dev.holdfast/serverInfo") == (WHO if server_era == "2026" else None)


@pytest.mark.promise("gateway.identity")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_handshake_of_10_mb_costs_clients_and_the_store_little(tmp_path: Path, era: Era) -> None:
    large = {"extensions": {f"e/{number}": {"x": "y" * 1000} for number in range(10_000)}}
    info = {"name": "large", "version": "1", "icons": [{"src": "x" * 1_000_000}]}
    store = tmp_path / "store.db"
    server = introducing(era, info, large, instructions="i" * 1_000_000, _meta={"x": "y" * 1_000_000})
    async with server.serving():
        config = config_of(tmp_path, {"b": server.entry}, store=f"sqlite:///{store}", sessions={"start": 20})
        entry = config.entries["b"]
        limits = replace(PATIENT, message_bytes=64 * 1024 * 1024)
        config.entries["b"] = ServerEntry(entry.server.with_(limits=limits), entry.policy)
        async with Program(config).running() as program:
            async with RawClient(program.url) as client:
                answer = await client.initialize()
                assert len(answer.raw) < 2_000
                assert "extensions" not in answer.result["capabilities"]
                assert answer.result["serverInfo"]["name"] == "holdfast"
                assert (await client.call("b__t")).result["content"] == []
                gate = program.gateway
                assert gate is not None
                catalogue = gate.backends["b"].catalogue
                assert catalogue is not None
                assert any("capabilities" in each for each in catalogue.left_out)
        assert sum(file.stat().st_size for file in tmp_path.glob("store.db*")) < 4_000_000


@pytest.mark.promise("gateway.identity")
@pytest.mark.parametrize("client_era", ["2025", "2026"])
async def test_what_a_server_said_is_told_while_it_is_down_and_after_a_restart(tmp_path: Path, client_era: str) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    server = introducing("2025", WHO, {"extensions": {"e/x": {"n": 1}}})
    settings: dict[str, Any] = {"store": store, "sessions": {"steer": False, "start": 0.5}}
    async with server.serving():
        async with gateway(tmp_path, {"b": server.entry}, **settings) as program, RawClient(program.url) as client:
            await introduced(client, client_era)
        entry = server.entry
    async with gateway(tmp_path, {"b": entry}, **settings) as program, RawClient(program.url) as client:
        said = await introduced(client, client_era)
        assert said["serverInfo"] == WHO
        assert said["capabilities"]["extensions"] == {"e/x": {"n": 1}}


@pytest.mark.promise("gateway.identity")
async def test_a_server_that_sees_headers_of_callers_is_introduced_to_each_as_it_sees_them(tmp_path: Path) -> None:
    server = introducing("2025", WHO, {"extensions": {"e/x": {}}})
    async with server.serving():
        entry = {**server.entry, "pass_headers": ["X-Tenant"]}
        async with gateway(tmp_path, {"b": entry}) as program, RawClient(program.url) as client:
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "r", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            said = (await client.send(body, headers=client.headers(x_tenant="t"))).result
            assert said["serverInfo"] == WHO
            assert said["capabilities"]["extensions"] == {"e/x": {}}


@pytest.mark.promise("gateway.identity")
async def test_a_spare_is_used_for_the_kind_of_client_as_which_it_was_introduced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    entry = {**raw_program({"log": str(log)}), "warm": 1}

    def handshakes() -> list[str]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line)["params"]["clientInfo"]["name"] for line in lines if '"initialize"' in line]

    async with gateway(tmp_path, {"b": entry}) as program, RawClient(program.url) as client:

        async def begin(name: str) -> None:
            client.session = None
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": name, "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            client.session = (await client.send(body)).headers["mcp-session-id"]
            assert (await client.call("b__t")).result["content"] == []

        await begin("one")
        await until(lambda: handshakes().count("one") == 2)  # the session's own, and the spare
        await begin("one")
        await until(lambda: handshakes().count("one") == 3)
        await begin("other")
        assert "other" in handshakes()


@pytest.mark.promise("gateway.identity")
async def test_a_server_that_is_deployed_again_is_introduced_anew(tmp_path: Path) -> None:
    server = introducing("2026", WHO, {})
    async with server.serving():
        async with (
            gateway(tmp_path, {"b": server.entry}, health={"every": 0.1}) as program,
            RawClient(program.url) as client,
        ):
            assert (await introduced(client, "2025"))["serverInfo"] == WHO
            server.handshake["_meta"][INFO] = {"name": "other", "version": "4"}
            gate = program.gateway
            assert gate is not None

            def known() -> str:
                catalogue = gate.backends["b"].catalogue
                return catalogue.identity.info["name"] if catalogue is not None else ""

            await until(lambda: known() == "other")
            async with asyncio.timeout(patience(5)), RawClient(program.url) as later:
                assert (await introduced(later, "2025"))["serverInfo"]["name"] == "other"
