"""The program around the gateway: the port, reload of the file."""

import json
from pathlib import Path

import pytest

from holdfast.gateway.auth import new_token
from holdfast.gateway.config.file import load_config
from holdfast.gateway.server import Program
from tests.gateway.clients import RawClient


@pytest.mark.promise("gateway.callers")
async def test_a_reload_never_opens_a_public_gateway(tmp_path: Path) -> None:
    token, digest = new_token()
    file = tmp_path / "g.json"
    auth = {"tokens": [{"hash": digest, "principal": "alice"}]}
    listen = {"host": "0.0.0.0", "port": 0}
    file.write_text(json.dumps({"listen": listen, "auth": auth, "store": "memory:", "mcpServers": {}}))
    async with Program(load_config(file)).running() as program:
        async with RawClient(f"http://127.0.0.1:{program.port}/mcp") as client:
            assert (await client.initialize()).status == 401
            file.write_text(json.dumps({"listen": {"port": 0}, "mcpServers": {}}))
            assert await program.reload() is False
            assert (await client.initialize()).status == 401
            client.token = token
            assert (await client.initialize()).status == 200


@pytest.mark.promise("gateway.config")
async def test_a_reload_with_expired_tokens_only_lets_no_caller_in_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token, digest = new_token()
    entry = {"hash": digest, "principal": "alice"}
    document = {"listen": {"port": 0}, "store": "memory:", "mcpServers": {}}
    file = tmp_path / "g.json"
    file.write_text(json.dumps({**document, "auth": {"tokens": [entry]}}))
    async with Program(load_config(file)).running() as program, RawClient(program.url, token) as client:
        assert (await client.initialize()).status == 200
        file.write_text(json.dumps({**document, "auth": {"tokens": [{**entry, "expires": "2020-01-01T00:00:00Z"}]}}))
        assert await program.reload()
        assert any("every token in auth.tokens has expired" in text for text in caplog.messages)
        assert (await client.initialize()).status == 401
