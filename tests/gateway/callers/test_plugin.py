"""A verifier of the operator's: called once a token, whatever it does."""

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mcp.server.auth.provider import AccessToken

from holdfast.errors import ConfigError
from holdfast.gateway.callers.plugin import load_verifier
from holdfast.testing import FaultServer
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


class Verifier:
    """Takes tokens of the form `subject:seconds`."""

    def __init__(self) -> None:
        self.calls = 0

    async def verify_token(self, token: str) -> AccessToken | None:
        self.calls += 1
        if token == "breaks":
            raise RuntimeError("its database is down")
        subject, _, seconds = token.partition(":")
        if subject == "stranger":
            return None
        expires = int(time.time()) + int(seconds) if seconds else None
        return AccessToken(token=token, client_id="app", scopes=[], expires_at=expires, subject=subject or None)


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> Verifier:
    module: Any = ModuleType("company_auth")
    module.verifier = Verifier()
    monkeypatch.setitem(sys.modules, "company_auth", module)
    return module.verifier


@pytest.mark.promise("callers.verifier")
async def test_callers_are_let_in_by_it_and_it_is_called_once_a_token(tmp_path: Path, verifier: Verifier) -> None:
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}, auth={"verifier": "company_auth:verifier"}) as program,
        RawClient(program.url, "alice:100") as client,
    ):
        await client.initialize()
        for expected in ("1", "2", "3"):
            assert (await client.call("counter__count")).text == expected
        assert verifier.calls == 1
        for token, status in (("stranger", 401), ("breaks", 401), ("bob:-5", 401), ("bob:100", 404), ("alice", 200)):
            client.token = token
            assert (await client.call("counter__count")).status == status, token


@pytest.mark.promise("callers.verifier")
@pytest.mark.parametrize("where", ["no_such_module:x", "json:nothing", "json:loads", "builtins:dict"])
def test_what_is_no_verifier_is_refused_at_the_start(where: str) -> None:
    with pytest.raises(ConfigError, match=r"auth\.verifier"):
        load_verifier(where)
