"""Who we say we are: headers, callables that resolve them, OAuth."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import httpx2
import pytest
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

import holdfast
from holdfast.links import HttpTarget
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.links.quick_links import link_to, text_of, tool
from tests.links.web import WebAnswer, WebRequest, json_answer, web_server

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.credentials")
async def test_static_headers_ride_on_every_request() -> None:
    async with FaultServer(bearer="s3cret") as server:
        target = HttpTarget(server.url, headers={"Authorization": "Bearer s3cret", "X-Team": "a"})
        async with link_to(target) as link:
            await link.request("tools/list")
        assert {request.headers.get("x-team") for request in server.requests} == {"a"}
        assert "s3cret" not in repr(target)
        assert "s3cret" not in repr(link)


@pytest.mark.promise("link.credentials")
async def test_a_callable_is_asked_on_first_use_and_once_more_after_a_401() -> None:
    asked = 0

    async def headers() -> dict[str, str]:
        nonlocal asked
        asked += 1
        return {"authorization": f"Bearer t{asked}"}

    async with FaultServer(bearer="t1") as server:
        link = link_to(HttpTarget(server.url, headers=headers))
        assert asked == 0
        assert text_of(await link.request("tools/call", tool("count"))) == "1"
        session = link.session_id
        server.bearer = "t2"
        counts = await asyncio.gather(*(link.request("tools/call", tool("count")) for _ in range(20)))
        assert sorted(int(text_of(each)) for each in counts) == list(range(2, 22))
        assert asked == 2
        assert link.session_id == session  # a 401 is no news of the session
        assert server.sessions.handshakes == 1
        server.bearer = "never"
        with pytest.raises(holdfast.errors.Unauthorized) as caught:
            await link.request("tools/call", tool("effect", call="x"))
        assert caught.value.status == 401
        assert asked == 3
        assert server.effects["x"] == 0
        server.bearer = "t4"
        assert text_of(await link.request("tools/call", tool("count"))) == "22"
        await link.close()


@pytest.mark.promise("link.credentials")
async def test_a_401_at_the_handshake_is_no_era_and_asks_again() -> None:
    tokens = iter(("wrong", "right"))

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {next(tokens)}"}

    async with FaultServer(era="2026", bearer="right") as server:
        async with link_to(HttpTarget(server.url, headers=headers)) as link:
            await link.request("tools/list")
            assert link.era is not None
            assert link.era.value == "2026"
        # Which era is asked for is not changed by a 401: it is asked for again.
        assert [request.method for request in server.requests][:3] == ["initialize", "initialize", "server/discover"]


@pytest.mark.promise("link.credentials")
async def test_a_callable_that_fails_is_typed_and_asked_again_at_the_next_use() -> None:
    turns = iter((OSError("vault is sealed"), {"X-A": "b"}))

    async def headers() -> Any:
        turn = next(turns)
        if isinstance(turn, Exception):
            raise turn
        return turn

    async with FaultServer() as server, link_to(HttpTarget(server.url, headers=headers)) as link:
        with pytest.raises(holdfast.errors.ConnectFailed, match="vault is sealed") as caught:
            await link.request("tools/list")
        assert caught.value.phase == "resolve"
        await link.request("tools/list")


@pytest.mark.promise("link.credentials")
async def test_a_url_may_be_found_out_at_first_use() -> None:
    async with FaultServer() as server:

        async def url() -> str:
            return server.url

        async with link_to(HttpTarget(url)) as link:
            assert (await link.request("tools/list"))["tools"]


class Tokens:
    """Token storage in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        raise AssertionError("client credentials are given, not registered")


class Authorization:
    """A small authorization server: metadata and client credentials."""

    def __init__(self, mcp: FaultServer) -> None:
        self.mcp = mcp
        self.issued = 0
        self.url = ""
        self.secret_ok = True

    def handle(self, request: WebRequest) -> WebAnswer:
        if "protected-resource" in request.path:
            return json_answer({"resource": self.mcp.url, "authorization_servers": [self.url]})
        if "oauth-authorization-server" in request.path:
            return json_answer(
                {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/token",
                    "response_types_supported": ["code"],
                    "grant_types_supported": ["client_credentials"],
                }
            )
        if request.path == "/token" and self.secret_ok:
            assert parse_qs(request.body.decode())["grant_type"] == ["client_credentials"]
            self.issued += 1
            self.mcp.bearer = f"token-{self.issued}"
            return json_answer({"access_token": self.mcp.bearer, "token_type": "Bearer", "expires_in": 3600})
        return json_answer({"error": "invalid_client"}, 401)

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Authorization"]:
        async with web_server(self.handle) as self.url:
            self.mcp.challenge = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource"'
            yield self


