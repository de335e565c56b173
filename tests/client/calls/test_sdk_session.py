"""The SDK's `ClientSession` over a run's link: it lives as long as the link, and does not keep it alive."""

import gc
import weakref
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast.client.runs.pool import pool
from holdfast.testing import FaultServer
from tests.client.servers import at, said
from tests.deadlines import until

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.share")
@pytest.mark.parametrize("reuse", ["run", "process"])
async def test_the_sdks_session_ends_with_what_lent_it_and_opens_nothing_again(reuse: Any) -> None:
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        server = at(http, reuse=reuse)
        for more in ({}, {"id": "talk", "store": store}):
            http.sessions.sessions.clear()
            async with holdfast.run(**more):
                session = await server.session()
                assert said(await session.call_tool("count")) == "1"
            await pool.close()
            sent, sessions = len(http.requests), len(http.sessions.sessions)
            with pytest.raises(MCPError, match=r"LeaseClosed: .* after its run had ended"):
                await session.call_tool("count")
            assert (len(http.requests), len(http.sessions.sessions)) == (sent, sessions)


@pytest.mark.promise("run.typed")
async def test_a_session_does_not_keep_its_link_alive() -> None:
    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run() as run:
            await server.session()
            link = weakref.ref(await run.link(server))
        await until(lambda: gc.collect() is not None and link() is None)
