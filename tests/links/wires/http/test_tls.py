"""TLS: what is trusted, what is shown, and the words for the wrong scheme."""

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.links import TLS, HttpTarget, Limits
from holdfast.testing import FaultServer
from tests.links.quick_links import link_to
from tests.links.wires.http.fronts import tls_front

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.tls")
async def test_a_ca_bundle_is_trusted_and_an_unknown_certificate_is_not(certificates: Path) -> None:
    async with FaultServer() as server, tls_front(server, certificates) as url:
        async with link_to(HttpTarget(url, tls=TLS(ca=str(certificates / "ca.pem")))) as link:
            assert (await link.request("tools/list"))["tools"]
        async with link_to(HttpTarget(url)) as link:
            with pytest.raises(holdfast.errors.ConnectFailed, match="certificate is not trusted"):
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
            with pytest.raises((holdfast.errors.ConnectFailed, holdfast.Rejected)) as caught:
                await link.request("tools/list")
        return str(caught.value)

    async with FaultServer() as server, tls_front(server, certificates) as url:
        assert "a URL that begins with https://" in await failure(url.replace("https:", "http:"))
        silent = server.url.replace("http:", "https:")  # waits for a whole HTTP request
        assert "a URL that begins with http://" in await failure(silent)
    for scheme, words, says in (
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "a URL that begins with http://"),
        ("https", b"", "a URL that begins with http://"),
        ("http", b"\x15\x03\x01\x00\x02\x02\x16", "a URL that begins with https://"),  # an alert
        ("http", b"", "a URL that begins with https://"),
    ):
        async with await answering(words) as there:
            assert says in await failure(f"{scheme}://127.0.0.1:{there.sockets[0].getsockname()[1]}/mcp")


@pytest.mark.promise("link.tls")
async def test_a_missing_or_wrong_file_is_named(certificates: Path) -> None:
    async with FaultServer() as server:
        for tls in (TLS(ca="/nowhere/ca.pem"), TLS(ca=str(certificates / "client.key"))):
            async with link_to(HttpTarget(server.url, tls=tls)) as link:
                with pytest.raises(holdfast.errors.ConfigError) as caught:
                    await link.request("tools/list")
                assert caught.value.server == "it"
                assert str(tls.ca) in str(caught.value) or "PEM" in str(caught.value)
