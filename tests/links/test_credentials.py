"""Who we say we are, and through what: headers, OAuth, TLS, proxies."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

import holdfast
from holdfast import TLS, HttpTarget, Limits
from holdfast.testing import Fault, FaultServer
from tests.links.kit import link_to, text_of, tool

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
        with pytest.raises(holdfast.Unauthorized) as caught:
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
        with pytest.raises(holdfast.ConnectFailed, match="vault is sealed") as caught:
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

    async def handle(self, request: web.Request) -> web.Response:
        if "protected-resource" in request.path:
            return web.json_response({"resource": self.mcp.url, "authorization_servers": [self.url]})
        if "oauth-authorization-server" in request.path:
            return web.json_response(
                {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/token",
                    "response_types_supported": ["code"],
                    "grant_types_supported": ["client_credentials"],
                }
            )
        if request.path == "/token" and self.secret_ok:
            form = await request.post()
            assert form["grant_type"] == "client_credentials"
            self.issued += 1
            self.mcp.bearer = f"token-{self.issued}"
            return web.json_response({"access_token": self.mcp.bearer, "token_type": "Bearer", "expires_in": 3600})
        return web.json_response({"error": "invalid_client"}, status=401)

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Authorization"]:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = site.name
        self.mcp.challenge = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource"'
        yield self
        await runner.cleanup()


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
            with pytest.raises(holdfast.Unauthorized) as caught:
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
            await asyncio.wait_for(auth.asked.wait(), 10)
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
            await asyncio.wait_for(nobody.asked.wait(), 10)
            ahead += 601.0
            with pytest.raises(holdfast.StartTimeout, match="authorize") as caught:
                await call
            assert caught.value.phase == "resolve"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server's certificate for 127.0.0.1 and a client's, with their keys."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test ca")])
    now = datetime.datetime.now(datetime.UTC)

    def issue(name: x509.Name, public: Any, ca: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        )
        if ca:  # Python 3.13 wants to be told that a CA may sign
            uses = dict.fromkeys(
                ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                 "encipher_only", "decipher_only"), False,
            )  # fmt: skip
            usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **uses)
            builder = builder.add_extension(usage, critical=True)
        if not ca:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(key, hashes.SHA256())

    def write(name: str, certificate: x509.Certificate, private: ec.EllipticCurvePrivateKey) -> None:
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.key").write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    write("ca", issue(ca_name, key.public_key(), True), key)
    for name in ("server", "client"):
        own = ec.generate_private_key(ec.SECP256R1())
        write(name, issue(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), own.public_key(), False), own)
    return folder


@asynccontextmanager
async def tls_front(server: FaultServer, certificates: Path, *, ask: bool = False) -> AsyncIterator[str]:
    """A TLS listener in front of a plain server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    if ask:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "ca.pem")
    async with pipe_to(lambda _: ("127.0.0.1", server.port), context) as (port, _):
        yield f"https://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def pipe_to(where: Any, context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Carry bytes both ways; `where` says whither, from the first bytes. Proxies answer CONNECT themselves."""
    heads: list[bytes] = []
    tasks: set[asyncio.Task[Any]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            first = await reader.read(65536)
            heads.append(first)
            there = await asyncio.open_connection(*where(first))
            if first.startswith(b"CONNECT"):
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                there[1].write(first)
            await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1], heads
    finally:
        listener.close()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


@pytest.mark.promise("link.tls")
async def test_a_ca_bundle_is_trusted_and_an_unknown_certificate_is_not(certificates: Path) -> None:
    async with FaultServer() as server, tls_front(server, certificates) as url:
        async with link_to(HttpTarget(url, tls=TLS(ca=str(certificates / "ca.pem")))) as link:
            assert (await link.request("tools/list"))["tools"]
        async with link_to(HttpTarget(url)) as link:
            with pytest.raises(holdfast.ConnectFailed, match="certificate is not trusted"):
                await link.request("tools/list")


