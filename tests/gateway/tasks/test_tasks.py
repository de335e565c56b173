"""Tasks of both forms: the server that made one is found, also after a restart, and by its caller only."""

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadAnswer
from holdfast.gateway.tasks import watch
from holdfast.gateway.tasks.ids import LONGEST_ID, TaskIds, scope_of
from holdfast.stores import open_store
from tests.deadlines import until
from tests.gateway.clients import Answer, Events, RawClient
from tests.gateway.gateways import gateway
from tests.gateway.scripted_backend import Era, Refusal, Scripted
from tests.gateway.test_identity import CLIENT_CAPABILITIES, two_users
from tests.gateway.test_whole_messages import ENVELOPE, LISTEN

RELATED = "io.modelcontextprotocol/related-task"
EXTENSION = "io.modelcontextprotocol/tasks"
CAPABILITIES = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
WITH_TASKS = {**ENVELOPE, CLIENT_CAPABILITIES: {"extensions": {EXTENSION: {}}}}
STATUS = "notifications/tasks/status"


class TaskServer(Scripted):
    """Makes a task of each call; their ids are counted, so that those of two servers are the same."""

    def __init__(self, era: Era, name: str) -> None:
        super().__init__(era)
        self.name = name
        self.tasks: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self.capabilities |= {"tasks": CAPABILITIES} if era == "2025" else {"extensions": {EXTENSION: {}}}
        self.results |= {
            "tools/call": self._call,
            "tasks/get": self._get,
            "tasks/result": self._result_of,
            "tasks/cancel": self._cancel,
            "tasks/update": self._update,
            "tasks/list": lambda _: {"tasks": list(self.tasks.values())},
        }

    def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        id = f"task-{next(self._numbers)}"
        task = self.tasks[id] = {"taskId": id, "status": "working", "createdAt": "x", "server": self.name}
        return {"task": task, "_meta": {"v": 1}} if self.era == "2025" else {"resultType": "task", **task}

    def _task(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["taskId"] not in self.tasks:
            raise Refusal({"code": -32602, "message": "no such task here"})
        return self.tasks[params["taskId"]]

    def _get(self, params: dict[str, Any]) -> dict[str, Any]:
        done = {"result": {"content": [], "_meta": {RELATED: {"taskId": params["taskId"]}}}}
        return {**self._task(params), **(done if self.era == "2026" else {})}

    def _result_of(self, params: dict[str, Any]) -> dict[str, Any]:
        self._task(params)
        return {"content": [{"type": "text", "text": self.name}], "_meta": {RELATED: {"taskId": params["taskId"]}}}

    def _cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        self._task(params)["status"] = "cancelled"
        return self._task(params) if self.era == "2025" else {}

    def _update(self, params: dict[str, Any]) -> dict[str, Any]:
        self._task(params)["answered"] = params["inputResponses"]
        return {}


async def make(client: RawClient, server: str) -> str:
    """A task of a 2025 client at a server; the id that the client gets."""
    params = {"name": f"{server}__t", "arguments": {}, "task": {"ttl": 1000}}
    task = (await client.ask("tools/call", params)).result["task"]
    assert (task["status"], task["server"]) == ("working", server)
    return task["taskId"]


async def ask_2026(client: RawClient, method: str, params: dict[str, Any], **headers: str) -> Answer:
    if "taskId" in params and "mcp_name" not in headers:
        headers["mcp_name"] = params["taskId"]
    return await client.ask_2026(method, {**params, "_meta": WITH_TASKS}, **headers)


async def make_2026(client: RawClient, server: str) -> str:
    result = (await ask_2026(client, "tools/call", {"name": f"{server}__t", "arguments": {}})).result
    assert (result["resultType"], result["server"]) == ("task", server)
    return result["taskId"]


@pytest.mark.promise("gateway.tasks")
async def test_tasks_of_2025_are_found_at_the_server_that_made_them(tmp_path: Path) -> None:
    one, two = TaskServer("2025", "one"), TaskServer("2025", "two")
    async with one.serving(), two.serving():
        async with gateway(tmp_path, {"one": one.entry, "two": two.entry}) as program, RawClient(program.url) as client:
            declared = (await client.initialize()).result["capabilities"]
            assert declared["tasks"] == CAPABILITIES
            ids = {name: await make(client, name) for name in ("one", "two")}
            assert ids["one"] != ids["two"]
            assert one.params_of("tools/call")[0]["task"] == {"ttl": 1000}
            for name, id in ids.items():
                got = (await client.ask("tasks/get", {"taskId": id})).result
                assert (got["taskId"], got["server"]) == (id, name)
                result = (await client.ask("tasks/result", {"taskId": id})).result
                assert result["content"][0]["text"] == name
                assert result["_meta"][RELATED] == {"taskId": id}
            cancelled = (await client.ask("tasks/cancel", {"taskId": ids["two"]})).result
            assert (cancelled["taskId"], cancelled["status"]) == (ids["two"], "cancelled")
            assert one.tasks["task-1"]["status"] == "working"
            one.tasks.clear()
            error = (await client.ask("tasks/get", {"taskId": ids["one"]})).error
            assert error == {"code": -32602, "message": "no such task here"}


@pytest.mark.promise("gateway.tasks")
async def test_tasks_are_listed_through_all_servers_and_only_those_of_the_session(tmp_path: Path) -> None:
    one, two, none = TaskServer("2025", "one"), TaskServer("2025", "two"), Scripted("2025")
    async with one.serving(), two.serving(), none.serving():
        servers = {"one": one.entry, "none": none.entry, "two": {**two.entry, "reuse": "shared"}}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as ann, RawClient(program.url) as bob:
            await ann.initialize()
            await bob.initialize()
            hers = [await make(ann, "one"), await make(ann, "two")]
            his = [await make(bob, "two")]
            for client, ids in ((ann, hers), (bob, his)):
                first = (await client.ask("tasks/list")).result
                second = (await client.ask("tasks/list", {"cursor": first["nextCursor"]})).result
                assert "nextCursor" not in second
                assert [task["taskId"] for task in (*first["tasks"], *second["tasks"])] == ids
            for wrong in ("x", "[1]", json.dumps(["none", None]), json.dumps(["one", 1]), 7):
                assert (await ann.ask("tasks/list", {"cursor": wrong})).error["code"] == -32602


@pytest.mark.promise("gateway.tasks")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_task_is_found_after_a_restart_and_by_another_process(tmp_path: Path, era: Era) -> None:
    one, two = TaskServer(era, "one"), TaskServer(era, "two")
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with one.serving(), two.serving():
        servers = {"one": one.entry, "two": two.entry}
        async with gateway(tmp_path, servers, store=store) as program, RawClient(program.url) as client:
            if era == "2025":
                await client.initialize()
            id = await (make if era == "2025" else make_2026)(client, "two")
            session = client.session
        async with gateway(tmp_path, servers, store=store) as program, RawClient(program.url) as client:
            client.session = session
            asking = client.ask("tasks/get", {"taskId": id}) if era == "2025" else None
            got = await (asking or ask_2026(client, "tasks/get", {"taskId": id}))
            assert (got.result["taskId"], got.result["server"]) == (id, "two")
            if era == "2025":
                cursor = (await client.ask("tasks/list")).result["nextCursor"]
                (listed,) = (await client.ask("tasks/list", {"cursor": cursor})).result["tasks"]
                assert listed["taskId"] == id


@pytest.mark.promise("gateway.tasks")
@pytest.mark.parametrize("reuse", ["session", "principal", "shared"])
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_another_callers_task_is_unknown(tmp_path: Path, era: Era, reuse: str) -> None:
    server = TaskServer(era, "one")
    async with server.serving():
        entry = {**server.entry, "reuse": reuse}
        async with gateway(tmp_path, {"one": entry}, sessions={"steer": False}, **two_users()) as program:
            async with (
                RawClient(program.url, "ann") as ann,
                RawClient(program.url, "bob") as bob,
                RawClient(program.url, "ann") as again,
            ):
                if era == "2025":
                    for client in (ann, bob, again):
                        await client.initialize()
                id = await (make if era == "2025" else make_2026)(ann, "one")
                asked = {"taskId": id}

                async def get(client: RawClient, params: dict[str, Any]) -> Answer:
                    if era == "2026":
                        return await ask_2026(client, "tasks/get", params)
                    return await client.ask("tasks/get", params)

                assert (await get(again, asked)).result["taskId"] == id
                before = server.count("tasks/get")
                stolen = (await get(bob, asked)).error
                assert stolen == (await get(bob, {"taskId": "task-1"})).error
                assert stolen == {"code": -32602, "message": "Task not found"}
                for wrong in (id[:-1], id + "1", "hft." + id[4:].swapcase(), "hft.", id.replace("one", "two")):
                    assert (await get(ann, {"taskId": wrong})).error["code"] == -32602
                assert server.count("tasks/get") == before


@pytest.mark.promise("gateway.tasks")
async def test_without_a_token_a_task_belongs_to_its_session(tmp_path: Path) -> None:
    server = TaskServer("2025", "one")
    async with server.serving(), gateway(tmp_path, {"one": server.entry}) as program:
        async with RawClient(program.url) as ann, RawClient(program.url) as bob:
            await ann.initialize()
            await bob.initialize()
            id = await make(ann, "one")
            assert (await bob.ask("tasks/get", {"taskId": id})).error["code"] == -32602
            assert (await ann.ask("tasks/get", {"taskId": 7})).error["code"] == -32602


@pytest.mark.promise("gateway.tasks")
async def test_tasks_of_the_2026_extension_are_got_updated_and_cancelled_with_their_header(tmp_path: Path) -> None:
    one, two = TaskServer("2026", "one"), TaskServer("2026", "two")
    async with one.serving(), two.serving():
        async with gateway(tmp_path, {"one": one.entry, "two": two.entry}) as program, RawClient(program.url) as client:
            discovered = (await client.ask_2026("server/discover")).result
            assert discovered["capabilities"]["extensions"] == {EXTENSION: {}}
            assert "tasks" not in discovered["capabilities"]
            ids = {name: await make_2026(client, name) for name in ("one", "two")}
            assert EXTENSION in one.params_of("tools/call")[0]["_meta"][CLIENT_CAPABILITIES]["extensions"]
            for name, id in ids.items():
                got = (await ask_2026(client, "tasks/get", {"taskId": id})).result
                assert (got["taskId"], got["server"], got["resultType"]) == (id, name, "complete")
                assert got["result"]["_meta"][RELATED] == {"taskId": id}
            answers = {"q": {"action": "accept"}}
            await ask_2026(client, "tasks/update", {"taskId": ids["two"], "inputResponses": answers})
            assert two.tasks["task-1"]["answered"] == answers
            assert (await ask_2026(client, "tasks/cancel", {"taskId": ids["two"]})).result["resultType"] == "complete"
            assert (one.tasks["task-1"]["status"], two.tasks["task-1"]["status"]) == ("working", "cancelled")
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                sent = [headers["mcp-name"] for asked, headers in two.headers if asked == method]
                assert set(sent) == {"task-1"}
            encoded = "=?base64?" + base64.b64encode(ids["one"].encode()).decode() + "?="
            without = ""  # as FastMCP's client sends it
            for name, status in ((ids["one"], 200), (ids["two"], 400), (without, 200), (encoded, 200)):
                answer = await ask_2026(client, "tasks/get", {"taskId": ids["one"]}, mcp_name=name)
                assert answer.status == status
                assert status == 200 or answer.error["code"] == -32020


@asynccontextmanager
async def listening(client: RawClient, *ids: str, meta: Any = WITH_TASKS) -> AsyncGenerator[Events]:
    params = {"notifications": {"taskIds": list(ids)}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": params}
    async with client.stream("POST", body, **LISTEN) as events:
        yield events


@pytest.mark.promise("gateway.tasks")
async def test_a_2026_client_follows_its_tasks_at_their_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "UPDATE_BYTES", 3_000)
    one, two = TaskServer("2026", "one"), TaskServer("2026", "two")
    async with one.serving(), two.serving():
        servers = {"one": one.entry, "two": two.entry}
        async with gateway(tmp_path, servers, **two_users()) as program:
            async with RawClient(program.url, "ann") as ann, RawClient(program.url, "bob") as bob:
                ids = [await make_2026(ann, name) for name in servers]
                his = await make_2026(bob, "two")
                before = (one.listening, two.listening)
                async with listening(ann, *ids, his, "task-1") as events, listening(bob, ids[0]) as refused:
                    said = (await events.next())["params"]["notifications"]
                    assert said == {"taskIds": ids}
                    assert (await refused.next())["params"]["notifications"] == {}
                    assert (one.listening, two.listening) == (before[0] + 1, before[1] + 1)
                    done = {"taskId": "task-1", "status": "completed", "result": {"content": []}, "x": 1}
                    two.push("notifications/tasks", {**done, "taskId": "task-2"})
                    two.push("notifications/tasks", {**done, "result": {"x": "y" * 4_000}})
                    two.push("notifications/tasks", done)
                    told = await events.next()
                    subscription = {"io.modelcontextprotocol/subscriptionId": 9}
                    assert told["method"] == "notifications/tasks"
                    assert told["params"] == {**done, "taskId": ids[1], "_meta": subscription}
                await until(lambda: (one.listening, two.listening) == before)


@pytest.mark.promise("gateway.tasks")
async def test_a_listen_for_tasks_needs_the_extension_and_has_a_limit(tmp_path: Path) -> None:
    server = TaskServer("2026", "one")
    async with server.serving(), gateway(tmp_path, {"one": server.entry}) as program, RawClient(program.url) as client:
        id = await make_2026(client, "one")
        for ids, meta, code in (([id], ENVELOPE, -32021), ([id] * 65, WITH_TASKS, -32602), ([7], WITH_TASKS, -32602)):
            params = {"notifications": {"taskIds": ids}, "_meta": meta}
            answer = await client.ask_2026("subscriptions/listen", params)
            assert (answer.status, answer.error["code"]) == (400, code)


@pytest.mark.promise("gateway.tasks")
async def test_a_listen_for_tasks_at_a_server_that_comes_back_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AGAIN_SECONDS", 0.02)
    server = TaskServer("2026", "one")
    async with server.serving(), gateway(tmp_path, {"one": server.entry}) as program, RawClient(program.url) as client:
        id = await make_2026(client, "one")
        async with listening(client, id) as events:
            await events.next()
            asked = server.count("subscriptions/listen")
            server.end_streams()

            def asked_again() -> bool:
                later = server.params_of("subscriptions/listen")[asked:]
                return any("taskIds" in params["notifications"] for params in later)

            await until(asked_again)
            server.push("notifications/tasks", {"taskId": "task-1", "status": "working"})
            assert (await events.next())["params"]["taskId"] == id


@pytest.mark.promise("gateway.tasks")
async def test_a_2025_client_is_offered_no_tasks_of_a_2026_server_and_never_gets_one(tmp_path: Path) -> None:
    server = TaskServer("2026", "one")
    async with server.serving(), gateway(tmp_path, {"one": server.entry}) as program, RawClient(program.url) as client:
        declared = (await client.initialize({"extensions": {EXTENSION: {}, "e/x": {}}})).result["capabilities"]
        assert "tasks" not in declared
        assert "extensions" not in declared
        result = (await client.call("one__t")).result
        assert result["_meta"]["dev.holdfast/error"]["kind"] == "BadAnswer"
        told = server.params_of("tools/call")[0]["_meta"][CLIENT_CAPABILITIES]
        assert told == {"extensions": {"e/x": {}}}


@pytest.mark.promise("gateway.tasks")
async def test_status_progress_and_questions_of_a_task_reach_its_client(tmp_path: Path) -> None:
    server = TaskServer("2025", "one")
    other = TaskServer("2025", "two")
    async with server.serving(), other.serving():
        servers = {"one": server.entry, "two": other.entry}
        async with gateway(tmp_path, servers) as program, RawClient(program.url) as client:
            await client.initialize({"elicitation": {}})
            params = {"name": "one__t", "arguments": {}, "task": {}, "_meta": {"progressToken": "mine"}}
            id = (await client.ask("tools/call", params)).result["task"]["taskId"]
            token = server.params_of("tools/call")[0]["_meta"]["progressToken"]
            async with client.stream() as events:
                await until(lambda: server.listening)
                server.push(STATUS, {"taskId": "task-1", "status": "input_required", "x": 1})
                said = await events.next()
                assert said["params"] == {"taskId": id, "status": "input_required", "x": 1}
                server.push("notifications/progress", {"progressToken": token, "progress": 1})
                assert (await events.next())["params"] == {"progressToken": "mine", "progress": 1}
                related = {"_meta": {RELATED: {"taskId": "task-1"}}}
                asking = asyncio.create_task(server.ask("elicitation/create", {"message": "?", **related}))
                asked = await events.next()
                assert asked["params"]["_meta"][RELATED] == {"taskId": id}
                result = {"action": "accept", "_meta": {RELATED: {"taskId": id}}}
                await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": result})
                assert (await asking)["result"] == {"action": "accept", **related}


@pytest.mark.promise("gateway.tasks")
async def test_a_server_follows_the_tasks_that_the_client_runs_for_it_and_no_others(tmp_path: Path) -> None:
    one, two = TaskServer("2025", "one"), TaskServer("2025", "two")
    async with one.serving(), two.serving():
        async with gateway(tmp_path, {"one": one.entry, "two": two.entry}) as program, RawClient(program.url) as client:
            await client.initialize({"sampling": {}, "tasks": {"list": {}, "requests": {}}})
            await client.call("one__t")
            await client.call("two__t")
            async with client.stream() as events:
                await until(lambda: one.listening > 1 and two.listening > 1)

                async def answered(server: Scripted, method: str, params: Any, result: Any) -> tuple[Any, Any]:
                    asking = asyncio.create_task(server.ask(method, params))
                    asked = await events.next()
                    assert asked["method"] == method
                    await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": result})
                    return asked["params"], (await asking)["result"]

                own = {"taskId": "c1", "status": "working"}
                params = {"messages": [], "task": {"ttl": 5}, "_meta": {"progressToken": 1}}
                asked, made = await answered(one, "sampling/createMessage", params, {"task": own})
                assert asked["task"] == {"ttl": 5}
                sealed = made["task"]["taskId"]
                assert sealed != "c1"
                got = await answered(one, "tasks/get", {"taskId": sealed}, own)
                assert got == ({"taskId": "c1"}, {**own, "taskId": sealed})
                for id in (sealed, "c1"):
                    assert (await two.ask("tasks/get", {"taskId": id}))["error"]["code"] == -32602
                everything = {"tasks": [own, {"taskId": "c2"}]}
                assert (await answered(two, "tasks/list", {}, everything))[1] == {"tasks": []}
                assert (await answered(one, "tasks/list", {}, everything))[1] == {"tasks": [{**own, "taskId": sealed}]}
                done = {"taskId": "c1", "status": "completed"}
                await client.send({"jsonrpc": "2.0", "method": STATUS, "params": done})
                token = asked["_meta"]["progressToken"]
                progress = {"progressToken": token, "progress": 1}
                await client.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
                await until(lambda: one.count(STATUS) and one.count("notifications/progress"))
                assert one.params_of(STATUS) == [{**done, "taskId": sealed}]
                assert one.params_of("notifications/progress") == [{"progressToken": 1, "progress": 1}]
                assert two.count(STATUS) == 0


@pytest.mark.promise("gateway.tasks")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_task_of_a_server_that_is_down_is_unavailable_and_is_there_when_it_is_back(
    tmp_path: Path, era: Era
) -> None:
    server = TaskServer(era, "one")
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path / 's.db'}", "sessions": {"start": 0.3, "steer": False}}
    async with server.serving():
        async with gateway(tmp_path, {"one": server.entry}, **settings) as program, RawClient(program.url) as client:
            if era == "2025":
                await client.initialize()
            id = await (make if era == "2025" else make_2026)(client, "one")
            session, entry = client.session, server.entry
    async with gateway(tmp_path, {"one": entry}, **settings) as program, RawClient(program.url) as client:
        client.session = session
        asked = {"taskId": id}
        asking = client.ask("tasks/get", asked) if era == "2025" else ask_2026(client, "tasks/get", asked)
        assert (await asking).error["data"]["family"] == "Unavailable"


