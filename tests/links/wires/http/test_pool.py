"""Our own HTTP client, where links alone do not reach: odd answers, reuse, back-pressure, pruning, headers that lie."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from holdfast.links.wires.http import pool as pool_module
from holdfast.links.wires.http.connection import Body
from holdfast.links.wires.http.failures import Broken, NotHttp
from holdfast.links.wires.http.pool import Pool
from holdfast.links.wires.http.route import Route
from tests.deadlines import patience, until
from tests.links.web import listening

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[tuple[Route, Pool]]:
    pool = Pool(2.0, None)
    async with listening(handler) as port:
        try:
            yield Route.to(f"http://127.0.0.1:{port}/mcp?x=1"), pool
        finally:
            await pool.close()


async def request_of(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
    return head, await reader.readexactly(size)


def always(answer: bytes, *, close: bool = False) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(answer)
            await writer.drain()
            if close:
                return

    return handle


@pytest.mark.promise("link.http-client")
@pytest.mark.parametrize(
    ("answer", "close", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", False, b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", False, b"hello"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", True, b"hello"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", True, b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", False, b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, b""),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
            % (len(gzip.compress(b"hello", mtime=0)), gzip.compress(b"hello", mtime=0)),
            False,
            b"hello",
        ),
    ],
    ids=["length", "chunked", "closed", "1.0", "continue", "204", "gzip"],
)
async def test_answers_of_every_form(answer: bytes, close: bool, body: bytes) -> None:
    async with serving(always(answer, close=close)) as (route, pool):
        for _ in range(3):
            async with await pool.request("POST", route, {"a": "b"}, Body(b"{}")) as response:
                assert response.status in (200, 204)
                assert await response.read() == body
        assert len(pool._all) == (0 if close else 1)


@pytest.mark.promise("link.http-client")
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-x\r\n\r\n", NotHttp),
        (b"", Broken),
        (b"HTTP/1.1 200 OK\r\nContent-Le", Broken),
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\n", (NotHttp, Broken)),
    ],
    ids=["ssh", "nothing", "half a head", "endless header"],
)
async def test_what_is_no_answer_is_told(answer: bytes, error: type[Exception]) -> None:
    async with serving(always(answer, close=True)) as (route, pool):
        body = Body(b"{}")
        with pytest.raises(error):
            await pool.request("POST", route, {}, body)
        assert body.sent


@pytest.mark.promise("link.http-client")
async def test_a_body_cut_short_is_told_and_never_taken_for_whole() -> None:
    async with serving(always(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", close=True)) as (route, pool):
        response = await pool.request("POST", route, {}, Body(b"{}"))
        with pytest.raises(Broken):
            await response.read()
        response.close()


@pytest.mark.promise("link.http-client")
async def test_the_request_is_what_was_meant_and_a_line_break_is_refused() -> None:
    heads: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await request_of(reader)
        heads.append(head + body.decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with serving(handle) as (route, pool):
        (await pool.request("POST", route, {"x-a": "1"}, Body(b"{}"))).release()
        assert heads[0].startswith("POST /mcp?x=1 HTTP/1.1\r\nhost: 127.0.0.1:")
        assert heads[0].endswith("x-a: 1\r\ncontent-length: 2\r\n\r\n{}")
        for wrong in ("a\r\nevil: 1", "a\nb"):
            body = Body(b"{}")
            with pytest.raises(ValueError, match="line break"):
                await pool.request("POST", route, {"x-a": wrong}, body)
            assert not body.sent


@pytest.mark.promise("link.http-client")
async def test_a_slow_reader_holds_the_server_back_and_gets_everything() -> None:
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 64000000\r\n\r\n")
        for _ in range(64):
            writer.write(b"x" * 1_000_000)
            await writer.drain()
            sent += 1_000_000

    async with serving(handle) as (route, pool):
        response = await pool.request("POST", route, {}, Body(b"{}"))
        (connection,) = pool._all
        await until(lambda: connection._paused)
        assert sent < 32_000_000  # what nobody reads is not taken
        assert sum([len(chunk) async for chunk in response.iter_any()]) == 64_000_000
        response.release()


@pytest.mark.promise("link.http-client")
async def test_idle_connections_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "KEEP_ALIVE", 0.1)
    async with serving(always(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (route, pool):
        responses = await asyncio.gather(*(pool.request("POST", route, {}, Body(b"{}")) for _ in range(20)))
        for response in responses:
            response.release()
        assert len(pool._all) == 20
        await until(lambda: not pool._all)


@pytest.mark.promise("link.http-client")
async def test_a_cancelled_request_costs_its_connection_and_no_other() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await request_of(reader)
            if body == b"wait":
                await asyncio.sleep(30)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()

    async with serving(handle) as (route, pool):
        waiting = asyncio.create_task(pool.request("POST", route, {}, Body(b"wait")))
        await until(lambda: len(pool._all) == 1)
        other = await pool.request("POST", route, {}, Body(b"go"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await other.read() == b"ok"
        other.release()
        await until(lambda: len(pool._all) == 1)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@pytest.mark.promise("link.http-client")
@pytest.mark.parametrize(
    "behind",
    [
        b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\nEVIL",
        b"HTTP/1.1 200 OK\r\nX-Evil: 1\r\n",
        b" world, which is no HTTP",
    ],
    ids=["another", "half of another", "noise"],
)
async def test_what_comes_behind_a_whole_answer_changes_nothing(behind: bytes) -> None:
    async with serving(always(OK + behind)) as (route, pool):
        for _ in range(3):
            async with await pool.request("POST", route, {}, Body(b"{}")) as response:
                assert response.status == 200
                assert await response.read() == b"hello"
        assert not pool._all  # and the connection is not used again


@pytest.mark.promise("link.http-client")
async def test_trailers_and_repeated_headers() -> None:
    answer = (
        b"HTTP/1.1 401 X\r\nWWW-Authenticate: Bearer x=1\r\nWWW-Authenticate: Basic y=2\r\nmcp-session-id: good\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nmcp-session-id: evil\r\n\r\n"
    )
    async with serving(always(answer)) as (route, pool):
        async with await pool.request("POST", route, {}, Body(b"{}")) as response:
            assert await response.read() == b"hi"
            assert response.headers["mcp-session-id"] == "good"
            assert response.headers["www-authenticate"] == "Bearer x=1, Basic y=2"


@pytest.mark.promise("link.http-client")
async def test_an_early_answer_to_a_large_body_is_heard() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(30)

    async with serving(handle) as (route, pool):
        async with asyncio.timeout(patience(5)):
            response = await pool.request("POST", route, {}, Body(b"x" * 30_000_000))
        assert response.status == 413
        response.release()
        assert not pool._all


@pytest.mark.promise("link.http-client")
async def test_a_packed_answer_may_not_swell_beyond_measure() -> None:
    bomb = gzip.compress(b"\0" * 64_000_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with serving(always(head + bomb)) as (route, pool):
        with pytest.raises(NotHttp):
            await (await pool.request("POST", route, {}, Body(b"{}"))).read()
    two = gzip.compress(b"hello", mtime=0) + gzip.compress(b" there", mtime=0)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(two)
    async with serving(always(head + two)) as (route, pool):
        async with await pool.request("POST", route, {}, Body(b"{}")) as response:
            assert await response.read() == b"hello there"


@pytest.mark.promise("link.http-client")
async def test_a_body_without_length_is_not_whole_because_we_closed() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[1,")
        await writer.drain()
        await asyncio.sleep(30)

    async with serving(handle) as (route, pool):
        response = await pool.request("POST", route, {}, Body(b"{}"))
        await pool.close()
        with pytest.raises(Broken):
            await response.read()


@pytest.mark.promise("link.http-client")
async def test_an_upgrade_that_nobody_asked_for_is_no_answer() -> None:
    answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    async with serving(always(answer)) as (route, pool):
        with pytest.raises((NotHttp, Broken)):
            async with asyncio.timeout(patience(5)):
                await pool.request("POST", route, {}, Body(b"{}"))


_HEAD = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_ENDLESS = {
    "empty lines": (b"", b"\r\n"),
    "status line": (b"HTTP/1.1 200 O", b"K"),
    "header name": (_HEAD, b"x"),
    "header value": (_HEAD + b"x: ", b"y"),
    "headers": (_HEAD, b"x: y\r\n"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "chunk size": (_CHUNKED + b"5", b" "),
    "chunk extension": (_CHUNKED + b"5;", b"x"),
    "trailers": (_CHUNKED + b"2\r\n{}\r\n0\r\n", b"x: y\r\n"),
    "trailer value": (_CHUNKED + b"2\r\n{}\r\n0\r\nx: ", b"y"),
}


@pytest.mark.promise("link.http-client")
@pytest.mark.parametrize("name", _ENDLESS)
async def test_what_never_ends_is_cut_while_it_is_read(name: str) -> None:
    begin, piece = _ENDLESS[name]
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_of(reader)
        writer.write(begin)
        block = piece * (16_384 // len(piece))
        while not writer.is_closing() and sent < 64_000_000:
            writer.write(block)
            await writer.drain()
            sent += len(block)

    async with serving(handle) as (route, pool):
        async with asyncio.timeout(patience(20)):
            with pytest.raises(NotHttp):
                await (await pool.request("POST", route, {}, Body(b"{}"))).read()
        assert not pool._all
    assert sent < 32_000_000  # what fits into sockets, and not what the server would have sent


@pytest.mark.promise("link.http-client")
async def test_what_never_ends_behind_an_answer_costs_the_connection() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        while not writer.is_closing():
            writer.write(OK)
            await writer.drain()

    async with serving(handle) as (route, pool):
        response = await pool.request("POST", route, {}, Body(b"{}"))
        await until(lambda: not pool._all)
        assert await response.read() == b"hello"
        response.release()


@pytest.mark.promise("link.http-client")
async def test_a_packed_answer_of_countless_members_is_refused_at_once() -> None:
    members = gzip.compress(b"", mtime=0) * 100_000
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(members)
    async with serving(always(head + members)) as (route, pool):
        with pytest.raises(NotHttp, match="members"):
            await (await pool.request("POST", route, {}, Body(b"{}"))).read()


@pytest.mark.promise("link.http-client")
async def test_header_values_are_sent_as_the_bytes_that_came() -> None:
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()

    id = "ключ-😀".encode()
    async with serving(handle) as (route, pool):
        (await pool.request("GET", route, {"last-event-id": id.decode("latin-1")}, None)).release()
    assert b"last-event-id: " + id + b"\r\n" in heads[0]
