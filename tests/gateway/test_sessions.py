"""Sessions as data: restarts, two processes, expiry, limits, resting, reaping, and the end of a process."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.core.models import Principal
from holdfast.errors import ConfigError, StoreDown
from holdfast.events import Event, GatewaySessionBegan, GatewaySessionEnded
from holdfast.gateway.auth import new_token
from holdfast.gateway.config.file import load_config
from holdfast.gateway.server import Program
from holdfast.stores import open_store
from holdfast.stores.sealing import new_key
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import Raw
from tests.gateway.gateways import HOLDFAST, NOTEBOOK, Process, config_of, gateway
from tests.gateway.raw_backend import raw_program
from tests.links.server_process import RealServer


@pytest.mark.promise("gateway.durable")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restarted_gateway_goes_on_with_the_session(tmp_path: Path, how: int) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        async with Raw(await process.start(store)) as client:
            await client.initialize()
            assert [(await client.call("counter__count")).text for _ in range(2)] == ["1", "2"]
            await process.stop(how)
            client.url = await process.start(store)
            assert [(await client.call("counter__count")).text for _ in range(2)] == ["3", "4"]
            assert (await client.delete()).status == 204
            assert await process.stop() == 0
    sessions = [request for request in http.requests if request.method == "initialize"]
    assert len(sessions) <= 3  # the client's once; each process's own, for its lists
    assert http.sessions.deletes >= 1


@pytest.mark.promise("gateway.durable")
async def test_two_processes_serve_one_session_alternately(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        async with gateway(tmp_path, servers, store=store) as one, gateway(tmp_path, servers, store=store) as other:
            async with Raw(one.url) as client:
                await client.initialize()
                for number in range(1, 9):
                    client.url = one.url if number % 2 else other.url
                    assert (await client.call("counter__count")).text == str(number)
                # The server forgets: one of the two heals, the other takes up what it made.
                http.sessions.sessions.clear()
                told = await client.call("counter__count")
                assert "call again to continue" in told.text
                client.url = one.url
                texts = [(await client.call("counter__count")).text for _ in range(2)]
                client.url = other.url
                texts += [(await client.call("counter__count")).text for _ in range(2)]
                numbers = [int(text) for text in texts if text.isdigit()]
                assert numbers == list(range(1, len(numbers) + 1))
                assert len(numbers) >= 3  # the other process may have to be told, too
                # Ended in one, it is over in the other.
                assert (await client.delete()).status == 204
                assert one.gateway is not None
                await until(lambda: one.gateway is not None and not one.gateway.sessions.live)
                client.url = one.url
                assert (await client.call("counter__count")).status == 404


@pytest.mark.promise("gateway.durable")
async def test_a_program_lives_in_one_process_and_its_loss_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    notebook = {"command": sys.executable, "args": ["-m", "holdfast.gateway.demo.notebook"], "era": "2025"}
    async with Raw("") as client:
        async with gateway(tmp_path, {"notebook": notebook}, store=store) as one:
            client.url = one.url
            await until(lambda: one.gateway is not None and one.gateway.table.tools, 20)
            await client.initialize()
            assert (await client.call("notebook__write", text="a")).text == "noted, 1 so far"
            async with gateway(tmp_path, {"notebook": notebook}, store=store) as other:
                client.url = other.url
                refused = await client.call("notebook__write", text="b")
                assert refused.result["_meta"]["dev.holdfast/error"]["family"] == "Unavailable"
                assert one.url not in str(refused.last)
                assert any(f"runs in another gateway process, {one.url}" in text for text in caplog.messages)
        async with gateway(tmp_path, {"notebook": notebook}, store=store) as third:
            client.url = third.url
            told = await client.call("notebook__write", text="c")
            assert told.result["isError"]
            assert "call again" in told.text
            assert (await client.call("notebook__write", text="c")).text == "noted, 1 so far"


@pytest.mark.promise("gateway.expiry")
async def test_expiry_ends_the_session_everywhere(tmp_path: Path) -> None:
    events: list[Event] = []
    async with FaultServer() as http:
        sessions = {"idle": 0.6, "max_age": 100}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=sessions, sink=events.append) as program:
            async with Raw(program.url) as client:
                await client.initialize()
                assert (await client.call("counter__count")).text == "1"
                assert program.gateway is not None
                await until(lambda: http.sessions.deletes == 1)
                assert (await client.call("counter__count")).status == 404
                assert not program.gateway.sessions.live
    began = [event for event in events if isinstance(event, GatewaySessionBegan)]
    ended = [event for event in events if isinstance(event, GatewaySessionEnded)]
    assert [event.reason for event in ended] == ["expired"]
    assert began[0].session == ended[0].session
    assert client.session is not None
    assert client.session not in str(events)  # its name in events is not the id


@pytest.mark.promise("gateway.expiry")
async def test_use_keeps_a_session_alive_but_not_beyond_its_age(tmp_path: Path) -> None:
    async with FaultServer() as http:
        sessions = {"idle": 0.5, "max_age": 1.5}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=sessions) as program:
            async with Raw(program.url) as client:
                await client.initialize()
                loop = asyncio.get_running_loop()
                begun, statuses = loop.time(), [200]
                while statuses[-1] == 200:
                    statuses.append((await client.ask("ping")).status)
                    lived = loop.time() - begun
                    assert lived < 5
                assert statuses[-1] == 404
                assert 1.4 < lived < 2.5


@pytest.mark.promise("gateway.expiry")
async def test_a_reaper_ends_what_a_dead_process_left(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    sessions = {"idle": 1.0}
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        process = Process(tmp_path, servers, sessions=sessions)
        async with Raw(await process.start(store)) as client:
            await client.initialize()
            await client.call("counter__count")
        await process.stop(signal.SIGKILL)
        left = len(http.sessions.sessions)
        assert left >= 1
        async with gateway(tmp_path, servers, store=store, sessions=sessions):
            await until(lambda: http.sessions.deletes >= 1, 10)
        async with open_store(store) as opened:
            assert await opened.count(kind="session") == 0


@pytest.mark.promise("gateway.expiry")
async def test_a_damaged_row_of_one_session_keeps_no_other_alive(tmp_path: Path, caplog: Any) -> None:
    store, patient, hasty = f"sqlite:///{tmp_path}/s.db", {"idle": 60.0}, {"idle": 0.2}
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        keys: list[str] = []
        async with gateway(tmp_path, servers, store=store, sessions=patient) as before:
            for _ in range(3):
                async with Raw(before.url) as client:
                    await client.initialize()
                    assert (await client.call("counter__count")).text == "1"
            assert before.gateway is not None
            keys = sorted(session.key for session in before.gateway.sessions.live.values())
        async with open_store(store) as opened:
            for key in keys[:2]:  # the first page of a scan begins with them
                await opened.claim("session", key, owner="a reaper that died", ttl=100)
        with sqlite3.connect(tmp_path / "s.db") as connection:
            assert connection.execute("UPDATE holdfast_claims SET token = 'high'").rowcount >= 2
        connection.close()
        async with gateway(tmp_path, servers, store=store, sessions=hasty) as after:
            await until(lambda: http.sessions.deletes >= 1, 10)
            assert after.gateway is not None
            await after.gateway.reaper.reap()
        for key in keys[:2]:
            assert len([line for line in caplog.messages if line.startswith(f"{key} can't be ended")]) == 1


@pytest.mark.promise("gateway.limits")
async def test_limits_answer_503_with_a_time_to_come_back(tmp_path: Path) -> None:
    (alice, alice_hash), (bob, bob_hash) = new_token(), new_token()
    auth = {"tokens": [{"hash": alice_hash, "principal": "alice"}, {"hash": bob_hash, "principal": "bob"}]}
    async with FaultServer() as http:
        limits = {"per_principal": 2, "total": 3}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, auth=auth, sessions=limits) as program:
            clients = [Raw(program.url, token) for token in (alice, alice, alice, bob, bob)]
            statuses = []
            for client in clients:
                answer = await client.initialize()
                statuses.append(answer.status)
                if answer.status == 503:
                    assert int(answer.headers["retry-after"]) > 0
            assert statuses == [200, 200, 503, 200, 503]
            await clients[0].delete()
            assert (await clients[4].initialize()).status == 200
            for client in clients:
                await client.__aexit__()


@pytest.mark.promise("gateway.limits")
async def test_sessions_that_begin_together_are_counted_together_and_none_too_many_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultServer() as http:
        limits = {"per_principal": 12}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=limits) as program:
            gate = program.gateway
            assert gate is not None
            together, count = asyncio.Barrier(20), gate.store.count
            waited = 0

            async def slow(**query: Any) -> int:
                nonlocal waited
                if "principal" in query and waited < 20:
                    waited += 1
                    async with asyncio.timeout(patience(10)):  # a lock would keep them apart
                        await together.wait()
                return await count(**query)

            monkeypatch.setattr(gate.store, "count", slow)
            clients = [Raw(program.url) for _ in range(20)]
            statuses = [(answer.status) for answer in await asyncio.gather(*(each.initialize() for each in clients))]
            assert sorted(statuses) == [200] * 12 + [503] * 8
            for client in clients:
                await client.__aexit__()


@pytest.mark.promise("gateway.durable")
async def test_sessions_beyond_the_live_ones_rest_in_the_store(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"live": 5}) as program:
            assert program.gateway is not None
            clients = [Raw(program.url) for _ in range(20)]
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
        async with Raw(program.url, alice) as one, Raw(program.url, bob) as other, Raw(program.url, "guess") as nobody:
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
            async with Raw(program.url, token) as client:
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
async def test_five_hundred_abandoned_sessions_leave_nothing(tmp_path: Path) -> None:
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        async with gateway(tmp_path, servers, sessions={"idle": 2.0}) as program, Raw(program.url) as client:
            assert program.gateway is not None

            def tasks() -> int:
                """All but those of the scripted server, which has one for each kept connection."""
                return sum("FaultServer" not in getattr(t.get_coro(), "__qualname__", "") for t in asyncio.all_tasks())

            before, files = tasks(), len(list(Path("/proc/self/fd").iterdir()))
            for _ in range(10):
                clients = [Raw(program.url) for _ in range(50)]
                await asyncio.gather(*(each.initialize() for each in clients))
                await asyncio.gather(*(each.call("counter__count") for each in clients))
                await asyncio.gather(*(each.__aexit__() for each in clients))
            assert http.sessions.handshakes >= 500
            await until(lambda: http.sessions.deletes == 500, 30)
            gate = program.gateway
            await until(lambda: not gate.sessions.live and len(http.sessions.sessions) <= 1, 10)
            assert await gate.store.count(kind="session") == 0
            await until(lambda: tasks() <= before + 3, 10)
            kept = 2 * 100 + 10  # both ends of the pool's connections: as many as there were calls at once
            await until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= files + kept, 10)
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"


@pytest.mark.promise("gateway.program")
async def test_a_sighup_and_an_edited_file_change_the_servers_and_keep_the_sessions(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http, FaultServer() as other:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        async with Raw(await process.start(store)) as client:
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            process.file.write_text(
                json.dumps({"mcpServers": {"counter": {"url": http.url}, "more": {"url": other.url}}})
            )
            process.hup()

            async def has(name: str) -> bool:
                return name in await client.tools()

            async with asyncio.timeout(patience(15)):
                while not await has("more__count"):
                    await asyncio.sleep(0.05)
            assert (await client.call("counter__count")).text == "2"
            assert (await client.call("more__count")).text == "1"
            # A mistake changes nothing.
            process.file.write_text('{"mcpServers": {"counter": {"urll": "x"}}}')
            process.hup()
            assert (await client.call("more__count")).text == "2"
            process.file.write_text(json.dumps({"mcpServers": {"counter": {"url": http.url}}}))
            async with asyncio.timeout(patience(15)):  # found by itself
                while await has("more__count"):
                    await asyncio.sleep(0.05)
            assert (await client.call("counter__count")).text == "3"
            assert (await client.call("more__count")).error["code"] == -32602
        await process.stop()


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


async def lose_by_a_safe_call(http: FaultServer, client: Raw) -> None:
    """The backend forgets the session, and only a call that may be repeated meets the loss."""
    http.sessions.sessions.clear()
    await client.ask("logging/setLevel", {"level": "info"})


async def told_then(client: Raw, tool: str, text: str, /, **arguments: Any) -> None:
    """The next unsafe call is refused with the news, once, and the one after it runs in the new session."""
    told = await client.call(tool, **arguments)
    assert told.result["isError"], told.text
    assert told.result["_meta"]["dev.holdfast/error"]["kind"] == "SessionReplaced"
    assert (await client.call(tool, **arguments)).text == text


@pytest.mark.promise("gateway.state-loss")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_loss_that_a_safe_call_met_is_told_after_a_restart(tmp_path: Path, how: int) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        async with Raw(await process.start(store)) as client:
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            await lose_by_a_safe_call(http, client)
            await process.stop(how)
            client.url = await process.start(store)
            await told_then(client, "counter__count", "1")
            await process.stop()  # in its own time, so that what was reported is written down
            client.url = await process.start(store)
            assert (await client.call("counter__count")).text == "2"
            await process.stop()


@pytest.mark.promise("gateway.state-loss")
async def test_a_loss_is_told_by_another_process_and_after_a_rest(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http:
        servers, few = {"counter": {"url": http.url}}, {"live": 1}
        async with (
            gateway(tmp_path, servers, store=store, sessions=few) as one,
            gateway(tmp_path, servers, store=store) as other,
            Raw(one.url) as client,
            Raw(one.url) as neighbour,
        ):
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            await lose_by_a_safe_call(http, client)
            await neighbour.initialize()
            assert one.gateway is not None
            await until(lambda: one.gateway is not None and len(one.gateway.sessions.live) == 1)
            await told_then(client, "counter__count", "1")
            await lose_by_a_safe_call(http, client)
            client.url = other.url
            await told_then(client, "counter__count", "1")


@pytest.mark.promise("gateway.state-loss")
async def test_a_program_that_died_while_its_session_rested_is_told(tmp_path: Path) -> None:
    servers = {"notebook": {**NOTEBOOK, "start": "lazy"}}
    async with (
        gateway(tmp_path, servers, sessions={"live": 1}) as program,
        Raw(program.url) as client,
        Raw(program.url) as neighbour,
    ):
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools, 20)
        await client.initialize()
        assert (await client.call("notebook__write", text="a")).text == "noted, 1 so far"
        [session] = gate.sessions.live.values()
        link = session.links["notebook"].link
        [pid] = children_of(os.getpid(), "holdfast.gateway.demo.notebook")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not link.keeps_child)
        await neighbour.initialize()
        await until(lambda: session.id not in gate.sessions.live)
        await told_then(client, "notebook__write", "noted, 1 so far", text="b")


def children_of(parent: int, words: str) -> list[int]:
    """Programs below a process, by words of their command line."""
    found: list[int] = []
    for each in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in map(int, each.read_text().split()):
            try:
                if words in Path(f"/proc/{pid}/cmdline").read_bytes().decode():
                    found.append(pid)
            except OSError:
                continue
            found.extend(children_of(pid, words))
    return found


@pytest.mark.promise("gateway.state-loss")
async def test_another_url_under_the_same_name_is_told_as_a_loss(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http, FaultServer() as moved, Raw("") as client:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, store=store) as program:
            client.url = program.url
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
        async with gateway(tmp_path, {"counter": {"url": moved.url}}, store=store) as program:
            client.url = program.url
            await told_then(client, "counter__count", "1")
            assert (await client.delete()).status == 204


class Slow(FaultServer):
    """A server whose handshake waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def _serve(self, request: Any, writer: asyncio.StreamWriter) -> bool:
        if request.method == "initialize":
            await self.gate.wait()
        return await super()._serve(request, writer)


