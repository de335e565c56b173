"""The gateway for one client over two pipes: a client that does not read, hangs up, or is too slow."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.fronts.stdio import StdioFront
from holdfast.gateway.gateway import Gateway
from holdfast.stores import open_store
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.gateways import HOLDFAST, config_of, reaped
from tests.gateway.parking.asking_backend import asking_backend

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
META_2026 = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HUNG = 60  # seconds after which a test that waits for a process has failed


def line(id: int, method: str, params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


class Client:
    """A client that reads when it is told to, and what the front has sent it."""

    def __init__(
        self, serving: StdioFront, front: "asyncio.Task[None]", stdin: asyncio.StreamReader, stdout: int
    ) -> None:
        self.serving = serving
        self.front = front
        self.stdin = stdin
        self.stdout = stdout
        self._buffer = bytearray()

    def send(self, id: int, method: str, params: Any) -> None:
        self.stdin.feed_data(line(id, method, params))

    def read(self) -> list[Any]:
        """All that has come so far."""
        os.set_blocking(self.stdout, False)
        try:
            while data := os.read(self.stdout, 1_000_000):
                self._buffer += data
        except BlockingIOError:
            pass
        return [json.loads(each) for each in self._buffer.split(b"\n")[:-1]]

    def write(self, *messages: Any) -> None:
        """Send each as a line, all at once."""
        self.stdin.feed_data(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    @property
    def backlog(self) -> int:
        """Bytes that the front keeps for us."""
        return self.serving.backlog

    def has(self, id: int | str) -> bool:
        return any(message.get("id") == id for message in self.read() if isinstance(message, dict))


@asynccontextmanager
async def served(
    folder: Path,
    servers: dict[str, Any],
    sessions: dict[str, Any] | None = None,
    *,
    hello: dict[str, Any] | None = HELLO,
    **clients: Any,
) -> AsyncGenerator[Client]:
    async with open_store("memory:") as store:
        gateway = Gateway(config_of(folder, servers, clients=clients, sessions=sessions or {}), store)
        inside, outside = os.pipe()
        reader = asyncio.StreamReader()
        try:
            async with gateway.running():
                serving = StdioFront(gateway, outside)
                front = asyncio.create_task(serving.run(reader))
                client = Client(serving, front, reader, inside)
                if hello is not None:
                    client.send(0, "initialize", hello)
                    await until(lambda: client.has(0))
                yield client
                if not front.done():
                    reader.feed_eof()
                async with asyncio.timeout(HUNG):
                    await front
        finally:
            os.close(outside)
            os.close(inside)


def _echoes(client: Client, count: int) -> None:
    for id in range(1, count + 1):
        client.send(id, "tools/call", {"name": "b__echo", "arguments": {"text": "x" * 10_000}})


@pytest.mark.promise("gateway.stdio")
async def test_a_message_that_is_too_long_is_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    async with FaultServer() as http, served(tmp_path, {"b": {"url": http.url}}) as client:
        client.send(1, "tools/call", {"name": "b__count"})
        await until(lambda: client.has(1))
        client.send(2, "tools/call", {"name": "b__echo", "arguments": {"text": "x" * 5_000_000}})
        late = {"method": "ping", "params": {"x": "x" * 9_000_000}, "jsonrpc": "2.0", "id": 3}
        client.stdin.feed_data(json.dumps(late).encode() + b"\n")
        client.send(4, "tools/call", {"name": "b__count"})
        await until(lambda: client.has(4))
        said = {message["id"]: message for message in client.read() if "id" in message}
        for id in (2, 3):
            assert "at most 4194304 bytes" in said[id]["error"]["message"]
        assert said[4]["result"]["content"][0]["text"] == "2"


@pytest.mark.promise("gateway.stdio-slow")
async def test_a_client_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    async with FaultServer() as http, served(tmp_path, {"b": {"url": http.url}}) as client:
        _echoes(client, 40)  # six times what a pipe holds
        await until(lambda: _sent(http) == 40)  # this loop, which the front shares, goes on
        await until(lambda: len({message.get("id") for message in client.read()} - {None, 0}) == 40)
        assert all("result" in message for message in client.read() if "id" in message)


@pytest.mark.promise("gateway.stdio-slow")
async def test_a_client_that_never_reads_is_let_go_after_its_deadline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FaultServer() as http, served(tmp_path, {"b": {"url": http.url}}, write=0.3) as client:
        _echoes(client, 40)
        async with asyncio.timeout(HUNG):
            await client.front
    assert "clients.write" in caplog.text


@pytest.mark.promise("gateway.stdio-slow")
async def test_no_call_is_taken_of_a_client_far_behind(tmp_path: Path) -> None:
    async with FaultServer() as http, served(tmp_path, {"b": {"url": http.url}}, session_bytes=65536) as client:
        _echoes(client, 20)
        await until(lambda: _sent(http) == 20)
        await _quiet(lambda: client.backlog)
        client.send(99, "tools/call", {"name": "b__echo", "arguments": {"text": "late"}})
        await _quiet(lambda: client.backlog)
        assert _sent(http) == 20
        await until(lambda: client.has(99))
        assert {message.get("id") for message in client.read()} >= set(range(21))


def _sent(http: FaultServer) -> int:
    return len([request for request in http.requests if request.method == "tools/call"])


async def _quiet(count: Callable[[], int]) -> None:
    """Wait until it has stood still for many turns of the loop."""
    same, last = 0, -1
    while same < 40:
        await asyncio.sleep(0.005)
        same, last = (same + 1, last) if count() == last else (0, count())


@pytest.mark.promise("gateway.stdio-slow")
@pytest.mark.parametrize("how", ["hangs up", "SIGTERM", "SIGINT", "SIGHUP"])
async def test_the_process_ends_in_order_when_its_client_hangs_up_or_ends_it(tmp_path: Path, how: str) -> None:
    async with FaultServer() as http:
        file = tmp_path / "gateway.json"
        file.write_text(json.dumps({"mcpServers": {"b": {"url": http.url}}}))
        holdfast = str(Path(sys.executable).parent / "holdfast")
        inside, outside = os.pipe()
        serving = await asyncio.create_subprocess_exec(
            holdfast, "serve", str(file), "--stdio",
            stdin=asyncio.subprocess.PIPE, stdout=outside, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        os.close(outside)
        assert serving.stdin is not None
        serving.stdin.write(line(0, "initialize", HELLO))
        answered = await asyncio.to_thread(os.read, inside, 65536)
        assert b'"result"' in answered
        serving.stdin.write(line(1, "tools/call", {"name": "b__count", "arguments": {}}))
        assert b'"1"' in await asyncio.to_thread(os.read, inside, 65536)
        os.close(inside)
        if how == "hangs up":
            serving.stdin.write(line(2, "ping", {}))  # its answer finds nobody
        else:
            serving.send_signal(getattr(signal, how))
        async with asyncio.timeout(HUNG):
            _, logged = await serving.communicate() if how != "hangs up" else (None, await serving.stderr.read())  # type: ignore[union-attr]
            assert await serving.wait() == 0, logged
        assert b"Traceback" not in logged
        assert not http.sessions.sessions  # ended at its server, too


def is_unknown(message: dict[str, Any]) -> bool:
    told = message.get("result", {}).get("_meta", {}).get("dev.holdfast/error", {})
    return told.get("family") == "OutcomeUnknown"


def call_of(era: str, id: int, tool: str) -> bytes:
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    return line(id, "tools/call", params if era == "2025" else params | {"_meta": META_2026})


@pytest.mark.promise("gateway.stdio")
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("how", ["stdin closed", "told to end", "told to end twice"])
async def test_calls_that_the_end_cuts_off_have_an_unknown_outcome(tmp_path: Path, how: str, era: str) -> None:
    async with FaultServer() as http:
        drain = 0.2 if how != "told to end twice" else 600.0
        async with served(tmp_path, {"b": {"url": http.url}}, sessions={"drain": drain}) as client:
            for id in (1, 2):
                client.stdin.feed_data(call_of(era, id, "b__wait"))
            await until(lambda: _sent(http) == 2)
            if how == "stdin closed":
                client.stdin.feed_eof()
            else:
                client.serving.stop()
                if how == "told to end twice":
                    client.serving.stop()
            async with asyncio.timeout(HUNG):
                await client.front
            answers = {message.get("id"): message for message in client.read()}
            assert is_unknown(answers[1]), answers
            assert is_unknown(answers[2]), answers


@pytest.mark.promise("gateway.stdio")
async def test_told_to_end_after_its_stdin_was_closed_it_waits_no_longer(tmp_path: Path) -> None:
    """Clients close stdin, send SIGTERM two seconds later, and SIGKILL two seconds after that."""
    async with (
        FaultServer() as http,
        served(tmp_path, {"b": {"url": http.url}}, sessions={"drain": 600.0}) as client,
    ):
        client.stdin.feed_data(call_of("2025", 1, "b__wait"))
        await until(lambda: _sent(http) == 1)
        client.stdin.feed_eof()
        await until(lambda: client.serving.closing)
        client.serving.stop()
        async with asyncio.timeout(HUNG):
            await client.front
        assert is_unknown(client.read()[-1])


@pytest.mark.promise("gateway.stdio")
async def test_a_call_that_never_reached_its_server_is_not_called_unknown_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = asyncio.Event()

    async def never(*_: object) -> None:
        stuck.set()
        await asyncio.Event().wait()

    async with (
        FaultServer() as http,
        served(tmp_path, {"b": {"url": http.url}}, sessions={"drain": 0.1}) as client,
    ):
        monkeypatch.setattr(client.serving._gateway.sessions, "find", never)
        client.stdin.feed_data(call_of("2025", 1, "b__count"))
        await asyncio.wait_for(stuck.wait(), HUNG)
        client.stdin.feed_eof()
        async with asyncio.timeout(HUNG):
            await client.front
        error = client.read()[-1]["error"]
        assert error["data"]["family"] == "Unavailable", error
        assert _sent(http) == 0


@pytest.mark.promise("gateway.stdio")
async def test_a_script_that_sends_all_its_lines_at_once_is_answered(tmp_path: Path) -> None:
    async with FaultServer() as http:
        file = tmp_path / "gateway.json"
        file.write_text(json.dumps({"mcpServers": {"b": {"url": http.url}}}))
        serving = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).parent / "holdfast"), "serve", str(file), "--stdio",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        count = line(1, "tools/call", {"name": "b__count", "arguments": {}})
        async with asyncio.timeout(HUNG):
            said, logged = await serving.communicate(line(0, "initialize", HELLO) + count)
    answers = {message["id"]: message for message in map(json.loads, said.splitlines()) if "id" in message}
    assert answers[1]["result"]["content"][0]["text"] == "1", logged


@pytest.mark.promise("gateway.stdio")
@pytest.mark.parametrize("stdin", ["gateway.json", os.devnull])
async def test_without_a_pipe_it_says_so(tmp_path: Path, stdin: str) -> None:
    file = tmp_path / "gateway.json"
    file.write_text('{"mcpServers": {}}')
    holdfast = str(Path(sys.executable).parent / "holdfast")
    with (tmp_path / stdin).open() as opened:
        serving = await asyncio.create_subprocess_exec(
            holdfast, "serve", str(file), "--stdio",
            stdin=opened, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(HUNG):
            _, logged = await serving.communicate()
    assert (serving.returncode, b"stdin is not a pipe" in logged, b"Traceback" in logged) == (2, True, False)


@pytest.mark.promise("gateway.stdio")
async def test_a_stdio_session_that_is_used_does_not_expire_and_what_was_asked_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        file.write_text(json.dumps({"sessions": {"idle": 0.5}, "mcpServers": servers}))
        process = await asyncio.create_subprocess_exec(
            HOLDFAST, "serve", str(file), "--stdio", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None

        async def ask(id: int, method: str, params: Any) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            async with asyncio.timeout(patience(20)):
                return json.loads(await process.stdout.readline())

        handshake = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        assert (await ask(0, "initialize", handshake))["result"]["serverInfo"]["name"] == "faulty"
        began = time.monotonic()
        counts: list[str] = []
        while time.monotonic() - began < 1.6:
            answer = await ask(len(counts) + 1, "tools/call", {"name": "counter__count"})
            counts.append(answer["result"]["content"][0]["text"])
        assert counts == [str(number + 1) for number in range(len(counts))]
        assert (await ask(9000, "ping", {"_meta": 5}))["error"]["code"] == -32600
        assert (await ask(9001, "no/such", {}))["error"]["code"] == -32601
        process.stdin.write(b"not json\n[]\n")
        assert json.loads(await process.stdout.readline())["error"]["code"] == -32700
        assert json.loads(await process.stdout.readline())["error"]["code"] == -32600
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": "z", "method": "ping"}).encode() + b"\n")
        process.stdin.close()
        assert json.loads(await process.stdout.readline()) == {"jsonrpc": "2.0", "id": "z", "result": {}}
        async with asyncio.timeout(patience(20)):
            assert await process.wait() == 0
        await reaped()
        assert not [session for session in http.sessions.sessions.values() if session.count]


@pytest.mark.promise("gateway.questions")
async def test_a_2026_client_over_stdio_answers_a_2025_servers_question_by_its_retry(tmp_path: Path) -> None:
    meta = {**META_2026, "io.modelcontextprotocol/clientCapabilities": {"roots": {}}}
    params = {"name": "asks__ask", "arguments": {"rounds": [[{"method": "roots/list"}]]}, "_meta": meta}
    async with asking_backend() as backend, served(tmp_path, {"asks": {"url": backend.url}}) as client:
        client.send(1, "tools/call", params)
        await until(lambda: client.has(1), 20)
        [asked] = [message["result"] for message in client.read() if message.get("id") == 1]
        [key] = asked["inputRequests"]
        answers = {"inputResponses": {key: {"roots": []}}, "requestState": asked["requestState"]}
        client.send(2, "tools/call", {**params, **answers})
        await until(lambda: client.has(2), 20)
        [done] = [message["result"] for message in client.read() if message.get("id") == 2]
        assert done["content"][0]["text"] == '[{"roots": []}]'
        assert "io.modelcontextprotocol/serverInfo" in done["_meta"]


@pytest.mark.promise("gateway.stdio")
async def test_a_listen_ends_with_stdin_and_is_waited_for_by_nobody(tmp_path: Path) -> None:
    async with (
        FaultServer() as http,
        served(tmp_path, {"b": {"url": http.url}}, sessions={"drain": 600.0}) as client,
    ):
        client.send(1, "subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META_2026})
        acknowledged = "notifications/subscriptions/acknowledged"
        await until(lambda: any(message.get("method") == acknowledged for message in client.read()))
        client.stdin.feed_eof()
        async with asyncio.timeout(patience(20)):
            await client.front
        (answer,) = [message["result"] for message in client.read() if message.get("id") == 1]
        assert answer["resultType"] == "complete"


@pytest.mark.promise("gateway.stdio")
async def test_an_id_whose_request_was_cancelled_at_once_can_be_used_again(tmp_path: Path) -> None:
    async with served(tmp_path, {}) as client:
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        client.write({"jsonrpc": "2.0", "id": 1, "method": "ping"}, cancel)
        client.send(2, "ping", {})
        await until(lambda: client.has(2))
        client.send(1, "ping", {})
        await until(lambda: client.has(1))
        assert [each["result"] for each in client.read() if each["id"] == 1] == [{}]
