"""Proxies: which one is used, what it is sent, and what its failures mean."""

import asyncio
import base64
from pathlib import Path

import pytest

import holdfast
from holdfast.links import TLS, HttpTarget, Limits
from holdfast.links.wires.http.route import Proxy, Route, proxy_for
from holdfast.links.wires.http.tunnel import HEAD_BYTES
from holdfast.testing import FaultServer
from tests.deadlines import patience
from tests.links.quick_links import EVERY_LOOP, link_to
from tests.links.web import listening
from tests.links.wires.http.fronts import pipe_to, tls_context, tls_front

pytestmark = pytest.mark.anyio

ONCE = Limits(replays=0, connect=5, handshake=5, close=2, exit=1)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.promise("link.proxy")
async def test_a_proxy_is_used_as_set_or_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, certificates: Path
) -> None:
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
            with pytest.raises(holdfast.errors.ConnectFailed):
                await link.request("tools/list")


@pytest.mark.promise("link.proxy")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            b"HTTP/1.1 407 Authenticate\r\nProxy-Authenticate: Basic\r\n\r\n",
            "refused: 407 .*password@",
        ),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno!", "refused: 403 Forbidden"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 502\r\n\r\n", "refused: 502"),
        (b"", "closed the connection before it answered CONNECT"),
        (b"HTTP/1.1 200 Conn", "closed the connection before it answered CONNECT"),
        (b"HTTP/1.1 200 OK\r\nVia: x\r\n", "closed the connection before it answered CONNECT"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "closed the connection during the TLS handshake"),
        (b"HTTP/1.1 200 OK\r\n\r\n\x16\x03", "more than its answer to CONNECT"),
        (b"SSH-2.0-x\r\n", "is not HTTP"),
        (b"HTTP/1.1 OK\r\n\r\n", "is not HTTP"),
    ],
)
async def test_a_tunnel_that_is_not_opened_is_told_and_nothing_was_sent(answer: bytes, says: str) -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"CONNECT mcp.example:443 HTTP/1.1\r\nhost: mcp.example:443\r\n")
        writer.write(answer)
        await writer.drain()

    async with listening(handle) as port:
        proxy = f"127.0.0.1:{port}"
        async with link_to(
            HttpTarget("https://mcp.example/mcp", proxy=f"http://u:s3cret@{proxy}"), limits=ONCE
        ) as link:
            with pytest.raises(holdfast.errors.ConnectFailed, match=says) as caught:
                await link.request("tools/list")
    assert "s3cret" not in str(caught.value)
    assert connections == 1


@pytest.mark.promise("link.proxy")
async def test_a_407_to_plain_http_is_the_proxys_word_and_a_403_the_servers() -> None:
    status = b"407 X"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with listening(handle) as port:
        proxy = f"127.0.0.1:{port}"
        async with link_to(HttpTarget("http://mcp.example/mcp", proxy=f"http://{proxy}"), limits=ONCE) as link:
            with pytest.raises(holdfast.errors.ConnectFailed, match=r"the proxy .* refused: 407"):
                await link.request("tools/list")
            status = b"403 X"
            with pytest.raises(holdfast.Rejected, match="403"):
                await link.request("tools/list")


@pytest.mark.promise("link.proxy")
async def test_a_proxy_that_never_answers_is_given_up_in_time() -> None:
    asked = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()  # until the other end closes

    async with listening(handle) as port:
        proxy = f"127.0.0.1:{port}"
        limits = Limits(replays=0, connect=0.2)
        target = HttpTarget("https://mcp.example/mcp", proxy=f"http://{proxy}")
        async with link_to(target, limits=limits) as link:
            with pytest.raises(
                holdfast.errors.ConnectFailed, match=r"no answer to CONNECT from the proxy .* within 0.2 s"
            ):
                await link.request("tools/list")
        asked.clear()
        async with link_to(target, limits=ONCE) as link:  # and a caller who is cancelled leaves no socket behind
            call = asyncio.ensure_future(link.request("tools/list"))
            await asyncio.wait_for(asked.wait(), patience(10))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


