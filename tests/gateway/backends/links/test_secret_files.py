"""Headers whose values stand in files."""

from pathlib import Path

import pytest

from holdfast.testing import FaultServer
from tests.gateway.clients import RawClient
from tests.gateway.gateways import config_of, gateway


@pytest.mark.promise("gateway.headers")
async def test_a_rotated_secret_file_is_read_anew_without_a_signal_or_a_lost_session(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("Bearer moss\n")
    async with FaultServer(bearer="moss") as http:
        servers = {"counter": {"url": http.url, "headers": {"authorization": f"file:{secret}"}}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            assert (await client.call("counter__count")).text == "1"
            http.bearer = "fern"
            secret.write_text("Bearer fern\n")
            assert (await client.call("counter__count")).text == "2"
            gate = program.gateway
            assert gate is not None
            before = gate.backends["counter"]
            await gate.reload(config_of(tmp_path, servers))
            assert gate.backends["counter"] is before
            assert (await client.call("counter__count")).text == "3"
            assert "fern" not in repr(before.entry.server)
