"""A memory that is a JSON document at a URL: ETags, ends, odd documents, headers."""

from json import loads

import pytest

import holdfast
from holdfast import events
from holdfast.links import HttpMemory
from holdfast.testing import FaultServer
from tests.links.memory.documents import Documents
from tests.links.quick_links import link_to, text_of, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.memory-http")
async def test_a_document_server_without_etags_works_without_compare_and_swap(documents: Documents) -> None:
    documents.etags = False
    async with FaultServer() as server:
        for turn in ("1", "2", "3"):
            async with link_to(server.url, memory=HttpMemory(documents.url, name="a/b c")) as link:
                assert text_of(await link.request("tools/call", tool("count"))) == turn
    [(path, (_, body))] = documents.kept.items()
    assert path == "/sessions/a/b c"  # quoted on the wire
    assert loads(body)["era"] == "2025"


@pytest.mark.promise("link.memory-http")
async def test_a_template_that_can_not_be_filled_is_a_config_error() -> None:
    with pytest.raises(holdfast.errors.ConfigError, match="can't be filled"):
        HttpMemory("https://example.com/{run}/{server}", run="r")


@pytest.mark.promise("link.memory-http")
@pytest.mark.parametrize("body", [b"<html>", b'{"session": 7}', b"[" * 300_000, b'"' + b"x" * 300_000 + b'"'])
@pytest.mark.parametrize("etags", [True, False])
async def test_a_document_that_is_no_session_is_told_and_written_anew(
    documents: Documents, body: bytes, etags: bool
) -> None:
    documents.etags = etags
    documents.kept["/sessions/one"] = (1, body)
    heard: list[events.Event] = []
    async with FaultServer() as server:
        async with link_to(server.url, memory=HttpMemory(documents.url, name="one"), on_event=heard.append) as link:
            await link.request("tools/list")
        assert sum(isinstance(event, events.MemoryFailed) for event in heard) == 1
        async with link_to(server.url, memory=HttpMemory(documents.url, name="one")) as link:
            await link.request("tools/list")
            assert link.statistics().adoptions == 1
            await link.close(end=True)


@pytest.mark.promise("link.memory-http")
async def test_where_nothing_can_be_deleted_an_ended_session_is_written_over(documents: Documents) -> None:
    documents.deletes = False
    async with FaultServer() as server:
        link = link_to(server.url, memory=HttpMemory(documents.url, name="one"))
        await link.request("tools/call", tool("count"))
        await link.close(end=True)
        assert documents.kept["/sessions/one"][1] == b"null"
        async with link_to(server.url, memory=HttpMemory(documents.url, name="one")) as link:
            assert text_of(await link.request("tools/call", tool("count"))) == "1"  # begun, not adopted
            await link.close(end=True)


@pytest.mark.promise("link.memory-http")
async def test_ending_a_session_forgets_no_other_that_was_saved_meanwhile(documents: Documents) -> None:
    async with FaultServer() as server:
        link = link_to(server.url, memory=HttpMemory(documents.url, name="one"))
        await link.request("tools/list")
        rev, body = documents.kept["/sessions/one"]
        documents.kept["/sessions/one"] = (rev + 1, body)  # another link's save
        await link.close(end=True)
        assert "/sessions/one" in documents.kept


@pytest.mark.promise("link.memory-http")
async def test_headers_of_a_document_server_may_be_a_callable_that_is_asked_each_time(documents: Documents) -> None:
    tokens: list[str] = []

    async def headers() -> dict[str, str]:
        tokens.append(f"t{len(tokens) + 1}")
        documents.token = tokens[-1]
        return {"authorization": tokens[-1]}

    async with FaultServer() as server:
        for expected in ("1", "2"):
            memory = HttpMemory(documents.url, name="one", headers=headers)
            async with link_to(server.url, memory=memory) as link:
                assert text_of(await link.request("tools/call", tool("count"))) == expected
    assert len(tokens) >= 3

    async def broken() -> dict[str, str]:
        raise KeyError("no token today")

    heard: list[events.Event] = []
    async with FaultServer() as server:
        memory = HttpMemory(documents.url, name="one", headers=broken)
        async with link_to(server.url, memory=memory, on_event=heard.append) as link:
            assert (await link.request("tools/list"))["tools"]
    assert any(isinstance(event, events.MemoryFailed) for event in heard)