@pytest.mark.promise("gateway.state-loss")
async def test_what_a_client_that_hung_up_was_told_is_told_again(tmp_path: Path) -> None:
    async with (
        Slow() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}) as program,
        Raw(program.url) as client,
    ):
        await client.initialize()
        assert (await client.call("counter__count")).text == "1"
        http.sessions.sessions.clear()
        http.gate.clear()
        before = len(http.requests)
        body = json.dumps(
            {"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {"name": "counter__count", "arguments": {}}}
        )
        head = "".join(f"{name}: {value}\r\n" for name, value in client.headers().items())
        host, port = program.url.split("/")[2].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST /mcp HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n{head}\r\n{body}".encode())
        await until(lambda: any(request.method == "initialize" for request in http.requests[before:]))
        writer.close()
        await writer.wait_closed()
        http.gate.set()
        gate = program.gateway
        assert gate is not None
        [session] = gate.sessions.live.values()
        await until(lambda: not session.calls)
        await told_then(client, "counter__count", "1")
        async with aiohttp.ClientSession() as http_1_0:  # who says goodbye with its request is told as well
            await lose_by_a_safe_call(http, client)
            async with http_1_0.post(client.url, data=body, headers=client.headers(connection="close")) as answer:
                assert "call again" in await answer.text()
            assert (await client.call("counter__count")).text == "1"


@pytest.mark.promise("gateway.state-loss")
@pytest.mark.parametrize("backend", ["http", "program"])
async def test_a_principals_session_lives_while_it_works_and_its_expiry_is_told(tmp_path: Path, backend: str) -> None:
    token, hashed = new_token()
    auth = {"tokens": [{"hash": hashed, "principal": "alice"}]}
    async with FaultServer() as http, FaultServer() as busy:
        mine = {"url": http.url} if backend == "http" else {**NOTEBOOK, "start": "lazy"}
        tool, arguments = ("mine__count", {}) if backend == "http" else ("mine__write", {"text": "a"})
        first, second = ("1", "2") if backend == "http" else ("noted, 1 so far", "noted, 2 so far")
        servers = {"mine": {**mine, "reuse": "principal"}, "other": {"url": busy.url}}
        sessions = {"idle": 2.0}
        async with (
            gateway(tmp_path, servers, auth=auth, sessions=sessions) as program,
            Raw(program.url, token) as client,
        ):
            gate = program.gateway
            assert gate is not None
            await until(lambda: {"mine", "other"} <= {route.backend for route in gate.table.tools.values()}, 20)
            await client.initialize()
            assert (await client.call(tool, **arguments)).text == first
            used = gate.backends["mine"].links.of_principal(Principal("alice"), 2.0)
            used.used -= 3  # it works elsewhere for longer than a session may idle
            await gate.reaper.reap()
            assert (await client.call(tool, **arguments)).text == second
            await client.delete()
            client.session = None
            used.used -= 3
            async with asyncio.timeout(patience(10)):
                while gate.backends["mine"].links.has_principal("alice") or not await lost(gate):
                    await gate.reaper.reap()
                    await asyncio.sleep(0.05)
            await client.initialize()
            await told_then(client, tool, first, **arguments)


async def lost(gate: Any) -> bool:
    """Is the principal's session gone, and its loss kept to be told?"""
    page = await gate.store.scan(kind="link")
    return any(isinstance(record.data, dict) and record.data.get("lost") is True for record in page.records)


@pytest.mark.promise("gateway.state-loss")
async def test_after_a_store_outage_two_processes_agree_on_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, down = f"sqlite:///{tmp_path}/s.db", False
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        async with (
            gateway(tmp_path, servers, store=store) as one,
            gateway(tmp_path, servers, store=store) as other,
            Raw(one.url) as client,
        ):
            for program in (one, other):
                assert program.gateway is not None
                for name in ("get", "commit"):
                    monkeypatch.setattr(program.gateway.store, name, failing(program.gateway.store, name, lambda: down))
            await client.initialize()
            for number, program in enumerate((one, other)):
                client.url = program.url
                assert (await client.call("counter__count")).text == str(number + 1)
            down = True
            http.sessions.sessions.clear()
            for program in (one, other):
                client.url = program.url
                await told_then(client, "counter__count", "1")
            down = False
            before = http.sessions.deletes
            await until(lambda: http.sessions.deletes > before, 20)  # one of the two is given up
            kinds: list[str] = []
            for program in (one, other, one, other):
                client.url = program.url
                answer = await client.call("counter__count")
                meta = answer.result.get("_meta", {}).get("dev.holdfast/error", {})
                kinds.append(meta.get("kind") or answer.text)
            assert sorted(kinds) == ["2", "3", "4", "SessionReplaced"]


def failing(store: Any, name: str, down: Callable[[], bool]) -> Any:
    """A method of a store that can be out of reach."""
    real = getattr(store, name)

    async def method(*args: Any, **named: Any) -> Any:
        if down():
            raise StoreDown("the store is out of reach")
        return await real(*args, **named)

    return method


@pytest.mark.promise("gateway.sealed")
async def test_keys_seal_what_a_gateway_keeps_and_a_mixed_store_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    keys = [new_key()]
    (tmp_path / "keys").write_text(keys[0])

    def holdfast(*args: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([HOLDFAST, *args], capture_output=True, text=True, timeout=60)

    async with FaultServer() as http:
        config = config_of(tmp_path, {"counter": {"url": http.url}}, store=url)
        async with Program(config).running() as program, Raw(program.url) as client:
            await client.initialize()
            await client.call("counter__count")
        assert b"capabilities" in b"".join(path.read_bytes() for path in tmp_path.glob("s.db*"))
        with pytest.raises(ConfigError, match="not sealed") as refused:
            async with Program(config, keys=keys).running():
                pass
        assert "reseal" in (refused.value.remedy or "")
        listed = holdfast("sessions", "ls", "--store", url, "--keys", str(tmp_path / "keys"))
        assert listed.returncode == 1
        assert "not sealed" in listed.stderr
        assert holdfast("store", "reseal", url, "--plaintext", "--keys-file", str(tmp_path / "keys")).returncode == 0
        async with Program(config, keys=keys).running() as program, Raw(program.url) as other:
            other.session = client.session
            assert (await other.call("counter__count")).text == "2"
        listed = holdfast("sessions", "ls", "--store", url, "--keys", str(tmp_path / "keys"), "--json")
        assert (listed.returncode, len(json.loads(listed.stdout))) == (0, 1)
        with pytest.raises(ConfigError, match="without keys"):
            async with Program(config).running():
                pass
        assert holdfast("sessions", "ls", "--store", url).returncode == 2


@pytest.mark.promise("gateway.private")
async def test_the_file_of_sessions_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "g.json"
    file.write_text(json.dumps({"listen": {"port": 0}, "mcpServers": {}}))
    config = load_config(file)

    def modes() -> set[int]:
        return {each.stat().st_mode & 0o777 for each in (tmp_path / "state" / "holdfast").iterdir()}

    async with Program(config).running():
        assert modes() == {0o600}
    for each in (tmp_path / "state" / "holdfast").iterdir():
        each.chmod(0o644)  # as versions before this one made it
    async with Program(config).running():
        assert modes() == {0o600}


@pytest.mark.promise("gateway.program")
async def test_where_nothing_can_be_kept_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("not a folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "g.json"
    file.write_text(json.dumps({"listen": {"port": 0}, "mcpServers": {}}))
    with pytest.raises(ConfigError, match="can't be kept") as refused:
        async with Program(load_config(file)).running():
            pass
    assert "--store memory:" in (refused.value.remedy or "")


@pytest.mark.promise("gateway.program")
@pytest.mark.parametrize("reuse", ["session", "principal", "shared"])
async def test_a_reload_with_the_same_url_keeps_sessions_and_calls(tmp_path: Path, reuse: str) -> None:
    token, digest = new_token()
    settings: dict[str, Any] = {
        "auth": {"tokens": [{"hash": digest, "principal": "alice"}]},
        "sessions": {"drain": 60},
    }
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "reuse": reuse}}
        async with gateway(tmp_path, servers, **settings) as program, Raw(program.url, token) as client:
            gate = program.gateway
            assert gate is not None
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            slow = asyncio.create_task(client.call("counter__wait"))
            await until(lambda: sum(request.method == "tools/call" for request in http.requests) == 2)
            changed = {"counter": {"url": http.url, "reuse": reuse, "timeout": 77}}
            reloading = asyncio.create_task(gate.reload(config_of(tmp_path, changed, **settings)))
            await until(lambda: gate.backends["counter"].entry.server.timeout == 77)
            assert (await client.call("counter__count")).text == "2"
            assert not reloading.done()
            http.sessions.release.set()
            assert not (await slow).result["isError"]
            await reloading
            assert (await client.call("counter__count")).text == "3"


@pytest.mark.promise("gateway.children")
async def test_a_program_that_made_room_is_subscribed_again(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    said = {
        "capabilities": '{"tools":{},"resources":{"subscribe":true}}',
        "resources/list": '{"resources":[{"uri":"note://one","name":"one"}]}',
        "resources/templates/list": '{"resourceTemplates":[]}',
        "resources/subscribe": "{}",
        "log": str(seen),
    }

    def asked(method: str) -> int:
        return seen.read_text().count(f'"method":"{method}"') if seen.exists() else 0

    servers = {"notes": {**raw_program(said), "start": "lazy"}}
    async with (
        gateway(tmp_path, servers, sessions={"children": 1}) as program,
        Raw(program.url) as one,
        Raw(program.url) as other,
    ):
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools and not gate.describe()["children"], 20)
        await one.initialize()
        assert (await one.ask("resources/subscribe", {"uri": "note://one"})).result == {}
        await other.initialize()
        assert not (await other.call("notes__t")).result.get("isError")  # in its place
        assert asked("resources/subscribe") == 1
        await one.ask("logging/setLevel", {"level": "info"})
        told_or_done = await one.call("notes__t")
        assert "call again" in str(told_or_done.last) or not told_or_done.result.get("isError")
        assert asked("resources/subscribe") == 2


@pytest.mark.promise("gateway.durable")
async def test_subscriptions_and_log_level_are_kept_in_a_store_on_disk(tmp_path: Path) -> None:
    async with RealServer("sdk") as real:
        servers = {"real": {"url": real.url, "era": "2025"}}
        async with (
            gateway(tmp_path, servers, store=f"sqlite:///{tmp_path}/s.db") as program,
            Raw(program.url) as client,
        ):
            await client.initialize()
            assert program.gateway is not None
            assert (await client.ask("logging/setLevel", {"level": "warning"})).result == {}
            session = next(iter(program.gateway.sessions.live.values()))
            await session.record.set_subscription("note://one", "real")
            await session.record.read()
            assert session.record.log_level == "warning"
            assert session.record.subscriptions == {"note://one": "real"}
            await session.record.set_subscription("note://one", None)
            await session.record.read()
            assert session.record.subscriptions == {}


@pytest.mark.promise("gateway.reuse")
async def test_a_principal_in_use_keeps_its_session(tmp_path: Path) -> None:
    token, digest = new_token()
    auth = {"tokens": [{"hash": digest, "principal": "alice"}]}
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "reuse": "principal"}}
        async with gateway(tmp_path, servers, auth=auth, sessions={"idle": 0.6}) as program:
            async with Raw(program.url, token) as client:
                await client.initialize()
                began, counts = time.monotonic(), []
                while time.monotonic() - began < 2.0:
                    counts.append((await client.call("counter__count")).text)
                assert counts == [str(number + 1) for number in range(len(counts))]
            gate = program.gateway
            assert gate is not None
            await until(lambda: not any(session.count for session in http.sessions.sessions.values()), 10)


