"""Answers over HTTP: large ones, odd ones, and servers that speak first."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.testing import Fault, FaultServer
from tests.links.quick_links import link_to, text_of, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.large")
@pytest.mark.parametrize("form", ["json", "sse"])
async def test_an_answer_of_five_megabytes(form: Any) -> None:
    limits = holdfast.links.Limits(message_bytes=6_000_000, close=2)
    async with FaultServer(answers=form) as server, link_to(server.url, limits=limits) as link:
        assert len(text_of(await link.request("tools/call", tool("large", bytes=5_000_000)))) == 5_000_000
        with pytest.raises(holdfast.errors.LimitReached):
            await link.request("tools/call", tool("large", bytes=7_000_000))
        await link.request("tools/list")


@pytest.mark.promise("link.bad-input")
async def test_a_server_that_speaks_first_is_not_flooded() -> None:
    accepted = 0

    async def handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(handshake, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with link_to(f"http://127.0.0.1:{port}/mcp") as link:
        with pytest.raises(holdfast.HoldfastError):
            await link.request("ping")
    listener.close()
    assert accepted < 20


@pytest.mark.promise("link.bad-input")
async def test_odd_answers_of_a_server_are_typed() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        server.plan(
            Fault.STATUS,
            method="tools/call",
            status=503,
            headers={"retry-after": "Mon, 01 Jan 2030 00:00:00 +9999999999999"},
        )
        with pytest.raises(holdfast.HoldfastError):
            await link.request("tools/call", tool("echo"))
        for odd in (
            b'{"jsonrpc":"2.0","id":"x","result":{},"error":"oops"}',
            b'{"id":"x","error":{"code":"no"}}',
            b"null",
        ):
            server.plan(Fault.STATUS, method="tools/call", status=200, body=odd)
            with pytest.raises(holdfast.HoldfastError):
                await link.request("tools/call", tool("echo"), id="x", timeout=2)
                raise holdfast.UsageError("an empty result is an answer too")
        await link.request("tools/list")
