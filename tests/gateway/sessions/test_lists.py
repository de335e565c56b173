"""Lists of a session's own."""

import asyncio
import sys
from pathlib import Path

import pytest

from holdfast.gateway.backends.lists.catalogue import Catalogue
from holdfast.gateway.sessions.lists import SessionLists
from tests.deadlines import patience
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway


@pytest.mark.promise("gateway.routing")
async def test_a_list_that_changes_in_a_call_is_fetched_anew_for_that_session(tmp_path: Path) -> None:
    script = Path(__file__).with_name("revealing_server.py")
    servers = {"r": {"command": sys.executable, "args": [str(script)], "era": "2025"}}
    async with gateway(tmp_path, servers) as program, RawClient(program.url) as client, RawClient(program.url) as other:
        await client.initialize()
        await other.initialize()
        assert await client.tools() == ["r__reveal"]
        async with client.stream() as events:
            await client.call("r__reveal")
            async with asyncio.timeout(patience(20)):  # an earlier change, of the start, may be told first
                while await client.tools() != ["r__reveal", "r__secret"]:
                    assert (await events.next(20))["method"] == "notifications/tools/list_changed"
        assert (await client.call("r__secret")).text == "moss"
        assert await other.tools() == ["r__reveal"]


class Reader:
    """Notes what is announced to a session."""

    def __init__(self) -> None:
        self.announced: list[tuple[str, ...]] = []

    def lists_changed(self, kinds: tuple[str, ...], *, seen: bool = True) -> None:
        self.announced.append(kinds)


@pytest.mark.promise("gateway.routing")
async def test_a_session_whose_own_lists_went_sees_those_of_all_again(tmp_path: Path) -> None:
    async with gateway(tmp_path, {"counter": {"url": "http://127.0.0.1:9/mcp"}}) as program:
        gate = program.gateway
        assert gate is not None
        reader = Reader()
        lists = SessionLists({}, reader, gate.offers)
        lists.rebuild()
        assert lists.table is None
        lists.catalogues["counter"] = Catalogue(tools=({"name": "own", "inputSchema": {}},))
        lists.rebuild()
        assert lists.table is not None
        assert list(lists.table.tools) == ["counter__own"]
        lists.drop("counter")
        lists.rebuild()
        assert lists.table is None
        assert not lists.differ
        assert reader.announced == [("tools",), ("tools",)]
