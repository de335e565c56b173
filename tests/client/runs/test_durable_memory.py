"""A durable run whose programs and objects have an author's memory: their loss is reported all the same."""

import logging
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast import Server
from holdfast.links import IdMemory, StoreMemory
from holdfast.testing import FaultServer
from tests.client.runs.test_durable import replacements
from tests.client.servers import FASTER, at, count, program

pytestmark = pytest.mark.anyio


class TwoMethods:
    def __init__(self, kept: dict[str, str]) -> None:
        self._kept = kept

    async def get_session_id(self) -> str | None:
        return self._kept.get("id")

    async def set_session_id(self, id: str) -> None:
        self._kept["id"] = id


def _factory(kind: str, store: holdfast.Store) -> Any:
    kept: dict[str, str] = {}
    made: Any = {
        "IdMemory": lambda *_: IdMemory(lambda: kept.get("id"), lambda id: kept.update(id=id)),
        "two methods": lambda *_: TwoMethods(kept),
        "None": lambda *_: None,
        "StoreMemory": lambda *_: StoreMemory(store, "mine"),
        "raises": lambda *_: {}["x"],
    }
    return made[kind]


def _object(**more: Any) -> Server:
    app, made = MCPServer("program"), list[int]()

    @app.tool(name="count")
    def counted() -> str:
        made.append(1)
        return str(len(made))

    return Server("program", app=app, limits=FASTER, **more)


@pytest.mark.promise("run.durable-loss")
@pytest.mark.parametrize("of", ["run", "server"])
@pytest.mark.parametrize("served", [program, _object])
@pytest.mark.parametrize("kind", ["IdMemory", "two methods", "None", "StoreMemory", "raises"])
async def test_a_program_with_an_authors_memory_is_reported_as_replaced(
    kind: str, served: Any, of: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with holdfast.open_store("memory:") as store:
        memory = _factory(kind, store)
        of_run: dict[str, Any] = {"memory": memory} if of == "run" else {}
        for time in range(3):
            seen: list[Any] = []
            server = served(**({"memory": memory} if of == "server" else {}))
            async with holdfast.run("talk", store=store, on_event=seen.append, **of_run):
                if time:
                    with pytest.raises(holdfast.SessionReplaced):
                        await count(server)
                assert [await count(server) for _ in range(2)] == [1, 2]
            assert len(replacements(seen)) == (1 if time else 0)
    assert "stores session ids" not in caplog.text


@pytest.mark.promise("run.durable-loss")
async def test_an_authors_memory_of_a_server_over_http_goes_on_as_before() -> None:
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        memory = _factory("IdMemory", store)
        for expected in (1, 2):
            async with holdfast.run("talk", store=store):
                assert await count(at(http, memory=memory)) == expected


@pytest.mark.promise("run.durable-loss")
@pytest.mark.parametrize("inside", [True, False])
async def test_a_program_with_an_id_memory_and_no_record_is_warned_of_once(
    inside: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with holdfast.open_store("memory:") as store:
        memory = _factory("IdMemory", store)
        server = program(memory=memory)
        for _ in range(2):
            with caplog.at_level(logging.WARNING, "holdfast.client"):
                if inside:
                    async with holdfast.run("talk", memory=memory):
                        assert await count(server) == 1
                else:
                    assert await count(server) == 1
        told = [record.getMessage() for record in caplog.records if "stores session ids" in record.getMessage()]
        assert len(told) == 1
        assert "store=" in told[0]