@pytest.mark.promise("link.tls")
async def test_a_client_certificate_is_shown_where_it_is_asked_for(certificates: Path) -> None:
    ca, cert, key = (str(certificates / name) for name in ("ca.pem", "client.pem", "client.key"))
    async with FaultServer() as server, tls_front(server, certificates, ask=True) as url:
        async with link_to(HttpTarget(url, tls=TLS(ca=ca, cert=cert, key=key))) as link:
            assert (await link.request("tools/list"))["tools"]
        async with link_to(HttpTarget(url, tls=TLS(ca=ca))) as link:
            with pytest.raises((holdfast.Unavailable, holdfast.OutcomeUnknown)):
                await link.request("tools/list")


async def answering(words: bytes) -> asyncio.Server:
    """Takes whatever comes, and says these words, or nothing and closes."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(words)
        writer.close()

    return await asyncio.start_server(take, "127.0.0.1", 0)


@pytest.mark.promise("link.tls")
async def test_the_wrong_scheme_is_said_in_words(certificates: Path) -> None:
    limits = Limits(replays=0, connect=0.3, handshake=5)

    async def failure(url: str) -> str:
        async with link_to(url, limits=limits) as link:
            with pytest.raises((holdfast.ConnectFailed, holdfast.Rejected)) as caught:
                await link.request("tools/list")
        return str(caught.value)

    async with FaultServer() as server, tls_front(server, certificates) as url:
        assert "its URL begins with https://" in await failure(url.replace("https:", "http:"))
        silent = server.url.replace("http:", "https:")  # waits for a whole HTTP request
        assert "its URL begins with http://" in await failure(silent)
    for scheme, words, says in (
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "its URL begins with http://"),
        ("https", b"", "its URL begins with http://"),
        ("http", b"\x15\x03\x01\x00\x02\x02\x16", "its URL begins with https://"),  # an alert
        ("http", b"", "its URL begins with https://"),
    ):
        async with await answering(words) as there:
            assert says in await failure(f"{scheme}://127.0.0.1:{there.sockets[0].getsockname()[1]}/mcp")


@pytest.mark.promise("link.tls")
async def test_a_missing_or_wrong_file_is_named(certificates: Path) -> None:
    async with FaultServer() as server:
        for tls in (TLS(ca="/nowhere/ca.pem"), TLS(ca=str(certificates / "client.key"))):
            async with link_to(HttpTarget(server.url, tls=tls)) as link:
                with pytest.raises(holdfast.ConfigError) as caught:
                    await link.request("tools/list")
                assert caught.value.server == "it"
                assert str(tls.ca) in str(caught.value) or "PEM" in str(caught.value)


@pytest.mark.promise("link.proxy")
async def test_a_proxy_is_used_as_set_or_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, certificates: Path
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    async with FaultServer() as server, pipe_to(lambda _: ("127.0.0.1", server.port)) as (port, heads):
        proxy = f"http://127.0.0.1:{port}"
        async with link_to(HttpTarget("http://mcp.example/mcp", proxy=proxy), stream=False) as link:
            assert (await link.request("tools/list"))["tools"]
        assert heads[0].startswith(b"POST http://mcp.example/mcp")
        monkeypatch.setenv("http_proxy", proxy)
        async with link_to(HttpTarget("http://other.example/mcp"), stream=False) as link:
            assert (await link.request("tools/list"))["tools"]
        assert any(head.startswith(b"POST http://other.example/mcp") for head in heads)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        seen = len(heads)
        async with link_to(HttpTarget(server.url), stream=False) as link:
            assert (await link.request("tools/list"))["tools"]
        assert len(heads) == seen
    async with (
        FaultServer() as server,
        tls_front(server, certificates) as url,
        pipe_to(lambda _: ("127.0.0.1", int(url.rsplit(":", 1)[1].split("/")[0]))) as (port, heads),
    ):
        target = HttpTarget(url, proxy=f"http://127.0.0.1:{port}", tls=TLS(ca=str(certificates / "ca.pem")))
        async with link_to(target, stream=False) as link:
            assert (await link.request("tools/list"))["tools"]
        assert heads[0].startswith(b"CONNECT 127.0.0.1")


@pytest.mark.promise("link.proxy")
async def test_a_proxy_that_is_down_or_refuses_means_that_nothing_was_sent() -> None:
    async with FaultServer() as server:
        await server.refuse()
        target = HttpTarget("http://mcp.example/mcp", proxy=f"http://127.0.0.1:{server.port}")
        async with link_to(target) as link:
            with pytest.raises(holdfast.ConnectFailed):
                await link.request("tools/list")


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
