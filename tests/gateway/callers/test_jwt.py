"""Callers with JSON Web Tokens: who is let in, for how long, as whom; and every way to forge a token."""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from holdfast.events import CallerRefused, Event, RequestServed
from holdfast.gateway.config.file import load_config
from holdfast.gateway.server import Program
from holdfast.testing import FaultServer
from tests.deadlines import patience, until
from tests.gateway.callers.issuer import Issuer
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


@asynccontextmanager
async def guarded(
    tmp_path: Path, issuer: Issuer, events: list[Event] | None = None, **settings: Any
) -> AsyncGenerator[Program]:
    """A gateway that lets in callers of an issuer."""
    auth = {"jwt": {"issuer": issuer.url, "audience": ["gateway"], "leeway": 0, **settings}}
    async with (
        FaultServer() as http,
        gateway(
            tmp_path,
            {"counter": {"url": http.url}},
            auth=auth,
            sessions={"steer": False},
            sink=events.append if events is not None else None,
        ) as program,
    ):
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools, 20)
        yield program


@pytest.fixture
async def issuer() -> AsyncGenerator[Issuer]:
    async with Issuer().running() as running:
        yield running


@pytest.mark.promise("callers.jwt")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_caller_is_its_issuer_and_subject_and_a_refreshed_token_keeps_its_session(
    tmp_path: Path, issuer: Issuer, era: str
) -> None:
    events: list[Event] = []
    async with guarded(tmp_path, issuer, events) as program, RawClient(program.url, issuer.token()) as client:
        if era == "2025":
            await client.initialize()
        call = client.call if era == "2025" else client.call_2026
        assert (await call("counter__count")).text == "1"
        client.token = issuer.token(jti="another", client_id="another-client")
        second = await call("counter__count")
        assert second.text == ("2" if era == "2025" else "1")
        assert issuer.requests.count("jwks") == 1
    principals = {event.principal for event in events if isinstance(event, RequestServed)}
    assert principals == {f"alice|{issuer.url}"}


@pytest.mark.promise("callers.jwt")
async def test_another_caller_can_not_use_a_session(tmp_path: Path, issuer: Issuer) -> None:
    async with guarded(tmp_path, issuer) as program, RawClient(program.url, issuer.token()) as client:
        await client.initialize()
        client.token = issuer.token("bob")
        assert (await client.call("counter__count")).status == 404
        client.token = issuer.token(client_id="x")
        assert (await client.call("counter__count")).text == "1"


@pytest.mark.promise("callers.jwt")
async def test_with_clients_a_caller_is_a_subject_at_one_client(tmp_path: Path, issuer: Issuer) -> None:
    async with guarded(tmp_path, issuer, principal="subject+client") as program:
        async with RawClient(program.url, issuer.token(client_id="app")) as client:
            await client.initialize()
            client.token = issuer.token(azp="phone")
            assert (await client.call("counter__count")).status == 404
            client.token = issuer.token()
            assert (await client.call("counter__count")).status == 401