@pytest.mark.promise("gateway.program")
async def test_a_reload_of_policy_keeps_sessions_and_calls(tmp_path: Path) -> None:
    async with FaultServer() as http, FaultServer() as other:
        one = {"counter": {"url": http.url}}
        async with gateway(tmp_path, one) as program, Raw(program.url) as client:
            gate = program.gateway
            assert gate is not None
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            waiting = asyncio.create_task(client.call("counter__wait"))
            await until(lambda: any(session.calls for session in gate.sessions.live.values()))
            changed = {"more": {"url": other.url}, "counter": {"url": http.url, "descriptions": {"count": "Count!"}}}
            await gate.reload(config_of(tmp_path, changed))
            assert (await client.call("counter__count")).text == "2"
            http.sessions.release.set()
            assert not (await waiting).result["isError"]
            tools = (await client.ask("tools/list")).result["tools"]
            assert next(tool for tool in tools if tool["name"] == "counter__count")["description"] == "Count!"
            # Another server under the same name: its old state is gone, and that is told.
            await gate.reload(config_of(tmp_path, {"counter": {"url": other.url}}))
            assert "call again" in (await client.call("counter__count")).text
            assert (await client.call("counter__count")).text == "1"
        assert http.sessions.deletes >= 1


@pytest.mark.promise("gateway.durable")
async def test_a_killed_gateway_on_the_same_port_has_its_programs_back(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    process = Process(tmp_path, {"notebook": NOTEBOOK})
    async with Raw(await process.start(store)) as client:
        await client.initialize()
        assert (await client.call("notebook__write", text="a")).text == "noted, 1 so far"
        await process.stop(signal.SIGKILL)
        client.url = await process.start(store)
        assert "call again" in (await client.call("notebook__write", text="b")).text
        assert (await client.call("notebook__write", text="b")).text == "noted, 1 so far"
    await process.stop()


@pytest.mark.promise("gateway.limits")
async def test_the_newest_session_is_served_however_many_listen(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"live": 2}) as program:
            async with Raw(program.url) as one, Raw(program.url) as two, Raw(program.url) as three:
                await one.initialize()
                await two.initialize()
                async with one.stream(), two.stream():
                    await three.initialize()
                    assert [(await three.call("counter__count")).text for _ in range(2)] == ["1", "2"]


