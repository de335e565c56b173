"""A memory that is a bare session id: two functions, or a document."""

from json import dumps
from typing import Any

import pytest

import holdfast
from holdfast import Principal
from holdfast.links import HttpMemory, StoreMemory
from holdfast.stores import Record
from holdfast.testing import FaultServer
from tests.links.memory.documents import Documents
from tests.links.quick_links import link_to, text_of, tool

pytestmark = pytest.mark.anyio


class SessionInfo:
    """As founding document 001 has it."""

    def __init__(self, session_id: str | None = None) -> None:
        self.session_id = session_id

    async def get_session_id(self) -> str | None:
        return self.session_id

    async def set_session_id(self, session_id: str) -> None:
        self.session_id = session_id


@pytest.mark.promise("link.memory-ids")
async def test_two_methods_that_load_and_save_an_id_are_a_memory(documents: Documents) -> None:
    info = SessionInfo()
    kept: dict[str, str] = {}
    async with FaultServer() as server:
        for memories in (
            lambda: info,
            lambda: holdfast.links.IdMemory(lambda: kept.get("it"), lambda id: kept.update(it=id)),
        ):
            for expected in ("1", "2"):
                async with link_to(server.url, memory=memories(), principal=Principal("alice")) as link:
                    assert text_of(await link.request("tools/call", tool("count"))) == expected
        assert {info.session_id, kept["it"]} == set(server.sessions.sessions)
        server.sessions.sessions.clear()
        async with link_to(server.url, memory=info) as link:
            with pytest.raises(holdfast.SessionReplaced):
                await link.request("tools/call", tool("count"))
            assert text_of(await link.request("tools/call", tool("count"))) == "1"
            assert {info.session_id} == set(server.sessions.sessions)
            await link.close(end=True)
        info.session_id = "a\nb"
        async with link_to(server.url, memory=info) as link:
            await link.request("tools/list")
            assert {info.session_id} == set(server.sessions.sessions)


@pytest.mark.promise("link.memory-ids")
async def test_a_bare_id_in_a_document_or_record_is_gone_on_with(documents: Documents, store: holdfast.Store) -> None:
    async with FaultServer() as server:
        async with link_to(server.url) as first:
            await first.request("tools/call", tool("count"))
            session = first.session_id
            await first.close(end=False)
        documents.kept["/sessions/one"] = (1, dumps(session).encode())
        await store.commit(Record("link", "one", data=session), expect=0)
        for expected, memory in (("2", HttpMemory(documents.url, name="one")), ("3", StoreMemory(store, "one"))):
            async with link_to(server.url, memory=memory) as link:
                assert text_of(await link.request("tools/call", tool("count"))) == expected
                assert link.session_id == session


@pytest.mark.promise("link.memory-ids")
async def test_a_servers_memory_works_outside_a_run_and_one_that_can_not_be_made_harms_no_call() -> None:
    info, asked = SessionInfo(), list[tuple[str, str | None, str]]()

    def memory(server: holdfast.Server, run: str | None, principal: Principal) -> Any:
        asked.append((server.name, run, principal))
        return info

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug of its author")

    async with FaultServer() as http:
        server = holdfast.Server("it", url=http.url, memory=memory)
        for expected in ("1", "2"):
            result = await server.call_tool("count")
            assert text_of(result.model_dump(mode="json")) == expected
        assert asked == [("it", None, holdfast.stores.ANONYMOUS)] * 2
        async with holdfast.run():
            assert not (await holdfast.Server("b", url=http.url, memory=broken).call_tool("count")).is_error
        assert len(http.sessions.sessions) == 1
