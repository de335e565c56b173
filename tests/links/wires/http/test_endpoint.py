"""Redirects: which are followed, which are remembered, and what is said of the others."""

import pytest

import holdfast
from holdfast.testing import Fault, FaultServer
from tests.links.quick_links import link_to, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.bad-input")
async def test_a_redirect_to_another_origin_is_not_followed_and_said_so() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.REDIRECT, times=1)
        with pytest.raises(holdfast.Rejected, match=r"elsewhere\.example.*not followed") as caught:
            await link.request("tools/list")
        assert caught.value.phase == "handshake"


@pytest.mark.promise("link.bad-input")
async def test_a_redirect_within_the_origin_is_followed_once_and_remembered() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, status=307, headers={"location": "/mcp/"})
        await link.request("tools/list")
        await link.request("tools/list")
        assert (await link.request("tools/list"))["tools"]


@pytest.mark.promise("errors.repr")
@pytest.mark.parametrize("place", ["https://me:hunter2@else.example/x?t=hunter2", "/login?next=hunter2", "x#hunter2"])
async def test_no_secret_is_in_the_word_of_a_redirect(place: str) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        for _ in range(3):
            server.plan(Fault.STATUS, method="tools/call", status=302, headers={"location": place})
        with pytest.raises(holdfast.HoldfastError, match="redirected") as refused:
            await link.request("tools/call", tool("echo"))
        assert "hunter2" not in f"{refused.value} {refused.value!r}"


@pytest.mark.promise("link.bad-input")
async def test_a_temporary_redirect_is_followed_and_not_remembered() -> None:
    async with FaultServer() as server, link_to(server.url, stream=False) as link:
        await link.request("tools/list")
        server.plan(Fault.STATUS, method="tools/list", status=307, headers={"location": "/busy"})
        await link.request("tools/list")
        server.plan(Fault.STATUS, method="tools/list", status=307, headers={"location": "/a"}, times=100)
        with pytest.raises(holdfast.HoldfastError):
            await link.request("tools/list")
        server.lift()
        assert (await link.request("tools/list"))["tools"]
