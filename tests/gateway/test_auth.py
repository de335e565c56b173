"""Who may call, from where, and where the gateway may listen."""

from pathlib import Path

import pytest

import holdfast
from holdfast.gateway.auth import Authenticator, check_bind, hash_of, new_token
from holdfast.gateway.config.callers import Auth, Token
from holdfast.gateway.config.file import load_config
from holdfast.gateway.config.settings import Listen, Settings
from tests.gateway.gateways import holdfast_cli, written


@pytest.mark.promise("gateway.callers")
def test_no_token_is_made_for_whom_the_file_would_refuse(tmp_path: Path) -> None:
    for name in ("", "anonymous", "x" * 201):
        done = holdfast_cli("token", "new", name)
        assert (done.returncode, done.stdout) == (2, "")
    line = next(line for line in holdfast_cli("token", "new", "a'\\b").stdout.splitlines() if "hash" in line)
    assert load_config(written(tmp_path, f"auth:\n  tokens:\n{line}\nmcpServers: {{}}\n"))


@pytest.mark.promise("gateway.callers")
def test_binding_beyond_loopback_needs_auth_or_a_word(tmp_path: Path) -> None:
    settings = Settings(listen=Listen(host="0.0.0.0"))
    with pytest.raises(holdfast.errors.ConfigError, match="not loopback"):
        check_bind(settings, insecure=False)
    check_bind(settings, insecure=True)
    check_bind(Settings(), insecure=False)
    file = written(tmp_path, "mcpServers: {}")
    refused = holdfast_cli("serve", str(file), "--host", "0.0.0.0", "--store", "memory:")
    assert refused.returncode == 2
    assert "--insecure" in refused.stderr


@pytest.mark.promise("gateway.config")
def test_serve_refuses_tokens_that_have_all_expired(tmp_path: Path) -> None:
    token = f"{{hash: '{hash_of('x')}', principal: a, expires: 2020-01-01T00:00:00Z}}"
    file = written(tmp_path, f"listen: {{port: 0}}\nauth: {{tokens: [{token}]}}\nmcpServers: {{}}")
    refused = holdfast_cli("serve", str(file), "--store", "memory:")
    assert refused.returncode == 2
    assert "every token in auth.tokens has expired" in refused.stderr


@pytest.mark.promise("gateway.callers")
def test_host_origin_and_tokens() -> None:
    token, digest = new_token()
    auth = load_auth(digest)
    callers = Authenticator(auth, Listen(hosts=("mcp.example",), origins=("https://app.example",)))
    for host in ("localhost", "localhost:8808", "127.0.0.1:1", "[::1]:80", "mcp.example", "mcp.example:443"):
        assert callers.host_is_fine(host), host
    for host in (None, "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[", ""):
        assert not callers.host_is_fine(host), host
    for origin in (None, "http://localhost:3000", "https://app.example", "http://127.0.0.1"):
        assert callers.origin_is_fine(origin), origin
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "file://", "http://["):
        assert not callers.origin_is_fine(origin), origin
    assert callers.principal(f"Bearer {token}") == "alice"
    assert callers.principal(f"bearer {token}") == "alice"
    for wrong in (None, "", "Bearer", "Bearer ", f"Basic {token}", f"Bearer {token}x", "Bearer \udcff"):
        assert callers.principal(wrong) is None


def load_auth(digest: str) -> object:
    return Auth(tokens=(Token(hash=digest, principal="alice"),))