@pytest.mark.promise("gateway.limits")
async def test_limits_hold_against_parallel_beginnings(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"per_principal": 3}) as program:
            clients = [Raw(program.url) for _ in range(12)]
            answers = await asyncio.gather(*(client.initialize() for client in clients))
            assert sorted(answer.status for answer in answers) == [200] * 3 + [503] * 9
            for client in clients:
                await client.__aexit__()


@pytest.mark.promise("gateway.expiry")
async def test_a_call_longer_than_the_idle_time_keeps_its_session(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"idle": 0.4}) as program:
            gate = program.gateway
            assert gate is not None
            async with Raw(program.url) as client:
                await client.initialize()
                assert (await client.call("counter__count")).text == "1"
                waiting = asyncio.create_task(client.call("counter__wait"))
                await until(lambda: any(session.calls for session in gate.sessions.live.values()))
                began = time.monotonic()
                await until(lambda: time.monotonic() - began > 1.2)
                http.sessions.release.set()
                assert not (await waiting).result["isError"]
                assert (await client.call("counter__count")).text == "2"


@pytest.mark.promise("gateway.routing")
async def test_a_list_that_changes_in_a_call_is_fetched_anew_for_that_session(tmp_path: Path) -> None:
    script = Path(__file__).with_name("revealing_server.py")
    servers = {"r": {"command": sys.executable, "args": [str(script)], "era": "2025"}}
    async with gateway(tmp_path, servers) as program, Raw(program.url) as client, Raw(program.url) as other:
        await client.initialize()
        await other.initialize()
        assert await client.tools() == ["r__reveal"]
        async with client.stream() as events:
            await client.call("r__reveal")
            async with asyncio.timeout(patience(20)):  # an earlier change, of the start, may be told first
                while await client.tools() != ["r__reveal", "r__secret"]:
                    assert (await events.next(20))["method"] == "notifications/tools/list_changed"
        assert (await client.call("r__secret")).text == "moss"
        assert await other.tools() == ["r__reveal"]


