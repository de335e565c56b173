"""What a client may say of itself in `initialize`."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


@pytest.mark.promise("gateway.hostile")
async def test_a_handshake_that_can_not_be_kept_is_refused_before_anything_starts(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}) as program:
        async with RawClient(program.url) as client:
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