def forged(issuer: Issuer) -> dict[str, str]:
    """Tokens that must not let anybody in, by what is wrong."""
    now, stranger = int(time.time()), Issuer()
    stranger.url = issuer.url
    good = issuer.token()
    head, body, signature = good.split(".")
    unsigned = base64.urlsafe_b64encode(json.dumps({"alg": "none", "typ": "JWT"}).encode()).rstrip(b"=").decode()
    claims = issuer.claims("alice")
    return {
        "expired": issuer.token(exp=now - 5),
        "not yet valid": issuer.token(nbf=now + 600),
        "another issuer": issuer.token(iss="https://evil.example"),
        "an issuer like ours": issuer.token(iss=issuer.url + "/"),
        "no issuer": issuer.token(iss=None),
        "another audience": issuer.token(aud="another-gateway"),
        "no audience": issuer.token(aud=None),
        "no expiry": issuer.token(exp=None),
        "an odd expiry": issuer.token(exp="soon"),
        "no subject": issuer.token(sub=None),
        "an empty subject": issuer.token(""),
        "a subject of another form": issuer.token(f"bob|{issuer.url}"),
        "a number as subject": issuer.token(sub=7),
        "a long subject": issuer.token("x" * 5_000),
        "no algorithm": f"{unsigned}.{body}.",
        "no algorithm, with a signature": f"{unsigned}.{body}.{signature}",
        "a shared secret": _hs256(claims, issuer.public_pem()),
        "a shared secret of nothing": _hs256(claims, b""),
        "a key of somebody else": stranger.token(),
        "an unknown key": jwt.encode(claims, stranger.keys["one"], algorithm="RS256", headers={"kid": "two"}),
        "a path as key": jwt.encode(claims, stranger.keys["one"], algorithm="RS256", headers={"kid": "../../one"}),
        "SQL as key": jwt.encode(claims, stranger.keys["one"], algorithm="RS256", headers={"kid": "' OR 1=1 --"}),
        "its own key": jwt.encode(
            claims, stranger.keys["one"], algorithm="RS256", headers={"kid": "x", "jwk": stranger.document()["keys"][0]}
        ),
        "a URL of keys": jwt.encode(
            claims, stranger.keys["one"], algorithm="RS256", headers={"kid": "x", "jku": "http://127.0.0.1:1/jwks"}
        ),
        "a critical header": issuer.token(headers={"crit": ["exp"]}),
        "a changed body": f"{head}.{_changed(body)}.{signature}",
        "a cut signature": good[:-10],
        "no dots": "abc",
        "dots only": "..",
        "too large": issuer.token(junk="x" * 20_000),
        "not ASCII": "é.é.é",
    }


def _hs256(claims: dict[str, Any], secret: bytes) -> str:
    """Signed by hand: the library refuses to use a public key as a secret."""

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    head = part(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "one"}).encode())
    signed = head + b"." + part(json.dumps(claims).encode())
    return (signed + b"." + part(hmac.new(secret, signed, hashlib.sha256).digest())).decode()


def _changed(body: str) -> str:
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    return base64.urlsafe_b64encode(json.dumps({**claims, "sub": "admin"}).encode()).rstrip(b"=").decode()


