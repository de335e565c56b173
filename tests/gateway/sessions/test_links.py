"""A session's links to its backends."""

from pathlib import Path

import pytest

from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.raw_backend import raw_program


@pytest.mark.promise("gateway.children")
async def test_a_program_that_made_room_is_subscribed_again(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    said = {
        "capabilities": '{"tools":{},"resources":{"subscribe":true}}',
        "resources/list": '{"resources":[{"uri":"note://one","name":"one"}]}',
        "resources/templates/list": '{"resourceTemplates":[]}',
        "resources/subscribe": "{}",
        "log": str(seen),
    }

    def asked(method: str) -> int:
        return seen.read_text().count(f'"method":"{method}"') if seen.exists() else 0

    servers = {"notes": {**raw_program(said), "start": "lazy"}}
    async with (
        gateway(tmp_path, servers, sessions={"children": 1}) as program,
        RawClient(program.url) as one,
        RawClient(program.url) as other,
    ):
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools and not gate.describe()["children"], 20)
        await one.initialize()
        assert (await one.ask("resources/subscribe", {"uri": "note://one"})).result == {}
        await other.initialize()
        assert not (await other.call("notes__t")).result.get("isError")  # in its place
        assert asked("resources/subscribe") == 1
        await one.ask("logging/setLevel", {"level": "info"})
        told_or_done = await one.call("notes__t")
        assert "call again" in str(told_or_done.last) or not told_or_done.result.get("isError")
        assert asked("resources/subscribe") == 2
