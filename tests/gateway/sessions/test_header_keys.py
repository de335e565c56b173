"""2026 clients that name their session by a configured header."""

import asyncio
from pathlib import Path

import pytest

from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import Raw
from tests.gateway.gateways import gateway


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


@pytest.mark.promise("gateway.counts")
async def test_one_header_key_through_two_gateways_is_one_session(tmp_path: Path) -> None:
    store, settings = f"sqlite:///{tmp_path}/s.db", {"header": "x-key"}
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        async with gateway(tmp_path, servers, store=store, sessions=settings) as one:
            async with gateway(tmp_path, servers, store=store, sessions=settings) as other:
                async with Raw(one.url) as a, Raw(other.url) as b:
                    for key in ("k1", "k2", "k3"):
                        call = {"name": "counter__count", "arguments": {}}
                        both = await asyncio.gather(
                            *(client.ask_2026("tools/call", call, x_key=key) for client in (a, b, a, b))
                        )
                        assert sorted(answer.text for answer in both) == ["1", "2", "3", "4"]