@pytest.mark.promise("callers.attacks")
async def test_no_forged_token_lets_anybody_in_and_none_is_written(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    tokens = forged(issuer)
    with caplog.at_level(logging.DEBUG):
        async with guarded(tmp_path, issuer, events) as program, RawClient(program.url) as client:
            for what, token in tokens.items():
                client.token = token
                began = time.monotonic()
                answer = await client.ask_2026("tools/list")
                assert answer.status == 401, what
                assert time.monotonic() - began < patience(1.0), what
                assert "invalid_token" in answer.headers["www-authenticate"]
            client.token = issuer.token()
            assert (await client.ask_2026("tools/list")).status == 200
        assert issuer.requests.count("jwks") <= 2  # made-up keys are no load on the issuer
    written = caplog.text + repr(events)
    for what, token in tokens.items():
        assert len(token) < 10 or token not in written, what
    assert sum(isinstance(event, CallerRefused) for event in events) == len(tokens)


@pytest.mark.promise("callers.attacks")
async def test_a_token_that_expires_ends_at_the_next_request_and_ends_streams(tmp_path: Path, issuer: Issuer) -> None:
    async with guarded(tmp_path, issuer) as program:
        ends = int(time.time()) + 3
        async with RawClient(program.url, issuer.token(exp=ends)) as client:
            await client.initialize()
            async with client.stream() as events:
                with pytest.raises((EOFError, aiohttp.ClientError)):
                    await events.next(patience(20))
            assert time.time() >= ends
            assert (await client.call("counter__count")).status == 401
            client.token = issuer.token()
            assert (await client.call("counter__count")).text == "1"


@pytest.mark.promise("callers.attacks")
async def test_keys_rotate_and_an_issuer_that_is_down_hurts_only_new_keys(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.gateway.callers.keysets.PAUSE", 0.0)
    issuer.down = True
    async with guarded(tmp_path, issuer) as program, RawClient(program.url, issuer.token()) as client:
        assert (await client.ask_2026("tools/list")).status == 401
        issuer.down = False
        assert (await client.ask_2026("tools/list")).status == 200
        issuer.add_key("two", kind="EC")
        client.token = issuer.token("bob", key="two", algorithm="ES256")
        assert (await client.ask_2026("tools/list")).status == 200
        issuer.down = True
        client.token = issuer.token("carol")
        assert (await client.ask_2026("tools/list")).status == 200
        issuer.add_key("three")
        client.token = issuer.token("dave", key="three")
        assert (await client.ask_2026("tools/list")).status == 401
        issuer.down = False
        del issuer.keys["one"]
        assert (await client.ask_2026("tools/list")).status == 200
        client.token = issuer.token("erin", key="three", headers={"kid": "one"})
        assert (await client.ask_2026("tools/list")).status == 401


@pytest.mark.promise("callers.attacks")
async def test_keys_from_a_file_scopes_and_claims(tmp_path: Path, issuer: Issuer) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(issuer.document()))
    settings: dict[str, Any] = {"jwks": str(file), "scopes": ["use", "more"], "claims": {"tenant": "acme"}}
    async with guarded(tmp_path, issuer, **settings) as program, RawClient(program.url) as client:
        client.token = issuer.token(scope="use", tenant="acme")
        answer = await client.ask_2026("tools/list")
        assert answer.status == 403
        assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
        assert 'scope="more use"' in answer.headers["www-authenticate"]
        client.token = issuer.token(scope="use more", tenant="other")
        assert (await client.ask_2026("tools/list")).status == 401
        client.token = issuer.token(scope=None, scp=["use", "more"], tenant=["x", "acme"])
        assert (await client.ask_2026("tools/list")).status == 200
    assert issuer.requests == []


@pytest.mark.promise("callers.metadata")
async def test_a_client_finds_where_to_log_in(tmp_path: Path, issuer: Issuer) -> None:
    async with guarded(tmp_path, issuer) as program, RawClient(program.url) as client:
        answer = await client.ask("initialize")
        assert answer.status == 401
        base = program.url.removesuffix("/mcp")
        challenge = answer.headers["www-authenticate"]
        assert challenge == f'Bearer resource_metadata="{base}/.well-known/oauth-protected-resource/mcp"'
        for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
            client.url = base + path
            found = await client.send(b"", "GET")
            assert found.status == 200
            assert json.loads(found.raw) == {
                "resource": program.url,
                "authorization_servers": [issuer.url],
                "bearer_methods_supported": ["header"],
            }
            assert found.headers["access-control-allow-origin"] == "*"


@pytest.mark.promise("callers.jwt")
async def test_a_reload_keeps_callers_and_their_streams_unless_their_issuer_goes(
    tmp_path: Path, issuer: Issuer
) -> None:
    file = tmp_path / "gateway.json"

    def write(**jwt: Any) -> None:
        auth = {"jwt": {"issuer": issuer.url, "audience": ["gateway"], **jwt}}
        settings = {"listen": {"port": 0}, "store": "memory:", "auth": auth, "mcpServers": {}}
        file.write_text(json.dumps(settings))

    write()
    async with Program(load_config(file)).running() as program:
        async with RawClient(program.url, issuer.token()) as client:
            await client.initialize()
            async with client.stream() as events:
                assert await program.reload()
                assert (await client.ask("ping")).status == 200
                write(audience=["another"])
                assert await program.reload()
                with pytest.raises((EOFError, aiohttp.ClientError)):
                    await events.next(patience(20))
            assert (await client.ask("ping")).status == 401