@pytest.mark.promise("gateway.tasks")
async def test_ids_that_are_too_long_are_refused_and_nobody_with_tasks_means_no_such_method(tmp_path: Path) -> None:
    async with open_store("memory:") as store:
        ids = TaskIds(store)
        await ids.prepare()
        with pytest.raises(BadAnswer):
            ids.sealed("caller x", "a", "x" * (LONGEST_ID + 1))
        with pytest.raises(BadAnswer):
            ids.sealed("caller x", "a", "\ud83d")
        other = TaskIds(store)
        await asyncio.gather(other.prepare(), other.prepare())
        for server, id in (("a", "1"), ("a.b", "1"), ("a", "b.1"), ("a", ""), ("a", "ä\n")):
            sealed = ids.sealed("caller x", server, id)
            assert other.opened("caller x", ["a", "a.b"], sealed) == (server, id)
            assert other.opened("caller y", ["a", "a.b"], sealed) is None
            assert other.opened("caller x", ["b"], sealed) is None
        assert scope_of("anonymous", "k") != scope_of("anonymous", None)  # pyright: ignore[reportArgumentType]
    async with Scripted("2025").serving() as server, gateway(tmp_path, {"b": server.entry}) as program:
        async with RawClient(program.url) as client:
            await client.initialize()
            assert (await client.ask("tasks/get", {"taskId": "x"})).error["code"] == -32601
            assert (await client.ask("tasks/list")).error["code"] == -32601


