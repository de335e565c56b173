"""What passes through the gateway arrives as it was sent, digit for digit, or is refused at the side that sent it."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast.events import BackendFailed, BackendItemLeftOut, Event
from holdfast.gateway.backends.lists.catalogue import ITEMS
from holdfast.gateway.fronts.stdio import StdioFront
from holdfast.gateway.gateway import Gateway
from holdfast.stores import open_store
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import config_of, gateway
from tests.gateway.raw_backend import raw_http, raw_program

NASTY = (
    '{"big":12345678901234567890123456789,"huge":1e400,"neg":-0,"negf":-0.0,"one":1.0,"exp":1e2,"exp2":1E+05,'
    '"tail":1.50,"digits":0.12345678901234567891,"small":1e-05,"tiny":1e-400,"plain":[1,2.5,true,null,"x"],'
    '"cut":"a\\ud83d","pair":"\\ud83d\\ude00","low":"\\ude00b","k\\ud83d":"","z":{"b":1,"a":2},"long":'
    + "9" * 4_200
    + "}"
)
"""Every number that Python would change, halves of characters, and keys in no order."""


class Text(str):
    """A number of a message, as its text."""


def tokens(data: bytes | str) -> Any:
    """The value with numbers as their text and objects as lists, so that order and repetition count."""
    return json.loads(data, parse_int=Text, parse_float=Text, parse_constant=Text, object_pairs_hook=list)


def at(value: Any, *keys: str | int) -> Any:
    for key in keys:
        value = value[key] if isinstance(key, int) else dict(value)[key]
    return value


Transport = Literal["http", "program"]
BOTH_ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
BOTH_WAYS = pytest.mark.parametrize("transport", ["http", "program"])


@asynccontextmanager
async def backend(transport: Transport, said: Mapping[str, str]) -> AsyncGenerator[dict[str, Any]]:
    if transport == "program":
        yield {**raw_program(said), "era": said["era"]}
        return
    async with raw_http(said) as url:
        yield {"url": url, "era": said["era"]}


def call_of(arguments: str, era: str, meta: str = "") -> bytes:
    envelope = (
        '"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}'
        if era == "2026"
        else ""
    )
    inner = ",".join(part for part in (meta, envelope) if part)
    params = f'{{"name":"b__t","arguments":{arguments},"_meta":{{{inner}}}}}'
    return f'{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}'.encode()


async def sent(client: RawClient, body: bytes, era: str, method: str = "tools/call") -> Any:
    extra = {"mcp_protocol_version": "2026-07-28", "mcp_method": method} if era == "2026" else {}
    if era == "2026" and method == "tools/call":
        extra["mcp_name"] = "b__t"
    return await client.send(body, headers=client.headers(**extra))


@pytest.mark.promise("gateway.fidelity")
@BOTH_ERAS
@BOTH_WAYS
async def test_arguments_and_results_pass_digit_for_digit(tmp_path: Path, transport: Transport, era: str) -> None:
    result = (
        f'{{"content":[{{"type":"text","text":"half \\ud83d"}}],"structuredContent":{{"seen":@SEEN@,"own":{NASTY}}}}}'
    )
    said = {"era": era, "result": result}
    async with (
        backend(transport, said) as entry,
        gateway(tmp_path, {"b": entry}) as program,
        RawClient(program.url) as client,
    ):
        if era == "2025":
            await client.initialize()
        answer = await sent(client, call_of(NASTY, era), era)
        came = tokens(answer.raw)
        assert at(came, "result", "structuredContent", "own") == tokens(NASTY)
        assert at(came, "result", "content", 0, "text") == "half \ud83d"
        seen = at(came, "result", "structuredContent", "seen")
        assert at(tokens(seen), "params", "arguments") == tokens(NASTY)


@pytest.mark.promise("gateway.fidelity")
@BOTH_WAYS
async def test_progress_passes_as_it_came(tmp_path: Path, transport: Transport) -> None:
    progress = '{"progressToken":@TOKEN@,"progress":1,"total":1e2,"message":"\\ud83d","_meta":{"x":1.0}}'
    said = {"era": "2025", "progress": progress}
    async with (
        backend(transport, said) as entry,
        gateway(tmp_path, {"b": entry}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        answer = await sent(client, call_of("{}", "2025", '"progressToken":1.50'), "2025")
        lines = [line[6:] for line in answer.raw.splitlines() if line.startswith(b"data: {")]
        told = at(tokens(lines[0]), "params")
        assert sorted(told) == sorted(tokens(progress.replace("@TOKEN@", "1.50")))


@pytest.mark.promise("gateway.fidelity")
async def test_errors_of_a_backend_pass_digit_for_digit(tmp_path: Path) -> None:
    error = '{"code":-32050,"message":"half \\ud83d","data":' + NASTY + "}"
    async with (
        raw_http({"era": "2025", "error": error}) as url,
        gateway(tmp_path, {"b": {"url": url, "era": "2025"}}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        answer = await sent(client, call_of("{}", "2025"), "2025")
        assert at(tokens(answer.raw), "error") == tokens(error)


@pytest.mark.promise("gateway.fidelity")
@BOTH_ERAS
@BOTH_WAYS
async def test_definitions_pass_digit_for_digit_also_from_the_store(
    tmp_path: Path, transport: Transport, era: str
) -> None:
    schema = '{"type":"object","properties":{"x":{"type":"number","maximum":1e400,"default":1.50}}}'
    tool = f'{{"name":"t","description":"half \\ud83d","inputSchema":{schema}}}'
    said = {"era": era, "tools": f'{{"tools":[{tool}]}}', "handshake": ',"instructions":"\\ud83d","_meta":{"x":1e400}'}
    store = f"sqlite:///{tmp_path}/g.db"
    envelope = (
        ',"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
        '"io.modelcontextprotocol/clientCapabilities":{}}}'
        if era == "2026"
        else ""
    )
    body = f'{{"jsonrpc":"2.0","id":7,"method":"tools/list"{envelope}}}'.encode()
    expected = tokens(tool.replace('"t"', '"b__t"'))
    async with backend(transport, said) as entry:
        async with gateway(tmp_path, {"b": entry}, store=store) as program, RawClient(program.url) as client:
            if era == "2025":
                await client.initialize()
            assert at(tokens((await sent(client, body, era, "tools/list")).raw), "result", "tools", 0) == expected
        async with open_store(store) as opened:  # as another process finds it, with its backend down
            other = Gateway(config_of(tmp_path, {"b": entry}), opened)
            await other.backends["b"].known_lists.recall()
            catalogue = other.backends["b"].catalogue
            assert catalogue is not None
            kept = catalogue.tools[0]
            assert (
                repr(kept["inputSchema"]["properties"]["x"]) == "{'type': 'number', 'maximum': 1e400, 'default': 1.50}"
            )
            assert kept["description"] == "half \ud83d"


@pytest.mark.promise("gateway.fidelity")
async def test_a_bad_item_is_left_out_and_reported_and_the_rest_is_listed(tmp_path: Path) -> None:
    deep = '{"x":' * 150 + "1" + "}" * 150
    items = ['{"name":"t"}', "7", '{"title":"nameless"}', '{"name":"\\ud83d"}', '{"name":"t"}']
    items += [f'{{"name":"deep","inputSchema":{deep}}}', '{"name":"huge","inputSchema":{"maximum":1e400}}']
    bad, good = {"era": "2025", "tools": f'{{"tools":[{",".join(items)}]}}'}, {"era": "2025"}
    events: list[Event] = []
    async with raw_http(bad) as one, raw_http(good) as two:
        servers = {"bad": {"url": one, "era": "2025"}, "good": {"url": two, "era": "2025"}}
        async with gateway(tmp_path, servers, sink=events.append) as program, RawClient(program.url) as client:
            await client.initialize()
            assert await client.tools() == ["bad__t", "bad__huge", "good__t"]
            left_out = program.gateway.describe()["backends"]["bad"]["left_out"]
            assert [each.split(" ")[0] for each in left_out] == [f"tools[{n}]" for n in (1, 2, 3, 4, 5)]
            told = [event.what for event in events if isinstance(event, BackendItemLeftOut)]
            assert told == left_out


@pytest.mark.promise("gateway.fidelity")
@pytest.mark.parametrize(
    "broken",
    [
        {"tools": '{"tools":[{"name":'},
        {"tools": '{"tools":[{"name":"t"},{"name":"deep","inputSchema":' + '{"x":' * 400 + "1" + "}" * 400 + "}]}"},
        {"tools_error": '{"code":-32603,"message":"Internal error"}'},
    ],
    ids=["not JSON", "too deep", "an error"],
)
async def test_a_list_that_cannot_be_read_leaves_the_last_one(tmp_path: Path, broken: dict[str, str]) -> None:
    said = {"era": "2025"}
    async with raw_http(said) as url:
        servers = {"b": {"url": url, "era": "2025"}}
        async with gateway(tmp_path, servers, health={"every": 600}) as program, RawClient(program.url) as client:
            gate = program.gateway
            assert gate is not None
            await client.initialize()
            assert await client.tools() == ["b__t"]
            said.update(broken)
            for _ in range(2):
                await gate.backends["b"].check(fetch=True)
            assert gate.backends["b"].health.state == "up"
            (why,) = gate.describe()["backends"]["b"]["left_out"]
            assert why.startswith("tools/list: ")
            assert why.endswith("the 1 that were known before stay")
            async with RawClient(program.url) as other:
                await other.initialize()
                assert await other.tools() == ["b__t"]
                assert "error" not in (await other.call("b__t")).last
            for key in broken:
                del said[key]
            said["tools"] = '{"tools":[{"name":"t"},{"name":"new"}]}'
            await gate.backends["b"].check()  # at the next look, not when its lists are old
            assert await client.tools() == ["b__t", "b__new"]
            assert gate.describe()["backends"]["b"]["left_out"] == []


@pytest.mark.promise("gateway.fidelity")
async def test_a_page_with_too_many_items_is_listed_as_far_as_the_limit(tmp_path: Path) -> None:
    items = ",".join(f'{{"name":"t{n}"}}' for n in range(ITEMS + 5))
    async with raw_http({"era": "2025", "tools": f'{{"tools":[{items}]}}'}) as url:
        async with gateway(tmp_path, {"b": {"url": url, "era": "2025"}}) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: gate.checks.done)
            catalogue = gate.backends["b"].catalogue
            assert catalogue is not None
            assert len(catalogue.tools) == ITEMS
            assert catalogue.left_out[0].startswith(f"tools/list: what follows item {ITEMS}")


@pytest.mark.promise("gateway.program")
async def test_a_server_that_knows_no_ping_is_up(tmp_path: Path) -> None:
    events: list[Event] = []
    async with raw_http({"era": "2025", "ping": "unknown"}) as url:
        servers = {"b": {"url": url, "era": "2025"}}
        async with gateway(tmp_path, servers, health={"every": 600}, sink=events.append) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: gate.checks.done)
            for _ in range(2):
                await gate.backends["b"].check()
            assert gate.backends["b"].health.state == "up"
            assert not [event for event in events if isinstance(event, BackendFailed)]


@pytest.mark.promise("gateway.fidelity")
@pytest.mark.parametrize("body", ["NaN", "[Infinity]", '{"a":-Infinity}', "01", "1.", '"\\ud83"'])
async def test_what_is_no_json_is_refused_and_not_sent_on(tmp_path: Path, body: str) -> None:
    said = {"era": "2025"}
    async with (
        raw_http(said) as url,
        gateway(tmp_path, {"b": {"url": url, "era": "2025"}}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        answer = await sent(client, call_of(f'{{"v":{body}}}', "2025"), "2025")
        assert (answer.status, answer.error["code"]) == (400, -32700)


@pytest.mark.promise("gateway.fidelity")
async def test_a_handshake_that_cannot_be_kept_is_refused_with_its_place(tmp_path: Path) -> None:
    async with gateway(tmp_path, {}) as program, RawClient(program.url) as client:
        for text in ("1e400", "1.50", '"\\ud83d"'):
            params = (
                f'{{"protocolVersion":"2025-11-25","clientInfo":{{"name":"x","version":"1"}},'
                f'"capabilities":{{"experimental":{{"x":{text}}}}}}}'
            )
            body = f'{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}'.encode()
            answer = await client.send(body)
            assert answer.status == 400
            assert "data.capabilities.experimental.x" in answer.error["message"]


@pytest.mark.promise("gateway.fidelity")
async def test_the_stdio_front_passes_digit_for_digit(tmp_path: Path) -> None:
    result = f'{{"content":[],"structuredContent":{{"seen":@SEEN@,"own":{NASTY}}}}}'
    async with raw_http({"era": "2025", "result": result}) as url, open_store("memory:") as store:
        running = Gateway(config_of(tmp_path, {"b": {"url": url, "era": "2025"}}), store)
        inside, outside = os.pipe()
        reader = asyncio.StreamReader()
        async with running.running():
            front = asyncio.create_task(StdioFront(running, outside).run(reader))
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            first = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode()
            lines: list[bytes] = []
            buffer = bytearray()

            def more() -> bool:
                os.set_blocking(inside, False)
                try:
                    buffer.extend(os.read(inside, 1_000_000))
                except BlockingIOError:
                    return False
                *whole, rest = bytes(buffer).split(b"\n")
                lines.extend(whole)
                buffer[:] = rest
                return bool(lines)

            reader.feed_data(first + b"\n")
            await until(more)
            lines.clear()
            reader.feed_data(call_of(NASTY, "2025") + b"\n")
            await until(more)
            reader.feed_eof()
            await front
        os.close(inside)
        os.close(outside)
        came = tokens(lines[0])
        assert at(came, "result", "structuredContent", "own") == tokens(NASTY)
        assert at(tokens(at(came, "result", "structuredContent", "seen")), "params", "arguments") == tokens(NASTY)
