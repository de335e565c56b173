"""Which era a backend is taken in, for which client: sessions hold where a server offers both eras, as real ones do."""

from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import ElicitResult

from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Scripted
from tests.links.server_process import RealServer

NOTICE = "dev.holdfast/notice"


def _posts(server: FaultServer, method: str) -> int:
    return sum(request.method == method for request in server.requests)


async def _seat(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"row": 7})


@pytest.mark.promise("gateway.era-choice")
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
async def test_a_2025_clients_session_holds_at_a_real_server_that_offers_both_eras(tmp_path: Path, kind: Any) -> None:
    async with RealServer(kind, json=False) as server, gateway(tmp_path, {"real": {"url": server.url}}) as program:
        async with Client(program.url, mode="auto", elicitation_callback=_seat) as client:  # steered to 2025
            for turn in ("1", "2", "3"):
                assert (await client.call_tool("real__turn")).content[0].text == turn
            assert (await client.call_tool("real__book")).content[0].text == "row 7 is yours"
        async with RawClient(program.url) as another:
            await another.initialize()
            assert (await another.call("real__turn")).text == "1"


@pytest.mark.promise("gateway.era-choice")
async def test_a_2026_client_takes_2026_and_with_a_session_2025(tmp_path: Path) -> None:
    async with FaultServer(era="both") as server:
        servers = {"counter": {"url": server.url}}
        async with gateway(tmp_path, servers, sessions={"handles": True}) as program, RawClient(program.url) as client:
            assert program.gateway is not None
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            for _ in range(3):
                answer = await client.call_2026("counter__count")
                assert answer.text == ""  # nothing is counted where nothing is kept
                assert NOTICE not in answer.result["_meta"]
            assert _posts(server, "tools/call") == 3
            assert _posts(server, "server/discover") == 1  # one link for all of them
            sessions = len(server.sessions.sessions)
            handle = (await client.call_2026("holdfast__open_session")).result["structuredContent"]["holdfast_session"]
            for turn in ("1", "2", "3"):
                assert (await client.call_2026("counter__count", holdfast_session=handle)).text == turn
            assert len(server.sessions.sessions) == sessions + 1
            assert _posts(server, "tools/call") == 6
            assert program.gateway.backends["counter"].keeps_sessions


@pytest.mark.promise("gateway.era-choice")
async def test_a_principals_session_is_taken_in_2025_for_its_2026_clients(tmp_path: Path) -> None:
    token = "a" * 40
    from hashlib import sha256

    auth = {"tokens": [{"hash": f"sha256:{sha256(token.encode()).hexdigest()}", "principal": "ada"}]}
    async with FaultServer(era="both") as server:
        servers = {"counter": {"url": server.url, "reuse": "principal"}}
        async with gateway(tmp_path, servers, auth=auth) as program, RawClient(program.url, token) as client:
            assert [(await client.call_2026("counter__count")).text for _ in range(3)] == ["1", "2", "3"]


@pytest.mark.promise("gateway.era-choice")
async def test_a_2025_backend_is_asked_once_whether_it_offers_2026(tmp_path: Path) -> None:
    async with FaultServer() as server:
        async with gateway(tmp_path, {"counter": {"url": server.url}}) as program, RawClient(program.url) as client:
            for _ in range(3):
                answer = await client.call_2026("counter__count")
                assert answer.text == "1"
                assert "session of its own" in answer.result["_meta"][NOTICE]
            assert _posts(server, "server/discover") == 1


@pytest.mark.promise("gateway.era-choice")
async def test_a_backend_declared_stateless_is_taken_in_2026_for_everybody(tmp_path: Path) -> None:
    async with FaultServer(era="both") as server:
        servers = {"counter": {"url": server.url, "stateful": False}}
        async with (
            gateway(tmp_path, servers) as program,
            RawClient(program.url) as client,
            RawClient(program.url) as modern,
        ):
            await client.initialize()
            assert (await client.call("counter__count")).text == ""
            assert (await modern.call_2026("counter__count")).text == ""
            assert _posts(server, "initialize") == 0
            assert (await modern.ask_2026("server/discover")).status == 200  # nobody is steered from there


@pytest.mark.promise("gateway.era-choice")
async def test_a_backend_that_comes_to_offer_sessions_is_shared_no_more(tmp_path: Path) -> None:
    """What the store remembers of it, from when it kept nothing, must not put two callers into one session."""
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer(era="2026") as server:
        servers = {"counter": {"url": server.url}}
        async with gateway(tmp_path, servers, store=store) as program, RawClient(program.url) as client:
            assert (await client.call_2026("counter__count")).text == ""
            assert program.gateway is not None
            assert not program.gateway.backends["counter"].keeps_sessions
        server.sessions.era = "2025"
        async with gateway(tmp_path, servers, store=store) as program:
            for _ in range(2):
                async with RawClient(program.url) as client:
                    assert (await client.call_2026("counter__count")).text == "1"


@pytest.mark.promise("gateway.era-choice")
async def test_a_2025_client_sees_no_stamp_of_a_2026_backend(tmp_path: Path) -> None:
    stamp = {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}}
    for meta, seen in ((stamp, {}), ({**stamp, "cost": 3}, {"_meta": {"cost": 3}})):
        answer = {"resultType": "complete", "content": [], "_meta": meta}
        async with Scripted("2026", tools__call=answer).serving() as backend:
            servers = {"s": {"url": backend.url}}
            async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
                await client.initialize()
                assert (await client.ask("tools/call", {"name": "s__t", "arguments": {}})).result == {
                    "content": [],
                    **seen,
                }


@pytest.mark.promise("gateway.steering")
async def test_a_2026_only_client_that_probes_first_is_let_in_by_its_name(tmp_path: Path) -> None:
    def info(name: str) -> dict[str, Any]:
        return {"_meta": {"io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}}}

    async with FaultServer() as server:
        servers = {"counter": {"url": server.url}}
        for settings, names in (({}, ["inspector-cli"]), ({"steer_except": ["Pinned*"]}, ["pinned-app", "PINNED"])):
            async with gateway(tmp_path, servers, sessions=settings) as program, RawClient(program.url) as client:
                for name in names:
                    found = (await client.ask_2026("server/discover", info(name))).result
                    assert "2026-07-28" in found["supportedVersions"]
                refused = await client.ask_2026("server/discover", info("somebody"))
                assert (refused.status, refused.error["code"]) == (400, -32022)
                assert "sessions.steer_except" in refused.error["message"]
                assert "2026-07-28" not in refused.error["data"]["supported"]
