"""Links that clients share."""

import time
from pathlib import Path

import pytest

from holdfast.gateway.auth import new_token
from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


@pytest.mark.promise("gateway.reuse")
async def test_a_principal_in_use_keeps_its_session(tmp_path: Path) -> None:
    token, digest = new_token()
    auth = {"tokens": [{"hash": digest, "principal": "alice"}]}
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "reuse": "principal"}}
        async with gateway(tmp_path, servers, auth=auth, sessions={"idle": 0.6}) as program:
            async with RawClient(program.url, token) as client:
                await client.initialize()
                began, counts = time.monotonic(), []
                while time.monotonic() - began < 2.0:
                    counts.append((await client.call("counter__count")).text)
                assert counts == [str(number + 1) for number in range(len(counts))]
            gate = program.gateway
            assert gate is not None
            await until(lambda: not any(session.count for session in http.sessions.sessions.values()), 10)


@pytest.mark.promise("gateway.reuse")
@pytest.mark.parametrize(("reuse", "counts"), [("session", "12 12"), ("shared", "12 34"), ("call", "11 11")])
async def test_reuse_says_who_shares(tmp_path: Path, reuse: str, counts: str) -> None:
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url, "reuse": reuse}}
        async with gateway(tmp_path, servers) as program:
            said = []
            for _ in range(2):
                async with RawClient(program.url) as client:
                    await client.initialize()
                    said.append("".join([(await client.call("counter__count")).text for _ in range(2)]))
            assert " ".join(said) == counts
            async with RawClient(program.url) as client:  # without a key, only who keeps sessions owes a word about it
                alone = (await client.call_2026("counter__count")).result
            assert ("dev.holdfast/notice" in alone["_meta"]) == (reuse == "session")