@pytest.mark.promise("gateway.tasks")
@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_what_the_2026_extension_does_not_have_is_not_found(tmp_path: Path, method: str) -> None:
    async with Scripted("2026").serving() as server, gateway(tmp_path, {"b": server.entry}) as program:
        async with RawClient(program.url) as client:
            assert (await client.ask_2026(method, {"taskId": "x"})).error["code"] == -32601


@pytest.mark.promise("gateway.tasks")
async def test_a_client_that_wants_a_task_of_a_server_of_the_other_era_gets_the_result(tmp_path: Path) -> None:
    done = {"content": [{"type": "text", "text": "done"}]}
    old, new = Scripted("2025", tools__call=done), Scripted("2026", tools__call={**done, "resultType": "complete"})
    old.capabilities["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    new.capabilities["extensions"] = {"io.modelcontextprotocol/tasks": {}}
    async with old.serving(), new.serving():
        async with gateway(tmp_path, {"s": new.entry}) as program, RawClient(program.url) as client:
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            shown = (await client.initialize({"tasks": {}})).result["capabilities"]
            assert "tasks" not in shown
            assert "extensions" not in shown
            asked = await client.ask("tools/call", {"name": "s__t", "arguments": {}, "task": {"ttl": 1000}})
            assert asked.result == done
            for method in ("tasks/list", "tasks/result", "tasks/get", "tasks/cancel"):
                answer = await client.ask(method, {"taskId": "t"})
                assert answer.error["code"] == -32601, method
            [params] = new.params_of("tools/call")
            said = params["_meta"][CLIENT_CAPABILITIES]
            assert "io.modelcontextprotocol/tasks" not in said.get("extensions", {})
        async with gateway(tmp_path, {"s": old.entry}) as program, RawClient(program.url) as client:
            await until(lambda: program.gateway is not None and program.gateway.table.tools)
            wants = {CLIENT_CAPABILITIES: {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
            called = await client.ask_2026("tools/call", {"name": "s__t", "arguments": {}, "_meta": wants})
            assert (called.result["resultType"], called.text) == ("complete", "done")
            assert all("task" not in params for params in old.params_of("tools/call"))
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                answer = await client.ask_2026(method, {"taskId": "t"})
                assert answer.error["code"] == -32601, method
        assert not [method for method, _ in (*old.requests, *new.requests) if method.startswith("tasks/")]
