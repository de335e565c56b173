"""What a fault hunter found in the first version, and what must stay mended."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.auth import new_token
from holdfast.gateway.backends.routing import Pattern, build
from holdfast.gateway.config.file import read_config
from holdfast.gateway.config.settings import Naming
from holdfast.gateway.fronts.streams import Streams
from holdfast.gateway.server import Program
from holdfast.testing import FaultServer
from tests.gateway.kit import Raw, config_of, gateway
from tests.gateway.test_routing import offer
from tests.gateway.test_sessions import HOLDFAST, Process, reaped
from tests.links.kit import until
from tests.links.real import RealServer

NOTEBOOK = {"command": sys.executable, "args": ["-m", "holdfast.gateway.demo.notebook"], "era": "2025"}


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
            await session.subscribed("note://one", "real")
            await session.read()
            assert session.log_level == "warning"
            assert session.subscriptions == {"note://one": "real"}
            await session.subscribed("note://one", None)
            await session.read()
            assert session.subscriptions == {}


@pytest.mark.promise("gateway.callers")
async def test_a_reload_never_opens_a_public_gateway(tmp_path: Path) -> None:
    token, digest = new_token()
    file = tmp_path / "g.json"
    auth = {"tokens": [{"hash": digest, "principal": "alice"}]}
    listen = {"host": "0.0.0.0", "port": 0}
    file.write_text(json.dumps({"listen": listen, "auth": auth, "store": "memory:", "mcpServers": {}}))
    from holdfast.gateway.config.file import load_config

    async with Program(load_config(file)).running() as program:
        async with Raw(f"http://127.0.0.1:{program.port}/mcp") as client:
            assert (await client.initialize()).status == 401
            file.write_text(json.dumps({"listen": {"port": 0}, "mcpServers": {}}))
            assert await program.reload() is False
            assert (await client.initialize()).status == 401
            client.token = token
            assert (await client.initialize()).status == 200


@pytest.mark.promise("gateway.hostile")
def test_no_uri_takes_long_to_route() -> None:
    began = time.process_time()
    for template, uri in (
        ("db://{schema}.{table}.{column}", "db://" + "." * 8000 + "/"),
        ("git://{+path}@{rev}", "git://" + "@" * 8000 + "/"),
        ("x:{a}{b}{c}{d}y", "x:" + "y" * 8000 + "z"),
    ):
        Pattern.of(template).fits(uri)
    assert time.process_time() - began < 0.5
    assert Pattern.of("a{x}").fits("ab")
    assert not Pattern.of("a{x}b").fits("a/b")
    assert Pattern.of("a{+x}b").fits("a/b")
    assert not Pattern.of("aba{x}aba").fits("aba")
    assert Pattern.of("plain").fits("plain")


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
            async with asyncio.timeout(20):
                return json.loads(await process.stdout.readline())

        handshake = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        assert (await ask(0, "initialize", handshake))["result"]["serverInfo"]["name"] == "holdfast"
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
        async with asyncio.timeout(20):
            assert await process.wait() == 0
        await reaped()
        assert not [session for session in http.sessions.sessions.values() if session.count]


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


@pytest.mark.promise("gateway.counts")
async def test_a_header_key_lives_again_after_its_session_expired(tmp_path: Path) -> None:
    async with FaultServer() as http:
        settings = {"header": "x-key", "idle": 0.4}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=settings) as program:
            gate = program.gateway
            assert gate is not None
            async with Raw(program.url) as client:
                call = {"name": "counter__count", "arguments": {}}
                for _ in range(2):
                    first = await asyncio.gather(*(client.ask_2026("tools/call", call, x_key="k") for _ in range(5)))
                    assert sorted(answer.text for answer in first) == ["1", "2", "3", "4", "5"]
                    await until(lambda: not gate.sessions.live, 10)


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


@pytest.mark.promise("gateway.front-2025")
async def test_events_of_another_process_are_not_mistaken_for_ours() -> None:
    old, new = Streams(), Streams()
    for number in range(5):
        old.own.add({"n": number})
    event = old.own.id + "-5"
    new.own.add({"n": "new"})
    assert new.resume(event) == (new.own, 0)
    assert new.resume("nonsense") == (new.own, 0)
    answer = old.answer()
    answer.add({})
    assert old.resume(f"{answer.id}-1") == (answer, 1)
    assert old.resume(f"{answer.id}-99")[0] is old.own


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
def test_in_mode_none_a_name_keeps_its_holder() -> None:
    late, early = offer("late", ["x"]), offer("early", ["x"])
    before = build(Naming(mode="none"), [early])
    after = build(Naming(mode="none"), [late, early], before)
    assert after.tools["x"].backend == "early"
    assert [(clash.winner, clash.loser) for clash in after.clashes] == [("early", "late")]
    assert build(Naming(mode="priority"), [late, early], before).tools["x"].backend == "late"


@pytest.mark.promise("gateway.hostile")
async def test_a_handshake_that_can_not_be_kept_is_refused_before_anything_starts(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with Raw(program.url) as client:
            gate = program.gateway
            assert gate is not None
            await until(lambda: gate.table.tools)
            handshakes = http.sessions.handshakes
            deep: Any = {}
            for _ in range(150):
                deep = {"x": deep}
            for wrong in (deep, {"x": "y" * 20_000}):
                answer = await client.initialize(wrong)
                assert (answer.status, answer.error["code"]) == (400, -32602)
            assert http.sessions.handshakes == handshakes


@pytest.mark.promise("gateway.hostile")
async def test_a_head_without_end_is_cut(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        reader, writer = await asyncio.open_connection("127.0.0.1", program.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: ")
        try:
            for _ in range(64):
                writer.write(b"y" * 65_536)
                await writer.drain()
        except ConnectionError:
            pass
        async with asyncio.timeout(10):
            try:
                line = await reader.readline()
            except ConnectionError:
                line = b""
        assert not line or b" 431 " in line
        writer.close()
        async with Raw(program.url) as client:
            await client.initialize()
            big = "z" * 1_000_000  # a body may be long
            assert (await client.call("counter__echo", text=big)).status == 200


@pytest.mark.promise("gateway.program")
async def test_a_drain_lasts_as_long_as_it_was_given_and_ends_subscriptions(tmp_path: Path) -> None:
    async with FaultServer() as http:
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions={"drain": 15, "steer": False}) as program:
            client = Raw(program.url)
            await client.initialize()
            waiting = asyncio.create_task(client.call("counter__wait"))
            gate = program.gateway
            assert gate is not None
            await until(lambda: any(session.calls for session in gate.sessions.live.values()))
            loop = asyncio.get_running_loop()
            loop.call_later(6.0, http.sessions.release.set)
        assert not (await waiting).result["isError"]
        await client.__aexit__()


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
            async with asyncio.timeout(20):  # an earlier change, of the start, may be told first
                while await client.tools() != ["r__reveal", "r__secret"]:
                    assert (await events.next(20))["method"] == "notifications/tools/list_changed"
        assert (await client.call("r__secret")).text == "moss"
        assert await other.tools() == ["r__reveal"]


@pytest.mark.promise("gateway.config")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mcpServers: {a: {command: x, 8080: y, on: z}}", None),
        ("mcpServers: {a: {url: 'http://x/mcp', headers: {k: \"file:a\\0b\"}}}", "in its value"),
        ("store: bogus://x\nmcpServers: {}", "no store has the scheme"),
        ("listen: {path: /healthz}\nmcpServers: {}", "the gateway's own"),
        ("sessions: {idle: 100, max_age: 50}\nmcpServers: {}", "shorter than idle"),
        ("auth: {tokens: []}\nmcpServers: {}", "no tokens"),
        ("mcpServers: {a: {url: 'http://x/mcp', pass_headers: [mcp-session-id]}}", "set anew"),
        ("sessions: {handles: true}\nmcpServers: {holdfast: {command: x}}", "rename the server"),
    ],
)
def test_edges_of_a_configuration(tmp_path: Path, text: str, words: str | None) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(text)
    config, mistakes = read_config(file)
    if words is None:
        assert config is not None, mistakes
    else:
        assert config is None
        assert words in "\n".join(str(mistake) for mistake in mistakes)


@pytest.mark.promise("gateway.callers")
async def test_a_web_page_of_an_allowed_origin_may_call(tmp_path: Path) -> None:
    listen = {"port": 0, "origins": ["https://app.example"]}
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, listen=listen) as program:
        async with Raw(program.url) as client:
            asked = {"origin": "https://app.example", "access-control-request-headers": "mcp-session-id"}
            preflight = await client.send(b"", "OPTIONS", asked)
            assert preflight.status == 204
            assert preflight.headers["access-control-allow-headers"] == "mcp-session-id"
            assert (await client.send(b"", "OPTIONS", {"origin": "https://evil.example"})).status == 403
            await client.initialize()
            answer = await client.ask("ping", origin="https://app.example")
            assert answer.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.promise("gateway.program")
async def test_operators_see_sessions_and_backends_and_end_one(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with FaultServer() as http:
        process = Process(tmp_path, {"counter": {"url": http.url}})
        async with Raw(await process.start(store)) as client:
            await client.initialize()
            await client.call("counter__count")

            def holdfast(*args: str) -> subprocess.CompletedProcess[str]:
                return subprocess.run([HOLDFAST, *args], capture_output=True, text=True, timeout=60)

            listed = await asyncio.to_thread(holdfast, "sessions", "ls", "--store", store, "--json")
            (record,) = json.loads(listed.stdout)
            assert record["data"]["backends"] == ["counter"]
            assert client.session is not None
            assert client.session not in listed.stdout
            shown = await asyncio.to_thread(holdfast, "sessions", "show", record["id"], "--store", store)
            assert "counter" in shown.stdout
            backends = await asyncio.to_thread(holdfast, "backends", "--store", store, "--json")
            (mine,) = json.loads(backends.stdout)
            assert mine["address"] == process.url
            assert "counter" in mine["backends"]
            config = str(process.file)
            ended = await asyncio.to_thread(
                holdfast, "sessions", "end", record["id"], "--config", config, "--store", store
            )
            assert ended.returncode == 0, ended.stderr
            assert http.sessions.deletes == 1
            async with asyncio.timeout(10):
                while (await client.ask("ping")).status != 404:
                    await asyncio.sleep(0.02)
        await process.stop()
