"""Spare links."""

from pathlib import Path

import pytest

from holdfast.events import ChildStarted, Event
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import NOTEBOOK, gateway


@pytest.mark.promise("gateway.children")
async def test_children_are_capped_and_spares_are_for_one_session_only(tmp_path: Path) -> None:
    events: list[Event] = []
    servers = {"notebook": {**NOTEBOOK, "warm": 1}}
    async with gateway(tmp_path, servers, sessions={"children": 3}, sink=events.append) as program:
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools, 20)
        await until(lambda: gate.describe()["children"] == 0, 20)
        clients = [RawClient(program.url) for _ in range(4)]
        await clients[0].initialize()
        await until(lambda: gate.describe()["children"] == 2, 20)  # its own, and a spare
        await until(lambda: sum(isinstance(event, ChildStarted) for event in events) == 3, 20)  # one was for the lists
        await clients[1].initialize()  # has the spare; another is made
        assert (await clients[1].call("notebook__write", text="a")).text == "noted, 1 so far"
        await until(lambda: gate.describe()["children"] == 3, 20)
        await until(lambda: sum(isinstance(event, ChildStarted) for event in events) == 4, 20)
        await clients[2].initialize()
        assert (await clients[2].call("notebook__write", text="a")).text == "noted, 1 so far"
        await clients[3].initialize()  # the program that was used longest ago makes room: nothing was kept in it
        assert (await clients[3].call("notebook__write", text="a")).text == "noted, 1 so far"
        assert gate.describe()["children"] == 3
        assert (await clients[0].call("notebook__write", text="a")).text == "noted, 1 so far"
        told = await clients[1].call("notebook__write", text="b")  # and now this one had to go, which had a note
        assert told.result["_meta"]["dev.holdfast/error"]["kind"] == "SessionReplaced"
        assert (await clients[1].call("notebook__write", text="b")).text == "noted, 1 so far"
        for client in clients:
            await client.__aexit__()
