"""A link that several runs use: the newest of them answers."""

from typing import Any

import mcp_types as types
import pytest

import holdfast
from holdfast import Callbacks
from holdfast.client.runs.pool import pool
from holdfast.testing import FaultServer
from tests.client.servers import at, said

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.callbacks")
async def test_a_kept_link_asks_the_run_that_uses_it_now() -> None:
    told: list[str] = []

    def answering(name: str) -> Callbacks:
        async def elicit(params: Any) -> types.ElicitResult:
            return types.ElicitResult(action="accept", content={"who": name})

        return Callbacks(elicit=elicit)

    asked = {"params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}}
    async with FaultServer(answers="sse") as http:
        server = at(http, reuse="process")
        for name in ("first", "second"):
            async with holdfast.run(callbacks=answering(name), on_replaced=lambda _, name=name: told.append(name)):
                assert name in said(await server.call_tool("ask", asked))
                if name == "second":
                    http.sessions.sessions.clear()
                    await server.list_tools()
        assert told == ["second"]
        async with holdfast.run():  # promises nothing, so it may not use a link that does
            await server.call_tool("echo")
            assert pool.statistics().open_links == 2
        await pool.close()
