"""The live sessions of a process: whose they are, which of them rest, and that nothing is left of them."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.gateway.auth import new_token
from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import Process, gateway


@pytest.mark.promise("gateway.durable")
async def test_sessions_beyond_the_live_ones_rest_in_the_store(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"live": 5}) as program:
            assert program.gateway is not None
            clients = [RawClient(program.url) for _ in range(20)]
            for client in clients:
                await client.initialize()
                assert (await client.call("counter__count")).text == "1"
            await until(lambda: program.gateway is not None and len(program.gateway.sessions.live) <= 5)
            for client in clients:
                assert (await client.call("counter__count")).text == "2"
            handshakes = http.sessions.handshakes
            assert handshakes == 21  # one each, and the gateway's own for lists
            for client in clients:
                assert (await client.delete()).status == 204
                await client.__aexit__()
            assert http.sessions.deletes == 20


@pytest.mark.promise("gateway.isolation")
async def test_a_foreign_id_answers_exactly_like_an_unknown_one(tmp_path: Path) -> None:
    (alice, alice_hash), (bob, bob_hash) = new_token(), new_token()
    auth = {"tokens": [{"hash": alice_hash, "principal": "alice"}, {"hash": bob_hash, "principal": "bob"}]}
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, auth=auth) as program:
        async with (
            RawClient(program.url, alice) as one,
            RawClient(program.url, bob) as other,
            RawClient(program.url, "guess") as nobody,
        ):
            await one.initialize()
            assert (await one.call("counter__count")).text == "1"
            other.session = one.session
            foreign = [await other.call("counter__count"), await other.delete(), await other.send(b"", "GET")]
            other.session = "x" * 43
            unknown = [await other.call("counter__count"), await other.delete(), await other.send(b"", "GET")]
            for mine, theirs in zip(foreign, unknown, strict=True):
                assert mine.status == theirs.status == 404
                assert mine.error == theirs.error
            assert (await nobody.initialize()).status == 401
            assert (await one.call("counter__count")).text == "2"


@pytest.mark.promise("gateway.isolation")
async def test_a_thousand_random_operations_leak_nothing(tmp_path: Path) -> None:
    import random

    (alice, alice_hash), (bob, bob_hash) = new_token(), new_token()
    auth = {"tokens": [{"hash": alice_hash, "principal": "alice"}, {"hash": bob_hash, "principal": "bob"}]}
    chance = random.Random(7)
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, auth=auth) as program:
        sessions: dict[str, tuple[str, int]] = {}

        async def act(token: str) -> None:
            async with RawClient(program.url, token) as client:
                for _ in range(1000):
                    kind = chance.random()
                    known = list(sessions)
                    if kind < 0.05 or not known:
                        client.session = None
                        assert (await client.initialize()).status == 200
                        assert client.session is not None
                        sessions[client.session] = (token, 0)
                        continue
                    id = chance.choice(known)
                    if kind > 0.9:
                        id = id[:-1] + chance.choice("abcXYZ019-_")
                    client.session = id
                    owner, count = sessions.get(id, ("", 0))
                    if owner == token:
                        sessions[id] = (token, count + 1)
                        assert (await client.call("counter__count")).text == str(count + 1)
                    else:
                        answer = await client.call("counter__count")
                        assert answer.status == 404, "a leak"

        await asyncio.gather(act(alice), act(bob))
        counts = sorted(session.count for session in http.sessions.sessions.values() if session.count)
        assert counts == sorted(count for _, count in sessions.values() if count)


@pytest.mark.promise("gateway.leaks")
async def test_fifty_thousand_calls_leave_everything_flat(tmp_path: Path) -> None:
    """Fifty sessions on a real process; handshakes, descriptors and memory are counted from outside."""
    from benchmarks.load import connect, handshake

    async with FaultServer() as http:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        url = await process.start("memory:")
        pid = process.pid

        def files() -> int:
            return len(list(Path(f"/proc/{pid}/fd").iterdir()))

        def memory() -> int:
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4

        body = json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "counter__count", "arguments": {}}}
        ).encode()
        connections = [await connect(url) for _ in range(50)]
        extras = [await handshake(each) for each in connections]

        async def call(number: int, times: int, first: int) -> None:
            for turn in range(times):
                status, _, raw = await connections[number].post(body, extras[number])
                assert status == 200
                assert json.loads(raw)["result"]["content"][0]["text"] == str(first + turn)

        await asyncio.gather(*(call(number, 200, 1) for number in range(50)))
        before = files(), memory()
        await asyncio.gather(*(call(number, 800, 201) for number in range(50)))
        after = files(), memory()
        handshakes = [request for request in http.requests if request.method == "initialize"]
        assert len(handshakes) == 51  # one a session, and the gateway's own for lists
        assert sum(request.method == "tools/call" for request in http.requests) == 50_000
        assert after[0] <= before[0] + 10
        assert after[1] - before[1] < 8_000  # KB, over forty thousand calls
        for each in connections:
            each.close()
        await process.stop()


@pytest.mark.promise("gateway.limits")
async def test_the_newest_session_is_served_however_many_listen(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"live": 2}) as program:
            async with RawClient(program.url) as one, RawClient(program.url) as two, RawClient(program.url) as three:
                await one.initialize()
                await two.initialize()
                async with one.stream(), two.stream():
                    await three.initialize()
                    assert [(await three.call("counter__count")).text for _ in range(2)] == ["1", "2"]


@pytest.mark.promise("gateway.limits")
async def test_resting_sessions_called_at_once_are_all_there(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"live": 2}) as program:
            clients = [RawClient(program.url) for _ in range(10)]
            for client in clients:
                await client.initialize()
            for turn in range(1, 5):
                answers = await asyncio.gather(*(client.call("counter__count") for client in clients))
                assert [answer.text for answer in answers] == [str(turn)] * 10
            for client in clients:
                await client.__aexit__()
