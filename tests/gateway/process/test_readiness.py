"""`/readyz` follows what a caller would meet: the store, the servers, and whether we go on."""

from pathlib import Path

import pytest

from holdfast.gateway.process import readiness
from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


@pytest.mark.promise("gateway.program")
async def test_ready_follows_the_store_and_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH_SECONDS", 0.0)
    folder = tmp_path / "private"
    folder.mkdir()
    async with FaultServer() as one, FaultServer() as other:
        servers = {"one": {"url": one.url}, "other": {"url": other.url}}
        async with gateway(tmp_path, servers, store=f"sqlite:///{folder}/s.db") as program:
            gate = program.gateway
            assert gate is not None
            async with RawClient(program.url.replace("/mcp", "/readyz")) as probe:

                async def said() -> tuple[int, str]:
                    answer = await probe.send(b"", "GET")
                    return answer.status, answer.raw.decode().strip()

                await until(lambda: gate.checks.done)
                assert await said() == (200, "ready")
                await one.refuse()
                await gate.backends["one"].check()
                assert await said() == (200, "ready")  # the other one still serves
                await other.refuse()
                await gate.backends["other"].check()
                assert await said() == (503, "no server is up")
                await one.listen()
                gate.backends["one"].health.next_try = 0.0
                await gate.backends["one"].check()
                assert await said() == (200, "ready")
                (folder / "s.db").rename(folder / "gone.db")
                assert await said() == (503, "the store does not answer")
                (folder / "gone.db").rename(folder / "s.db")
                assert await said() == (200, "ready")


@pytest.mark.promise("gateway.program")
async def test_a_gateway_without_servers_is_ready(tmp_path: Path) -> None:
    async with gateway(tmp_path, {}) as program, RawClient(program.url.replace("/mcp", "/readyz")) as probe:
        assert (await probe.send(b"", "GET")).status == 200
