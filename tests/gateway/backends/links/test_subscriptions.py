"""What clients want to hear of at servers: one upstream listen for all of it, and a cap."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.backends.links.subscriptions import LISTEN_URIS
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Scripted
from tests.links.web import listening

NAMED = {"mcp_protocol_version": "2026-07-28", "mcp_method": "subscriptions/listen"}
UPDATED = "notifications/resources/updated"


class Notes:
    """A server with a template of resources that tells of changes, and counts who listens. It refuses `note://no…`."""

    def __init__(self, era: str) -> None:
        self.era = era
        self.url = ""
        self.listens: list[list[str]] = []
        self.open: dict[asyncio.StreamWriter, list[str] | None] = {}
        self.most_open = 0
        self.subscribed: list[str] = []

    def result_of(self, message: dict[str, Any]) -> dict[str, Any] | None:
        method, params = message.get("method"), message.get("params", {})
        capabilities = {"resources": {"subscribe": True}}
        if method == "initialize":
            info = {"name": "notes", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        if method == "server/discover" and self.era == "2026":
            return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "resultType": "complete"}
        if method == "resources/list":
            return {"resources": [{"uri": "note://one", "name": "one"}]}
        if method == "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "note://{n}", "name": "notes"}]}
        if method == "resources/subscribe" and not params["uri"].startswith("note://no"):
            self.subscribed.append(params["uri"])
            return {}
        if method == "resources/unsubscribe":
            self.subscribed.remove(params["uri"])
            return {}
        return {} if method == "ping" else None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
            message = json.loads(await reader.readexactly(size) or b"{}")
            listen = message.get("method") == "subscriptions/listen"
            if listen or (head.startswith("get") and self.era == "2025"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                uris = message["params"]["notifications"].get("resourceSubscriptions", []) if listen else None
                self.open[writer] = uris
                if uris is not None:
                    agreed = [uri for uri in uris if not uri.startswith("note://no")]
                    self.listens.append(uris)
                    self.most_open = max(self.most_open, len(self.open))
                    meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
                    params = {"notifications": {"resourceSubscriptions": agreed}, "_meta": meta}
                    self.say(writer, "notifications/subscriptions/acknowledged", params)
                try:
                    await reader.read()
                finally:
                    del self.open[writer]
                return
            result = self.result_of(message)
            if head.startswith(("get", "delete")):
                writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            elif "id" not in message:
                writer.write(b"HTTP/1.1 202 Taken\r\ncontent-length: 0\r\n\r\n")
            else:
                refused = {"error": {"code": -32602, "message": "no such thing"}}
                answer = {
                    "jsonrpc": "2.0",
                    "id": message["id"],
                    **({"result": result} if result is not None else refused),
                }
                data = json.dumps(answer).encode()
                session = "mcp-session-id: s\r\n" if self.era == "2025" else ""
                said = (
                    f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{session}content-length: {len(data)}\r\n\r\n"
                )
                writer.write(said.encode() + data)
            await writer.drain()

    def say(self, writer: asyncio.StreamWriter, method: str, params: dict[str, Any]) -> None:
        writer.write(b"data: %s\n\n" % json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def changed(self, uri: str) -> None:
        for writer, uris in self.open.items():
            if uri in (self.subscribed if uris is None else uris):
                self.say(writer, UPDATED, {"uri": uri})


@asynccontextmanager
async def notes(era: str) -> AsyncGenerator[Notes]:
    served = Notes(era)
    async with listening(served.serve) as port:
        served.url = f"http://127.0.0.1:{port}/mcp"
        yield served


def listen(*uris: str) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"_meta": meta, "notifications": {"resourceSubscriptions": list(uris)}}
    return {"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": params}


@pytest.mark.promise("gateway.subscriptions")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_many_resources_of_many_clients_are_one_listen_at_the_server(tmp_path: Path, era: str) -> None:
    uris = [f"note://{n}" for n in range(60)]
    async with (
        notes(era) as server,
        gateway(tmp_path, {"n": {"url": server.url, "era": era}}, sessions={"steer": False}) as program,
        RawClient(program.url) as one,
        RawClient(program.url) as two,
    ):
        assert program.gateway is not None
        async with one.stream("POST", listen(*uris, "note://no", "else://x"), **NAMED) as first:
            agreed = (await first.next(20))["params"]["notifications"]["resourceSubscriptions"]
            assert sorted(agreed) == sorted([*uris, "else://x"])  # listed or not, there is no other server
            async with two.stream("POST", listen("note://7", "note://new"), **NAMED) as second:
                assert (await second.next(20))["params"]["notifications"]["resourceSubscriptions"] == [
                    "note://7",
                    "note://new",
                ]
                if era == "2026":
                    await until(lambda: len(server.open) == 1)
                    assert server.most_open <= 2  # the next one is there before the last one goes
                    assert len(server.listens) == 2
                else:
                    assert sorted(server.subscribed) == sorted([*uris, "else://x", "note://new"])  # each once
                server.changed("note://7")
                assert (await first.next(20))["params"]["uri"] == "note://7"
                assert (await second.next(20))["params"]["uri"] == "note://7"
                server.changed("note://new")
                assert (await second.next(20))["params"]["uri"] == "note://new"
            await until(lambda: program.gateway is not None and len(program.gateway.listeners) == 1)
            server.changed("note://8")
            assert (await first.next(20))["params"]["uri"] == "note://8"
        if era == "2026":
            await until(lambda: not server.open)
        else:
            await until(lambda: not server.subscribed)


@pytest.mark.promise("gateway.subscriptions")
async def test_a_listen_that_names_too_much_is_refused_and_reaches_no_server(tmp_path: Path) -> None:
    async with (
        notes("2026") as server,
        gateway(tmp_path, {"n": {"url": server.url, "era": "2026"}}, sessions={"steer": False}) as program,
        RawClient(program.url) as client,
    ):
        headers = client.headers(**NAMED)
        for uris in ([f"note://{n}" for n in range(600)], ["note://" + "x" * 9_000]):
            answer = await client.send(listen(*uris), headers=headers)
            assert (answer.status, answer.error["code"]) == (400, -32602)
            assert str(LISTEN_URIS) in answer.error["message"]
        assert server.listens == []


@pytest.mark.promise("gateway.subscriptions")
async def test_a_2025_client_at_a_2026_server_has_one_listen_and_a_cap(tmp_path: Path) -> None:
    async with (
        notes("2026") as server,
        gateway(tmp_path, {"n": {"url": server.url, "era": "2026"}}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        async with client.stream() as own:
            for n in range(20):
                assert (await client.ask("resources/subscribe", {"uri": f"note://{n}"})).result == {}
            await until(lambda: len(server.open) == 1)
            server.changed("note://3")
            assert (await own.next(20))["params"]["uri"] == "note://3"
            await client.ask("resources/unsubscribe", {"uri": "note://3"})
            server.changed("note://3")
            server.changed("note://4")
            assert (await own.next(20))["params"]["uri"] == "note://4"
            assert program.gateway is not None
            [session] = program.gateway.sessions.live.values()
            session.record.data["subscriptions"] = {f"note://{n}": "n" for n in range(LISTEN_URIS)}
            refused = await client.ask("resources/subscribe", {"uri": "note://one-more"})
            assert refused.error["code"] == -32602
            assert str(LISTEN_URIS) in refused.error["message"]
        await client.delete()
        await until(lambda: not server.open)


@pytest.mark.promise("gateway.subscriptions")
async def test_2025_clients_at_a_2026_server_share_one_listen_also_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with notes("2026") as server, RawClient("") as one, RawClient("") as two:
        servers = {"n": {"url": server.url, "era": "2026"}}
        for turn in range(2):
            async with gateway(tmp_path, servers, store=store) as program:
                one.url = two.url = program.url
                if turn == 0:
                    for client in (one, two):
                        await client.initialize()
                async with one.stream() as first, two.stream() as second:
                    if turn == 0:
                        for client in (one, two):
                            for uri in ("note://1", "note://2"):
                                assert (await client.ask("resources/subscribe", {"uri": uri})).result == {}
                        assert (await two.ask("resources/unsubscribe", {"uri": "note://2"})).result == {}
                        refused = await one.ask("resources/subscribe", {"uri": "note://no"})
                        assert refused.error["code"] == -32002
                    await until(lambda: {"note://1", "note://2"} in [set(uris or ()) for uris in server.open.values()])
                    await until(lambda: len(server.open) == 1)
                    server.changed("note://2")
                    server.changed("note://1")
                    assert [(await first.next(20))["params"]["uri"] for _ in range(2)] == ["note://2", "note://1"]
                    assert (await second.next(20))["params"]["uri"] == "note://1"
                if turn == 1:
                    await one.delete()
                    await two.delete()
            await until(lambda: not server.open)


@pytest.mark.promise("gateway.subscriptions")
async def test_a_resource_of_a_shared_server_is_followed_in_its_one_session(tmp_path: Path) -> None:
    async with Scripted().serving() as backend:
        servers = {"s": {**backend.entry, "reuse": "shared"}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            async with client.stream() as events:
                assert (await client.ask("resources/subscribe", {"uri": "x://one"})).result == {}
                await until(lambda: backend.listening)
                backend.push(UPDATED, {"uri": "x://one"})
                assert (await events.next(20))["params"]["uri"] == "x://one"
            assert backend.count("initialize") == 1