@pytest.mark.promise("gateway.limits")
async def test_resting_sessions_called_at_once_are_all_there(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"live": 2}) as program:
            clients = [Raw(program.url) for _ in range(10)]
            for client in clients:
                await client.initialize()
            for turn in range(1, 5):
                answers = await asyncio.gather(*(client.call("counter__count") for client in clients))
                assert [answer.text for answer in answers] == [str(turn)] * 10
            for client in clients:
                await client.__aexit__()


@pytest.mark.promise("gateway.program")
async def test_a_reload_while_a_session_begins_leaves_it_on_no_old_server(tmp_path: Path) -> None:
    async with FaultServer() as old, FaultServer() as new:
        async with gateway(tmp_path, {"a": {"url": old.url}}, sessions={"start": 10}) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: gate.table.tools)
            async with Raw(program.url) as client:
                from holdfast.testing import Fault

                old.plan(Fault.HANG, method="initialize")
                handshakes = sum(request.method == "initialize" for request in old.requests)
                beginning = asyncio.create_task(client.initialize())
                await until(lambda: sum(request.method == "initialize" for request in old.requests) > handshakes)
                await gate.reload(config_of(tmp_path, {"a": {"url": new.url}}, sessions={"start": 10}))
                await beginning
                before = sum(request.method == "tools/call" for request in old.requests)
                texts = [(await client.call("a__count")).text for _ in range(3)]
                assert texts[-1].isdigit()
                assert sum(request.method == "tools/call" for request in old.requests) == before
