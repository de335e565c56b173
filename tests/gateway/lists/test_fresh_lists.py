"""Lists, and calls by name, are as the servers are now: after a call, after a change that nobody told, merged whole."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.backends.lists.list_members import OTHERS
from holdfast.gateway.backends.lists.looks import FRESH_SECONDS
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.gateway.backends.lists.test_caller_lists import TenantServer
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.raw_backend import raw_program
from tests.gateway.scripted_backend import Era, Scripted
from tests.gateway.test_whole_messages import CELLS, ask

SELDOM: dict[str, Any] = {"health": {"every": 600, "lists": 600}}
"""The gateway looks by itself too seldom for a test to see."""
KEYED: dict[str, Any] = {**SELDOM, "sessions": {"header": "X-Key"}}
LIST_CHANGED = "notifications/tools/list_changed"


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


def growing(era: Era) -> Scripted:
    """A server on which every call makes one more tool, and tells nobody."""
    server = Scripted(era)
    tools = [tool("t")]
    server.results["tools/list"] = lambda _: {"tools": tools}

    def grow(params: dict[str, Any]) -> dict[str, Any]:
        tools.append(tool(f"t{len(tools)}"))
        return {"content": [{"type": "text", "text": params["name"]}]}

    server.results["tools/call"] = grow
    return server


async def names(client: RawClient, era: str) -> list[str]:
    return [each["name"] for each in (await ask(client, era, "tools/list")).result["tools"]]


async def call(client: RawClient, era: str, name: str) -> Any:
    return (await ask(client, era, "tools/call", {"name": name, "arguments": {}})).last


@pytest.mark.promise("gateway.true-lists")
@CELLS
@pytest.mark.parametrize("told", [False, True], ids=["untold", "told"])
async def test_a_list_is_right_after_a_call_that_changed_it(
    tmp_path: Path, client_era: str, server_era: Era, told: bool
) -> None:
    async with (
        growing(server_era).serving() as server,
        gateway(tmp_path, {"b": server.entry}, **SELDOM) as program,
        RawClient(program.url) as client,
    ):
        if told:
            server.before = [{"method": LIST_CHANGED}]
        assert await names(client, client_era) == ["b__t"]
        for turn in (1, 2, 3):
            assert "error" not in await call(client, client_era, "b__t")
            assert await names(client, client_era) == ["b__t", *(f"b__t{n}" for n in range(1, turn + 1))]
        assert (await call(client, client_era, "b__t3"))["result"]["content"][0]["text"] == "t3"


@pytest.mark.promise("gateway.true-lists")
@CELLS
async def test_a_tool_that_appeared_meanwhile_is_called_by_its_name(
    tmp_path: Path, client_era: str, server_era: Era
) -> None:
    async with (
        Scripted(server_era).serving() as server,
        Scripted(server_era).serving() as other,
        gateway(tmp_path, {"b": server.entry, "c": other.entry}, **SELDOM) as program,
        RawClient(program.url) as client,
    ):
        assert await names(client, client_era) == ["b__t", "c__t"]
        server.results["tools/list"] = {"tools": [tool("new")]}
        asked = other.count("tools/list")
        assert "error" not in await call(client, client_era, "b__new")
        assert server.params_of("tools/call")[-1]["name"] == "new"
        assert other.count("tools/list") == asked
        server.results["prompts/list"] = {"prompts": [{"name": "p"}]}
        server.results["prompts/get"] = {"messages": []}
        assert "error" not in (await ask(client, client_era, "prompts/get", {"name": "b__p"})).last


@pytest.mark.promise("gateway.true-lists")
async def test_unknown_names_ask_their_server_seldom_and_once_for_all(tmp_path: Path) -> None:
    async with (
        Scripted().serving() as server,
        Scripted().serving() as other,
        gateway(tmp_path, {"b": server.entry, "c": other.entry}, naming={"mode": "priority"}, **SELDOM) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        before, began = server.count("tools/list"), time.monotonic()
        answers = await asyncio.gather(*(client.call(f"no{n}") for n in range(50)))
        assert {answer.error["code"] for answer in answers} == {-32602}
        looks = server.count("tools/list") - before
        assert looks <= 1 + (time.monotonic() - began) / 0.5
        assert server.count("tools/call") == other.count("tools/call") == 0


@pytest.mark.promise("gateway.true-lists")
@CELLS
async def test_a_change_that_nobody_told_shows_in_the_next_list(
    tmp_path: Path, client_era: str, server_era: Era
) -> None:
    async with (
        Scripted(server_era).serving() as server,
        gateway(tmp_path, {"b": server.entry}, **SELDOM) as program,
        RawClient(program.url) as client,
    ):
        assert await names(client, client_era) == ["b__t"]
        server.results["tools/list"] = {"tools": [tool("other")]}
        async with asyncio.timeout(patience(5)):
            while await names(client, client_era) != ["b__other"]:
                await asyncio.sleep(0.05)
        for method, key, item in (
            ("prompts/list", "prompts", {"name": "p"}),
            ("resources/list", "resources", {"uri": "x://r", "name": "r"}),
            ("resources/templates/list", "resourceTemplates", {"uriTemplate": "x://{n}", "name": "n"}),
        ):
            server.results[method] = {key: [item]}
            async with asyncio.timeout(patience(5)):
                while not (await ask(client, client_era, method)).result[key]:
                    await asyncio.sleep(0.05)


@pytest.mark.promise("gateway.true-lists")
async def test_a_sessions_own_lists_go_when_all_see_the_same_again(tmp_path: Path) -> None:
    async with (
        growing("2025").serving() as server,
        gateway(tmp_path, {"b": server.entry}, **SELDOM) as program,
        RawClient(program.url) as client,
        RawClient(program.url) as other,
    ):
        assert program.gateway is not None
        await other.initialize()
        await client.initialize()
        await client.call("b__t")
        assert await client.tools() == ["b__t", "b__t1"]
        assert await other.tools() == ["b__t", "b__t1"]
        assert not any(session.lists.differ for session in program.gateway.sessions.live.values())


@pytest.mark.promise("gateway.true-lists")
async def test_a_program_is_asked_over_the_sessions_own_link(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = {"era": "2025", "log": str(log)}
    async with gateway(tmp_path, {"b": raw_program(said)}, **SELDOM) as program, RawClient(program.url) as client:
        await client.initialize()
        await until(lambda: program.gateway is not None and program.gateway.checks.done, 30)  # it starts one, too
        assert await client.tools() == ["b__t"]
        started = log.read_text().count('"initialize"')
        for _ in range(3):
            assert "error" not in (await client.call("b__t")).last
            before = log.read_text().count('"tools/list"')
            assert await client.tools() == ["b__t"]
            assert log.read_text().count('"tools/list"') == before + 1
        assert log.read_text().count('"initialize"') == started


@pytest.mark.promise("gateway.true-lists")
@pytest.mark.parametrize("server_era", ["2025", "2026"])
async def test_a_server_that_does_not_list_delays_once_and_keeps_its_last_list(tmp_path: Path, server_era: Era) -> None:
    async with (
        Scripted(server_era).serving() as server,
        gateway(tmp_path, {"b": server.entry}, sessions={"start": 0.3}, **SELDOM) as program,
        RawClient(program.url) as client,
    ):
        assert program.gateway is not None
        await until(lambda: program.gateway is not None and program.gateway.table.tools)
        await client.initialize()
        server.delays["tools/list"] = 60
        await client.call("b__t")
        began = time.monotonic()
        for _ in range(10):
            assert await client.tools() == ["b__t"]
        assert time.monotonic() - began < 2.5
        assert server.count("tools/list") <= 4


@pytest.mark.promise("gateway.true-lists")
async def test_the_time_and_members_of_lists_are_merged(tmp_path: Path) -> None:
    def listed(name: str, ttl: int, scope: str, **meta: Any) -> dict[str, Any]:
        shown = {"tools": [tool(name)], "ttlMs": ttl, "cacheScope": scope, "_meta": meta, f"x-{name}": [name]}
        return {**shown, "resultType": "complete"}

    one = Scripted("2026", tools__list=listed("a", 60_000, "public", shared=1, clash=1))
    two = Scripted("2026", tools__list=listed("b", 30_000, "private", shared=1, clash=2, own=3))
    async with (
        one.serving(),
        two.serving(),
        gateway(tmp_path, {"one": one.entry, "two": two.entry}, **SELDOM) as program,
        RawClient(program.url) as client,
    ):
        result = (await client.ask_2026("tools/list")).result
        assert 20_000 < result["ttlMs"] <= 30_000
        assert result["cacheScope"] == "private"
        meta = {key: value for key, value in result["_meta"].items() if not key.startswith("io.model")}
        assert meta == {"shared": 1, "clash": 1, "own": 3, OTHERS: {"two": {"clash": 2}}}
        assert (result["x-a"], result["x-b"]) == (["a"], ["b"])
        asked = one.count("tools/list")
        for _ in range(5):
            await client.ask_2026("tools/list")
        assert one.count("tools/list") == asked
        await client.initialize()
        old = (await client.ask("tools/list")).result
        assert not {"ttlMs", "cacheScope", "resultType"} & old.keys()
        assert old["_meta"]["own"] == 3


@pytest.mark.promise("gateway.true-lists")
async def test_a_list_without_a_time_of_its_server_may_be_kept_for_as_long_as_we_keep_it(tmp_path: Path) -> None:
    long = {"tools": [tool("b")], "ttlMs": 60_000, "cacheScope": "public", "resultType": "complete"}
    old, new, zero = Scripted("2025"), Scripted("2026", tools__list=long), Scripted("2026")
    zero.results["tools/list"] = {**long, "ttlMs": 0}
    async with old.serving(), new.serving(), zero.serving():
        servers = {"old": old.entry, "new": new.entry}
        async with gateway(tmp_path, servers, **SELDOM) as program, RawClient(program.url) as client:
            listed = (await client.ask_2026("tools/list")).result
            assert 0 < listed["ttlMs"] <= 1000 * FRESH_SECONDS  # the shorter of two
            assert listed["cacheScope"] == "private"
            gate = old.gates["tools/list"] = asyncio.Event()
            await client.call_2026("old__t")
            late = (await client.ask_2026("tools/list")).result  # what the call may have changed is not known yet
            assert late["ttlMs"] == 0
            gate.set()
        async with gateway(tmp_path, {**servers, "zero": zero.entry}, **SELDOM) as program:
            async with RawClient(program.url) as client:
                assert (await client.ask_2026("tools/list")).result["ttlMs"] == 0


@pytest.mark.promise("gateway.true-lists")
async def test_a_list_of_a_session_of_its_own_may_be_kept_as_long(tmp_path: Path) -> None:
    old = Scripted("2025")
    async with old.serving(), gateway(tmp_path, {"old": old.entry}, **KEYED) as program:
        async with RawClient(program.url) as client:
            await client.call_2026("old__t", x_key="k")
            listed = (await client.ask_2026("tools/list", x_key="k")).result
            assert 0 < listed["ttlMs"] <= 1000 * FRESH_SECONDS
            assert listed["cacheScope"] == "private"


@pytest.mark.promise("gateway.true-lists")
async def test_pages_come_in_order(tmp_path: Path) -> None:
    def paged(params: dict[str, Any]) -> dict[str, Any]:
        page = int(params.get("cursor", 0))
        shown = {"tools": [tool(f"t{page * 300 + n:04}") for n in range(300)]}
        return shown if page == 3 else {**shown, "nextCursor": str(page + 1)}

    async with (
        Scripted(tools__list=paged).serving() as one,
        Scripted(tools__list=paged).serving() as two,
        gateway(tmp_path, {"one": one.entry, "two": two.entry}, **SELDOM) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        found: list[str] = []
        cursor: str | None = None
        while True:
            result = (await client.ask("tools/list", {} if cursor is None else {"cursor": cursor})).result
            found += [each["name"] for each in result["tools"]]
            cursor = result.get("nextCursor")
            if cursor is None:
                break
        assert found == [f"{name}__t{n:04}" for name in ("one", "two") for n in range(1200)]


@pytest.mark.promise("gateway.true-lists")
async def test_what_a_list_has_besides_its_items_is_kept_and_bounded(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/g.db"
    server = Scripted(tools__list={"tools": [tool("t")], "_meta": {"kept": [1]}})
    async with server.serving():
        async with (
            gateway(tmp_path, {"b": server.entry}, store=store, **SELDOM) as program,
            RawClient(program.url) as client,
        ):
            await client.initialize()
            assert (await client.ask("tools/list")).result["_meta"] == {"kept": [1]}
    down = {"b": server.entry}
    async with gateway(tmp_path, down, store=store, **SELDOM) as program, RawClient(program.url) as client:
        await client.initialize()
        result = (await client.ask("tools/list")).result
        assert (result["tools"][0]["name"], result["_meta"]) == ("b__t", {"kept": [1]})
    server.results["tools/list"] = {"tools": [tool("t")], "_meta": {"huge": "x" * 70_000}}
    async with server.serving():
        async with gateway(tmp_path, {"b": server.entry}, **SELDOM) as program, RawClient(program.url) as client:
            await client.initialize()
            assert "_meta" not in (await client.ask("tools/list")).result
            assert program.gateway is not None
            (why,) = program.gateway.describe()["backends"]["b"]["left_out"]
            assert why.startswith("tools/list: what it has beside its items")


async def error_of(client: RawClient, name: str, **headers: str) -> dict[str, Any]:
    """What programs see of the error of a tool call."""
    answer = await client.ask("tools/call", {"name": name, "arguments": {}}, **headers)
    return answer.result["_meta"]["dev.holdfast/error"]


@pytest.mark.promise("gateway.true-lists")
@pytest.mark.parametrize("passes", [False, True], ids=["one list", "a list for each caller"])
async def test_a_name_of_a_server_whose_lists_are_not_known_is_not_unknown(tmp_path: Path, passes: bool) -> None:
    async with FaultServer() as http:
        await http.refuse()
        servers: dict[str, Any] = {"b": {"url": http.url, **({"pass_headers": ["X-Tenant"]} if passes else {})}}
        async with gateway(tmp_path, servers, **SELDOM) as program, RawClient(program.url) as client:
            await client.initialize()
            for _ in range(2):
                error = await error_of(client, "b__count")
                assert (error["family"], error["kind"], error["server"]) == ("Unavailable", "NoBackend", "b")
                prompt = await client.ask("prompts/get", {"name": "b__p"})
                assert prompt.error["data"]["kind"] == "NoBackend"
            assert (await client.call("other__count")).error["code"] == -32602
            await http.listen()
            assert program.gateway is not None
            backend = program.gateway.backends["b"]
            backend.health.next_try = 0.0
            await backend.check()
            assert (await client.call("b__count")).text == "1"
            assert ("error" in (await client.call("b__none")).last) is passes  # else the server decides


@pytest.mark.promise("gateway.true-lists")
async def test_a_name_is_not_unknown_to_a_caller_whose_lists_could_not_be_read(tmp_path: Path) -> None:
    async with TenantServer(era="2025") as http:
        servers = {"b": {"url": http.url, "pass_headers": ["X-Tenant"], "era": "2025"}}
        async with gateway(tmp_path, servers, **SELDOM) as program:
            async with RawClient(program.url) as client, RawClient(program.url) as other:
                await client.initialize()
                await other.initialize()
                assert (await error_of(client, "b__count", x_tenant="wrong"))["kind"] == "Unauthorized"
                listed = await other.ask("tools/list", x_tenant="moss")
                assert [tool["name"] for tool in listed.result["tools"]] == ["b__count", "b__echo"]
                http.plan(Fault.CLOSE, times=1000)
                assert (await error_of(client, "b__count", x_tenant="fern"))["kind"] == "NoBackend"
                http.lift()
                unknown = {"name": "b__none", "arguments": {}}
                assert (await other.ask("tools/call", unknown, x_tenant="moss")).error["code"] == -32602