@pytest.mark.promise("link.proxy")
@pytest.mark.parametrize(
    ("begin", "piece"),
    [(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), (b"HTTP/1.1 200 O", b"K"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")],
    ids=["headers", "status line", "interim answers"],
)
async def test_an_endless_answer_to_connect_is_cut(begin: bytes, piece: bytes) -> None:
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        while sent < 64_000_000:
            writer.write(piece * (HEAD_BYTES // len(piece)))
            await writer.drain()
            sent += HEAD_BYTES

    async with listening(handle) as port:
        proxy = f"127.0.0.1:{port}"
        target = HttpTarget("https://mcp.example/mcp", proxy=f"http://{proxy}")
        async with link_to(target, limits=ONCE) as link:
            with pytest.raises(holdfast.errors.ConnectFailed, match=f"over {HEAD_BYTES} bytes of headers"):
                await link.request("tools/list")
    assert sent < 32_000_000  # what fits into sockets


@pytest.mark.promise("link.proxy")
@EVERY_LOOP
async def test_credentials_of_a_proxy_go_to_the_proxy_only(certificates: Path) -> None:
    shown = b"proxy-authorization: Basic " + base64.b64encode("üser:p@ss".encode()) + b"\r\n"
    async with FaultServer() as server:
        async with pipe_to(lambda _: ("127.0.0.1", server.port)) as (port, heads):
            proxy = f"http://%C3%BCser:p%40ss@127.0.0.1:{port}"
            target = HttpTarget("http://mcp.example:8080/mcp?q=1", proxy=proxy)
            assert "p%40ss" not in repr(target)
            async with link_to(target, stream=False) as link:
                assert (await link.request("tools/list"))["tools"]
            assert heads[0].startswith(b"POST http://mcp.example:8080/mcp?q=1 HTTP/1.1\r\nhost: mcp.example:8080\r\n")
            assert shown in heads[0]
        server.requests.clear()
        async with (
            tls_front(server, certificates) as url,
            pipe_to(lambda _: ("127.0.0.1", Route.to(url).port)) as (port, heads),
        ):
            tls = TLS(ca=str(certificates / "ca.pem"))
            target = HttpTarget(url, proxy=f"http://%C3%BCser:p%40ss@127.0.0.1:{port}", tls=tls)
            async with link_to(target, stream=False) as link:
                for _ in range(3):
                    assert (await link.request("tools/list"))["tools"]
            assert len(heads) == 1  # one tunnel for all
            assert shown in heads[0]
            assert not any("proxy-authorization" in request.headers for request in server.requests)


@pytest.mark.promise("link.proxy")
@pytest.mark.promise("link.tls")
@EVERY_LOOP
async def test_a_proxy_may_be_reached_over_tls_and_does_not_end_the_servers(certificates: Path) -> None:
    tls = TLS(ca=str(certificates / "ca.pem"))
    async with (
        FaultServer() as server,
        tls_front(server, certificates) as url,
        pipe_to(lambda _: ("127.0.0.1", Route.to(url).port), tls_context(certificates)) as (port, heads),
    ):
        proxy = f"https://127.0.0.1:{port}"
        async with link_to(HttpTarget(url, proxy=proxy, tls=tls), stream=False) as link:  # TLS within TLS
            assert (await link.request("tools/list"))["tools"]
        assert heads[0].startswith(b"CONNECT 127.0.0.1")
        assert b"tools/list" not in b"".join(heads)
        async with link_to(HttpTarget(url, proxy=proxy), stream=False, limits=ONCE) as link:
            with pytest.raises(holdfast.errors.ConnectFailed, match=r"the proxy .* certificate is not trusted"):
                await link.request("tools/list")
    async with (
        FaultServer() as server,
        tls_front(server, certificates) as url,
        pipe_to(lambda _: ("127.0.0.1", Route.to(url).port)) as (port, _),
    ):
        async with link_to(HttpTarget(url, proxy=f"http://127.0.0.1:{port}"), stream=False, limits=ONCE) as link:
            with pytest.raises(holdfast.errors.ConnectFailed, match="the server's certificate is not trusted"):
                await link.request("tools/list")


@pytest.mark.promise("link.proxy")
@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({"https_proxy": "http://p:1"}, "https://a.example/", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "http://a.example/", None),
        ({"HTTPS_PROXY": "p:1"}, "https://a.example/", "http://p:1"),
        ({"all_proxy": "http://p:1"}, "http://a.example/", "http://p:1"),
        ({"http_proxy": "http://p:1", "no_proxy": "a.example,b.example"}, "http://a.example/", None),
        ({"http_proxy": "http://p:1", "no_proxy": ".example"}, "http://a.example:81/", None),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, "http://a.example/", None),
        ({"http_proxy": "http://p:1", "no_proxy": "c.example"}, "http://a.example/", "http://p:1"),
    ],
)
def test_which_proxy_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, proxy: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url, None) == proxy
    assert proxy_for(url, "") is None
    assert proxy_for(url, "https://mine:2") == "https://mine:2"


@pytest.mark.promise("link.proxy")
@pytest.mark.parametrize("wrong", ["socks5://u:s3cret@p:1", "http://", "http://u:s3cret@p:x", "http://[p", "p:1"])
def test_a_proxy_that_is_no_http_url_is_a_config_error(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    with pytest.raises(holdfast.errors.ConfigError, match="proxy= is not") as caught:
        proxy_for("http://a.example/", wrong)
    assert "s3cret" not in str(caught.value)
    if "://" in wrong:
        monkeypatch.setenv("all_proxy", wrong)
        with pytest.raises(holdfast.errors.ConfigError, match="all_proxy in the environment"):
            proxy_for("http://a.example/", None)


@pytest.mark.promise("link.proxy")
def test_a_route_is_what_http_wants_and_shows_no_password() -> None:
    route = Route.to("http://Bücher.example:80/a b/%20?q=ü#part", "http://u:s3cret@[::1]:3128")
    assert route.url == "http://xn--bcher-kva.example/a%20b/%20?q=%C3%BC"
    assert route.begin.startswith(f"{route.url} HTTP/1.1\r\nhost: xn--bcher-kva.example\r\nproxy-authorization: ")
    assert route.proxy == Proxy("http", "::1", 3128, "Basic dTpzM2NyZXQ=")
    assert str(route.proxy) == "[::1]:3128"
    assert "dTpzM2NyZXQ" not in repr(route)
    assert Route.to("https://[::1]:8443").begin == "/ HTTP/1.1\r\nhost: [::1]:8443\r\n"
    assert Route.to("http://a/1", "http://p").key == Route.to("http://b/2", "http://p").key
    assert Route.to("https://a/1", "http://p").key != Route.to("https://b/2", "http://p").key
