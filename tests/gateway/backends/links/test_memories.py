"""Sessions at servers that are lost: whoever notices, the loss is reported once, and to the right caller."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.core.models import Principal
from holdfast.errors import StoreDown
from holdfast.gateway.auth import new_token
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import NOTEBOOK, Process, gateway


async def lose_by_a_safe_call(http: FaultServer, client: RawClient) -> None:
    """The backend forgets the session, and only a call that may be repeated meets the loss."""
    http.sessions.sessions.clear()
    await client.ask("logging/setLevel", {"level": "info"})


async def told_then(client: RawClient, tool: str, text: str, /, **arguments: Any) -> None:
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
        async with RawClient(await process.start(store)) as client:
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
            RawClient(one.url) as client,
            RawClient(one.url) as neighbour,
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
        RawClient(program.url) as client,
        RawClient(program.url) as neighbour,
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
    async with FaultServer() as http, FaultServer() as moved, RawClient("") as client:
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

    async def intercept(self, request: Any) -> None:
        if request.method == "initialize":
            await self.gate.wait()


@pytest.mark.promise("gateway.state-loss")
async def test_what_a_client_that_hung_up_was_told_is_told_again(tmp_path: Path) -> None:
    async with (
        Slow() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}) as program,
        RawClient(program.url) as client,
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
        idle = patience(2.0)  # it must not pass while the client works
        async with (
            gateway(tmp_path, servers, auth=auth, sessions={"idle": idle}) as program,
            RawClient(program.url, token) as client,
        ):
            gate = program.gateway
            assert gate is not None
            await until(lambda: {"mine", "other"} <= {route.backend for route in gate.table.tools.values()}, 20)
            await client.initialize()
            assert (await client.call(tool, **arguments)).text == first
            used = gate.backends["mine"].links.for_principal(Principal("alice"), idle)
            used.used -= idle + 1  # it works elsewhere for longer than a session may idle
            await gate.reaper.reap()
            assert (await client.call(tool, **arguments)).text == second
            await client.delete()
            client.session = None
            used.used -= idle + 1
            async with asyncio.timeout(patience(10)):
                while gate.backends["mine"].links.has_principal("alice") or not await lost(gate):
                    await gate.reaper.reap()
                    await asyncio.sleep(0.05)
            await client.initialize()
            await told_then(client, tool, first, **arguments)


@pytest.mark.promise("gateway.state-loss")
async def test_two_rounds_of_the_reaper_that_end_one_principals_session_keep_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, hashed = new_token()
    auth = {"tokens": [{"hash": hashed, "principal": "alice"}]}
    idle = patience(1.0)
    async with (
        FaultServer() as http,
        gateway(
            tmp_path, {"counter": {"url": http.url, "reuse": "principal"}}, auth=auth, sessions={"idle": idle}
        ) as program,
        RawClient(program.url, token) as client,
    ):
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools, 20)
        await client.initialize()
        await client.call("counter__count")
        stored, both, kept = gate.sessions.stored, asyncio.Event(), asyncio.Event()
        real, rounds = stored.end_at_servers, 0

        async def one_after_the_other(key: str, entries: Any) -> None:
            nonlocal rounds
            if "/principal/" not in key:
                await real(key, entries)
                return
            rounds += 1
            first = rounds == 1
            await real(key, entries)
            if first:
                await both.wait()
            else:
                both.set()
                await kept.wait()  # the other round has ended the session, and kept its loss

        monkeypatch.setattr(stored, "end_at_servers", one_after_the_other)
        await client.delete()
        client.session = None
        backend = gate.backends["counter"]
        await backend.links.close_idle(-1.0, _nobody)
        page = await gate.store.scan(kind="link")
        [record] = [each for each in page.records if "/principal/" in each.id]
        monkeypatch.setattr(stored._lifetimes, "ages", lambda _: (idle + 1, idle + 1))
        ending = [
            asyncio.create_task(stored.end_of_principal(record, backend, gate.settings.sessions)) for _ in range(2)
        ]
        async with asyncio.timeout(patience(10)):
            while not await lost(gate):
                await asyncio.sleep(0.01)
            kept.set()
            await asyncio.gather(*ending)
        assert await lost(gate)


async def _nobody(principal: Principal) -> bool:
    return False


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
            RawClient(one.url) as client,
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
