"""Headers that go on to a backend."""

from pathlib import Path

import pytest

from holdfast.testing import FaultServer
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


@pytest.mark.promise("gateway.headers")
async def test_headers_reach_the_backend_as_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "moss")
    (tmp_path / "key").write_text("fern\n")
    async with FaultServer() as http:
        headers = {"x-env": "${SECRET_OF_TEST}", "x-file": f"file:{tmp_path}/key"}
        servers = {"counter": {"url": http.url, "headers": headers, "pass_headers": ["X-Tenant"]}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize()
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            call = {"name": "counter__count", "arguments": {}}
            await client.ask("tools/call", call, x_tenant="t1", traceparent=trace, x_private="no")
            sent = next(request for request in http.requests if request.method == "tools/call").headers
            assert sent["x-env"] == "moss"
            assert sent["x-file"] == "fern"
            assert sent["x-tenant"] == "t1"
            assert sent["traceparent"].split("-")[1] == trace.split("-")[1]
            assert "x-private" not in sent
