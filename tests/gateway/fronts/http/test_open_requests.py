"""A token that is taken away, or that expires, ends what it had let in: in both eras, and no more."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.gateway.auth import hash_of, new_token
from holdfast.gateway.config.file import load_config
from holdfast.gateway.server import Program
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import Events, RawClient
from tests.gateway.parking.asking_backend import asking_backend

LISTEN_2026: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "subscriptions/listen",
    "params": {
        "notifications": {"toolsListChanged": True},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}


@dataclass
class Office:
    """A gateway whose file is written anew, and the tokens that it may hold."""

    program: Program
    file: Path
    document: dict[str, Any]
    tokens: dict[str, str]

    def write(self, *principals: str, **expires: datetime) -> None:
        write(self.file, self.document, self.tokens, *principals, **expires)


def write(file: Path, document: dict[str, Any], tokens: dict[str, str], *principals: str, **expires: datetime) -> None:
    """The file, with tokens of these principals."""
    entries = [
        {"hash": hash_of(tokens[name]), "principal": name}
        | ({"expires": expires[name].isoformat()} if name in expires else {})
        for name in principals
    ]
    file.write_text(json.dumps({**document, "auth": {"tokens": entries}}))


@asynccontextmanager
async def office(folder: Path, url: str) -> AsyncGenerator[Office]:
    tokens = {name: new_token()[0] for name in ("alice", "bob")}
    document = {
        "listen": {"port": 0},
        "store": "memory:",
        "sessions": {"drain": 0.2},
        "mcpServers": {"counter": {"url": url}},
    }
    file = folder / "gateway.json"
    write(file, document, tokens, "alice", "bob")
    async with Program(load_config(file)).running() as program:
        yield Office(program, file, document, tokens)


async def ended(events: Events) -> None:
    """Read until the stream ends, cut or whole."""
    async with asyncio.timeout(patience(20)):
        with pytest.raises((EOFError, aiohttp.ClientPayloadError)):
            while True:
                await events.next(20)


@asynccontextmanager
async def everything_open(
    http: FaultServer, client: RawClient
) -> AsyncGenerator[tuple[Events, Events, list[asyncio.Task[Any]]]]:
    """A client with a stream of each era, and a running call of each era."""
    await client.initialize()
    before = waits(http)
    named = {"mcp_protocol_version": "2026-07-28", "mcp_method": "subscriptions/listen"}
    async with client.stream() as own, client.stream("POST", LISTEN_2026, **named) as listening:
        await listening.next()
        assert own.status == 200
        calls = [
            asyncio.create_task(client.call("counter__wait")),
            asyncio.create_task(client.call_2026("counter__wait")),
        ]
        await until(lambda: waits(http) == before + 2)
        try:
            yield own, listening, calls
        finally:
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)


def waits(http: FaultServer) -> int:
    return sum(request.method == "tools/call" for request in http.requests)


@pytest.mark.promise("gateway.revoked")
@pytest.mark.parametrize("how", ["reload", "expiry"])
async def test_a_token_that_goes_ends_what_it_let_in(tmp_path: Path, how: str) -> None:
    async with FaultServer() as http, office(tmp_path, http.url) as place:
        program = place.program
        async with (
            RawClient(program.url, place.tokens["alice"]) as alice,
            RawClient(program.url, place.tokens["bob"]) as bob,
        ):
            async with everything_open(http, alice) as (own, listening, calls), everything_open(http, bob) as others:
                if how == "reload":
                    place.write("bob")
                else:
                    place.write("alice", "bob", alice=datetime.now(UTC) + timedelta(seconds=1))
                assert await program.reload()
                await asyncio.gather(ended(own), ended(listening))
                for answer in await asyncio.gather(*calls):
                    assert answer.status == 401
                assert (await alice.ask("ping")).status == 401
                assert not any(call.done() for call in others[2])
                assert (await bob.ask("ping")).result == {}
                assert program.front is not None
                assert len(program.front.open) == 4  # bob's streams and calls


@pytest.mark.promise("gateway.revoked")
async def test_a_token_that_became_anothers_ends_and_one_that_moved_in_the_file_does_not(tmp_path: Path) -> None:
    async with FaultServer() as http, office(tmp_path, http.url) as place:
        async with RawClient(place.program.url, place.tokens["alice"]) as alice:
            async with everything_open(http, alice) as (own, _, calls):
                place.write("bob", "alice")
                assert await place.program.reload()
                assert not any(call.done() for call in calls)
                place.tokens["mallory"], place.tokens["alice"] = place.tokens["alice"], place.tokens["bob"]
                place.write("mallory", "alice")
                assert await place.program.reload()
                await ended(own)
                assert [answer.status for answer in await asyncio.gather(*calls)] == [401, 401]


@pytest.mark.promise("gateway.revoked")
async def test_a_call_that_has_begun_to_stream_is_cut_and_its_backend_hears_of_it(tmp_path: Path) -> None:
    async with FaultServer(answers="sse") as http, office(tmp_path, http.url) as place:
        async with RawClient(place.program.url, place.tokens["alice"]) as alice:
            await alice.initialize()
            params = {"name": "counter__progress", "arguments": {"steps": 100_000}, "_meta": {"progressToken": 1}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            async with alice.stream("POST", body) as events:
                await events.next()
                place.write("bob")
                assert await place.program.reload()
                await ended(events)
            await until(lambda: any(request.method == "notifications/cancelled" for request in http.requests))


@pytest.mark.promise("gateway.revoked")
async def test_a_call_of_a_session_that_is_ending_is_cut_with_its_token(tmp_path: Path) -> None:
    async with FaultServer() as http, office(tmp_path, http.url) as place:
        place.document["sessions"] = {"drain": 60}
        place.write("alice", "bob")
        assert await place.program.reload()
        async with RawClient(place.program.url, place.tokens["alice"]) as alice:
            await alice.initialize()
            assert place.program.gateway is not None
            (session,) = place.program.gateway.sessions.live.values()
            before = waits(http)
            calling = asyncio.create_task(alice.call("counter__wait"))
            await until(lambda: waits(http) == before + 1)
            ending = place.program.gateway.sessions.endings.end_soon(session, "ended by hand")
            await until(lambda: not session.goes_on)
            place.write("bob")
            assert await place.program.reload()
            assert (await calling).status == 401
            await ending


@pytest.mark.promise("gateway.revoked")
async def test_a_parked_call_ends_with_its_callers_token(tmp_path: Path) -> None:
    roots = {"_meta": {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}}}
    async with asking_backend() as backend, office(tmp_path, backend.url) as place:
        async with RawClient(place.program.url, place.tokens["alice"]) as alice:
            asked = {"name": "counter__ask", "arguments": {"rounds": [[{"method": "roots/list"}]]}, **roots}
            assert (await alice.ask_2026("tools/call", asked)).result["resultType"] == "input_required"
            place.write("bob")
            assert await place.program.reload()
            await until(lambda: not backend.running)
            assert place.program.gateway is not None
            assert place.program.gateway.parked.places_taken == 0