def provider(server: FaultServer, auth: Authorization) -> ClientCredentialsOAuthProvider:
    return ClientCredentialsOAuthProvider(server.url, Tokens(), "id", "s3cret", issuer=auth.url)


@pytest.mark.promise("link.oauth")
async def test_client_credentials_are_driven_by_a_401_and_not_by_calls() -> None:
    async with (
        FaultServer(bearer="nothing yet") as server,
        Authorization(server).served() as auth,
        link_to(HttpTarget(server.url, auth=provider(server, auth))) as link,
    ):
        assert text_of(await link.request("tools/call", tool("count"))) == "1"
        for _ in range(10):
            await link.request("tools/call", tool("count"))
        assert auth.issued == 1
        server.bearer = "revoked"
        counts = await asyncio.gather(*(link.request("tools/call", tool("count")) for _ in range(10)))
        assert auth.issued == 2
        assert max(int(text_of(each)) for each in counts) == 21  # one session all along
        assert server.sessions.handshakes == 1


@pytest.mark.promise("link.oauth")
async def test_a_refused_client_is_typed_and_shows_no_secret() -> None:
    async with FaultServer(bearer="nothing yet") as server, Authorization(server).served() as auth:
        auth.secret_ok = False
        async with link_to(HttpTarget(server.url, auth=provider(server, auth))) as link:
            with pytest.raises(holdfast.errors.Unauthorized) as caught:
                await link.request("tools/list")
            assert caught.value.phase == "resolve"
            assert "s3cret" not in str(caught.value)
            auth.secret_ok = True
            assert (await link.request("tools/list"))["tools"]


class SignIn(httpx2.Auth):
    """An OAuth flow that sends a person to a page, and goes on when they come back."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.signed_in = asyncio.Event()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if self.signed_in.is_set():
            request.headers["authorization"] = "Bearer signed-in"
        response = yield request
        if response.status_code == 401:
            self.asked.set()
            await self.signed_in.wait()
            request.headers["authorization"] = "Bearer signed-in"
            yield request


@pytest.mark.promise("link.oauth")
async def test_a_person_may_take_minutes_to_sign_in_and_that_has_a_limit_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, real, ahead = asyncio.get_running_loop(), asyncio.get_running_loop().time, 0.0
    async with FaultServer(bearer="signed-in") as server:
        auth = SignIn()
        async with link_to(HttpTarget(server.url, auth=auth)) as link:
            monkeypatch.setattr(loop, "time", lambda: real() + ahead)
            calls = [asyncio.ensure_future(link.request("tools/list")) for _ in range(2)]
            await asyncio.wait_for(auth.asked.wait(), patience(10))
            for minute in range(1, 10):  # past Limits(resolve=…) and Limits(start=…)
                ahead = minute * 60.0
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not any(call.done() for call in calls)
            auth.signed_in.set()
            assert all(found["tools"] for found in await asyncio.gather(*calls))
            assert server.sessions.handshakes == 1
        nobody = SignIn()
        async with link_to(HttpTarget(server.url, auth=nobody)) as link:
            call = asyncio.ensure_future(link.request("tools/list"))
            await asyncio.wait_for(nobody.asked.wait(), patience(10))
            ahead += 601.0
            with pytest.raises(holdfast.errors.StartTimeout, match="authorize") as caught:
                await call
            assert caught.value.phase == "resolve"


@pytest.mark.promise("link.credentials")
async def test_a_scope_that_is_missing_is_asked_for() -> None:
    async with (
        FaultServer(bearer="nothing yet") as server,
        Authorization(server).served() as auth,
        link_to(HttpTarget(server.url, auth=provider(server, auth))) as link,
    ):
        await link.request("tools/list")
        more = {"www-authenticate": 'Bearer error="insufficient_scope", scope="write"'}
        server.plan(Fault.STATUS, method="tools/call", status=403, headers=more)
        assert text_of(await link.request("tools/call", tool("echo", text="x"))) == "x"
        assert auth.issued == 2


@pytest.mark.promise("link.credentials")
async def test_the_stream_of_an_idle_link_renews_credentials() -> None:
    tokens = iter(("t1", "t2", "t3"))

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {next(tokens)}"}

    async with FaultServer(bearer="t1") as server, link_to(HttpTarget(server.url, headers=headers)) as link:
        await link.request("tools/list")
        await until(lambda: server.streams == 1)
        session, server.bearer = link.session_id, "t2"
        server.drop_streams()
        await until(lambda: server.streams == 1)
        assert link.session_id == session
