"""Which run a call belongs to: nested runs, async generators, bound servers, foreign tasks and threads."""

import asyncio
import contextvars
import gc
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types as types
import pytest

import holdfast
from holdfast import Callbacks, Server, events
from holdfast.client.runs.pool import pool
from holdfast.integrations.langchain import tools
from holdfast.testing import Fault, FaultServer
from tests.client.servers import at, count, said
from tests.deadlines import until
from tests.links.quick_links import FAST
from tests.links.server_process import RealServer

pytestmark = pytest.mark.anyio


ASK = {"params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}}


def answering(who: str) -> Callbacks:
    async def elicit(params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"who": who})

    return Callbacks(elicit=elicit)


@pytest.mark.promise("run.nested")
async def test_a_nested_run_joins_whatever_it_brings_and_takes_that_along_when_it_ends() -> None:
    heard: dict[str, list[Any]] = {"outer": [], "inner": [], "replaced": []}
    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run(principal="alice", on_event=heard["outer"].append) as outer:
            assert await count(server) == 1
            async with holdfast.run(
                principal="alice",
                callbacks=Callbacks(on_log=print),
                on_event=heard["inner"].append,
                on_replaced=heard["replaced"].append,
            ) as inner:
                assert inner is outer
                assert await count(server) == 2
                http.sessions.sessions.clear()
                await server.list_tools()
            http.sessions.sessions.clear()
            await server.list_tools()
        replaced = [
            [event for event in heard[who] if isinstance(event, events.LinkSessionReplaced)]
            for who in ("outer", "inner")
        ]
        assert [len(each) for each in replaced] == [2, 1]
        assert len(heard["replaced"]) == 1
        assert not http.sessions.sessions


@pytest.mark.promise("run.nested")
@pytest.mark.parametrize("brought", ["on_event", "callbacks", "on_replaced", "memory", "id"])
async def test_nothing_that_a_nested_run_brings_costs_it_the_callers_principal(brought: str) -> None:
    more: dict[str, Any] = {
        "on_event": {"on_event": lambda _: None},
        "callbacks": {"callbacks": Callbacks(on_log=print)},
        "on_replaced": {"on_replaced": lambda _: None},
        "memory": {"memory": lambda *_: None},
        "id": {"id": "talk", "memory": lambda *_: None},
    }[brought]
    async with FaultServer() as http:
        server = at(http, reuse="process")
        async with holdfast.run():
            assert await count(server) == 1  # the session of callers without a name
        async with holdfast.run(principal="alice") as outer:
            async with holdfast.run(**more) as inner:
                assert inner.principal == "alice"
                assert (inner is outer) == (brought not in ("memory", "id"))
                assert await count(server) == 1
            async with holdfast.run(principal="bob") as other:
                assert (other.principal, other is outer) == ("bob", False)
                assert await count(server) == 1
        await pool.close()


@pytest.mark.promise("run.nested")
async def test_a_nested_durable_run_is_the_callers_and_naming_the_same_one_again_joins_it() -> None:
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        server = at(http)
        async with holdfast.run(principal="alice"):
            assert await count(server) == 1
            async with holdfast.run("talk", store=store) as talk:
                assert await count(server) == 1
                async with holdfast.run("talk", store=store) as again, holdfast.run() as joined:
                    assert talk is again is joined
                    assert await count(server) == 2
                async with holdfast.run("other", store=store) as other:
                    assert other is not talk
            assert await count(server) == 2  # the outer one's, again
        record = await store.get("run", "talk")
        assert record is not None
        assert record.principal == "alice"
        async with holdfast.run("talk", store=store, principal="alice") as run:
            assert await count(server) == 3
            await run.end()


@pytest.mark.promise("run.nested")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_two_nested_runs_at_once_each_answer_for_their_own_calls(era: Any) -> None:
    asked: list[tuple[str, str]] = []

    def seat(who: str, go: asyncio.Event) -> Callbacks:
        async def elicit(params: Any) -> types.ElicitResult:
            asked.append((who, params.message))
            await go.wait()
            return types.ElicitResult(action="accept", content={"row": len(who)})

        return Callbacks(elicit=elicit)

    async with RealServer("sdk") as real:
        server = Server("seats", url=real.url, era=era, limits=FAST)
        go = asyncio.Event()

        async def sub_agent(who: str) -> str:
            async with holdfast.run(callbacks=seat(who, go)) as joined:
                assert joined is root
                return said(await server.call_tool("book"))

        async with holdfast.run(callbacks=seat("root", go)) as root:
            agents = [asyncio.ensure_future(sub_agent(who)) for who in ("a", "bb", "ccc")]
            await until(lambda: len(asked) == 3)
            go.set()
            assert await asyncio.gather(*agents) == ["row 1 is yours", "row 2 is yours", "row 3 is yours"]
            assert said(await server.call_tool("book")) == "row 4 is yours"
        assert {who for who, _ in asked} == {"a", "bb", "ccc", "root"}


@pytest.mark.promise("run.nested")
@pytest.mark.parametrize("reuse", ["run", "process"])
async def test_a_2025_session_that_began_before_cannot_be_told_of_new_callbacks_and_that_is_logged(
    reuse: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with FaultServer(answers="sse") as http:
        server = at(http, reuse=reuse)
        async with holdfast.run():
            assert await count(server) == 1
            with caplog.at_level(logging.WARNING, "holdfast.client"):
                async with holdfast.run(callbacks=answering("nested")):
                    assert await count(server) == 2  # the same session all the same
                    assert await count(server) == 3
            [told] = [record.getMessage() for record in caplog.records if "began before" in record.getMessage()]
            assert "elicitation" in told
            assert "give those callbacks to the outer run" in told
            assert "-32601" in said(await server.call_tool("ask", ASK))  # and afterwards nobody answers
        caplog.clear()
        await pool.close()
        async with holdfast.run(), holdfast.run(callbacks=answering("nested")):
            assert "nested" in said(await server.call_tool("ask", ASK))  # it began in here, so it knows
        assert not [record for record in caplog.records if "began before" in record.getMessage()]
        await pool.close()


@pytest.mark.promise("run.nested")
async def test_a_sink_that_raises_keeps_the_event_from_no_other_and_harms_no_call() -> None:
    heard: list[Any] = []

    def broken(event: Any) -> None:
        raise RuntimeError("a sink's own fault")

    async with FaultServer() as http:
        server = at(http)
        async with holdfast.run(on_event=heard.append), holdfast.run(on_event=broken, on_replaced=broken):
            assert await count(server) == 1
            http.sessions.sessions.clear()
            await server.list_tools()
    assert any(isinstance(event, events.LinkSessionReplaced) for event in heard)


# Generators


@pytest.mark.promise("run.generators")
async def test_two_interleaved_generators_in_one_task_have_a_session_each(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultServer() as http:
        server = at(http)

        async def agent(principal: str) -> AsyncIterator[tuple[str, int]]:
            async with holdfast.run(principal=principal) as run:
                while True:
                    async with holdfast.run():  # what a helper would do
                        yield str(run.principal), await count(server)

        one, two = agent("alice"), agent("bob")
        with caplog.at_level(logging.WARNING, "holdfast.client"):
            seen = [await anext(each) for each in (one, two, one, two, two, one)]
        assert seen == [("alice", 1), ("bob", 1), ("alice", 2), ("bob", 2), ("bob", 3), ("alice", 3)]
        assert len(http.sessions.sessions) == 2
        await one.aclose()  # type: ignore[attr-defined]
        assert await anext(two) == ("bob", 4)
        await two.aclose()  # type: ignore[attr-defined]
        assert not http.sessions.sessions
        assert holdfast.current_run() is None
        [told] = [record.getMessage() for record in caplog.records if "async generator" in record.getMessage()]
        assert "agent" in told
        assert "run.bind(server)" in told


@pytest.mark.promise("run.generators")
async def test_a_generator_stepped_by_a_new_task_each_time_keeps_its_session() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def agent() -> AsyncIterator[int]:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(holdfast.run())
                while True:
                    yield await count(server)

        generator = agent()
        for expected in (1, 2, 3):
            step: Any = anext(generator)
            assert await asyncio.create_task(step) == expected
        await generator.aclose()  # type: ignore[attr-defined]
        assert not http.sessions.sessions


@pytest.mark.promise("run.generators")
async def test_a_run_in_a_generator_is_not_its_callers_who_has_one() -> None:
    async with FaultServer() as http, holdfast.open_store("memory:") as store:
        server = at(http)

        async def agent() -> AsyncIterator[int]:
            async with holdfast.run("talk", store=store) as run:
                for _ in range(2):
                    yield await count(server)
                await run.end()

        async with holdfast.run() as mine:
            for expected in (1, 2):
                assert await count(server) == expected
            own = 2
            async for theirs in agent():
                own += 1
                assert holdfast.current_run() is mine
                assert await count(server) == own
                assert theirs == own - 2
        assert not http.sessions.sessions


@pytest.mark.promise("run.generators")
async def test_who_steps_a_generator_without_a_run_of_its_own_has_none_and_opens_its_own() -> None:
    async with FaultServer() as http:
        server = at(http, reuse="process")

        async def agent(principal: str) -> AsyncIterator[int]:
            async with holdfast.run(principal=principal):
                while True:
                    yield await count(server)

        alice, bob = agent("alice"), agent("bob")
        assert [await anext(alice), await anext(bob)] == [1, 1]
        assert holdfast.current_run() is None
        assert await count(server) == 1  # a session of its own, for one call
        with pytest.raises(holdfast.UsageError, match="outside a run"):
            await server.session()
        async with holdfast.run() as mine, holdfast.run() as joined:
            assert mine is joined
            assert mine.principal == "anonymous"
            assert await count(server) == 1
            assert await anext(bob) == 2
            assert holdfast.current_run() is mine
        async with holdfast.run(principal="alice") as again:
            assert again is not mine
            assert await count(server) == 2  # kept for her runs, as `reuse="process"` says
        for generator in (alice, bob):
            assert await anext(generator) == 3
            await generator.aclose()  # type: ignore[attr-defined]
        await pool.close()
        assert not http.sessions.sessions


@pytest.mark.promise("run.generators")
async def test_a_run_behind_a_context_manager_or_within_one_step_is_no_cause_for_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @asynccontextmanager
    async def scope() -> AsyncIterator[holdfast.Run]:
        async with holdfast.run() as run:
            yield run

    async def whole() -> int:
        async with holdfast.run():
            return await count(server)

    async def stream() -> AsyncIterator[int]:
        yield await whole()

    async with FaultServer() as http:
        server = at(http)
        async with scope() as run:
            assert holdfast.current_run() is run
            assert [await count(server) for _ in range(2)] == [1, 2]
        assert [number async for number in stream()] == [1]
    assert not [record for record in caplog.records if "async generator" in record.getMessage()]


# Bound servers


@pytest.mark.promise("run.bound")
async def test_a_bound_server_uses_its_run_from_tasks_threads_and_generators() -> None:
    async with FaultServer() as http:
        loop, server = asyncio.get_running_loop(), at(http)
        scope = holdfast.run(principal="alice")  # as a notebook's cell would: entered here, left elsewhere
        run = await asyncio.create_task(scope.__aenter__())
        assert holdfast.current_run() is None
        bound = run.bind(server)
        assert bound == server
        assert await count(bound) == 1
        assert await asyncio.create_task(count(bound), context=contextvars.Context()) == 2
        from_thread = asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(count(bound), loop).result(5))
        assert await from_thread == 3

        async def agent() -> AsyncIterator[int]:
            while True:
                yield await count(bound)

        async with holdfast.run():  # another one, that is not asked
            assert await anext(agent()) == 4
            assert await count(server) == 1
        [counting] = [tool for tool in await tools([bound]) if tool.name.endswith("count")]
        assert await counting.ainvoke({}) == "5"
        assert await count(run.bind(bound).with_(timeout=None)) == 6
        assert (await bound.session()) is (await bound.session())
        (await bound.watch(tools=True)).close()
        assert "bound to <Run" in repr(bound)
        with pytest.raises(holdfast.UsageError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(count(bound)))
        await asyncio.create_task(scope.__aexit__(None, None, None))
        with pytest.raises(holdfast.errors.LeaseClosed):
            await count(bound)
        assert not http.sessions.sessions
        loop.set_default_executor(__import__("concurrent.futures").futures.ThreadPoolExecutor(1))
        await loop.shutdown_default_executor()


@pytest.mark.promise("run.bound")
async def test_a_bound_server_answers_with_its_runs_callbacks_and_names_its_caller_for_single_calls() -> None:
    heard: list[Any] = []
    async with FaultServer(answers="sse") as http:
        async with holdfast.run(callbacks=answering("bound"), on_event=heard.append, principal="alice") as run:
            bound = run.bind(at(http, reuse="call"))

            async def elsewhere() -> str:
                return said(await bound.call_tool("ask", ASK))

            assert "bound" in await asyncio.create_task(elsewhere(), context=contextvars.Context())
        assert any(isinstance(event, events.HandshakeDone) for event in heard)


# What a run is given


@pytest.mark.promise("run.durable")
async def test_a_store_may_be_a_url_that_the_run_opens_and_closes(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with FaultServer() as http:
        server = at(http)
        for expected in (1, 2):
            async with holdfast.run("talk", store=url) as run, holdfast.run("talk", store=url) as again:
                assert run is again
                assert run.continued == (expected == 2)
                assert await count(server) == expected
        with pytest.raises(holdfast.UsageError, match="this principal has no run"):
            async with holdfast.run("talk", store=url, principal="mallory"):
                raise AssertionError("not reached")
        async with holdfast.run("talk", store=url) as run:
            await run.end(server)
        assert not http.sessions.sessions
        with pytest.raises(holdfast.errors.Ended):
            async with holdfast.run("talk", store=url):
                raise AssertionError("not reached")


@pytest.mark.promise("run.bad-input")
async def test_an_id_without_a_place_to_keep_it_is_refused() -> None:
    with pytest.raises(holdfast.UsageError, match="has an id, but no store"):
        holdfast.run("talk")
    with pytest.raises(holdfast.UsageError, match="forgotten when the run ends"):
        holdfast.run("talk", store="memory:")
    with pytest.raises(holdfast.errors.ConfigError):
        holdfast.run("talk", store="nonsense://x")
    with pytest.raises(holdfast.errors.ConfigError, match="max_links"):
        Server("x", url="http://h/", max_links=0)


@pytest.mark.promise("run.scope")
async def test_gather_children_with_no_outer_run_are_roots_of_their_own() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def root() -> holdfast.Run:
            async with holdfast.run() as run:
                await count(server)
                return run

        runs = await asyncio.gather(root(), root())
        assert runs[0] is not runs[1]
        assert http.sessions.handshakes == 2


@pytest.mark.promise("run.scope")
async def test_an_abandoned_async_generator_cancels_nobody_and_leaks_nothing() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def agent() -> AsyncIterator[int]:
            async with holdfast.run():
                while True:
                    yield await count(server)

        async for number in agent():
            if number == 2:
                break
        import gc

        gc.collect()
        await until(lambda: not http.sessions.sessions)
        assert holdfast.current_run() is None
        generator = agent()
        assert await anext(generator) == 1
        await asyncio.ensure_future(generator.aclose())  # type: ignore[attr-defined] # in another task and context
        await until(lambda: not http.sessions.sessions)


@pytest.mark.promise("run.scope")
async def test_eager_servers_are_open_before_the_first_call() -> None:
    async with FaultServer() as http:
        async with holdfast.run(eager=[at(http)]):
            assert len(http.sessions.sessions) == 1
        assert not http.sessions.sessions
        await http.refuse()
        with pytest.raises(holdfast.errors.ConnectFailed):
            async with holdfast.run(eager=[at(http)]):
                raise AssertionError("not reached")
        assert holdfast.current_run() is None


@pytest.mark.promise("run.scope")
async def test_after_an_abandoned_generator_calls_outside_a_run_work() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def agent() -> AsyncIterator[int]:
            async with holdfast.run():
                while True:
                    yield await count(server)

        async for _ in agent():
            break
        gc.collect()
        await until(lambda: not http.sessions.sessions)
        assert await count(server) == 1  # on its own


@pytest.mark.promise("run.scope")
async def test_current_run_is_none_in_a_thread_without_a_loop() -> None:
    found: list[Any] = []
    async with FaultServer() as http, holdfast.run():
        http.plan(Fault.CLOSE, method="nothing")
        import contextvars

        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: found.append(context.run(holdfast.current_run)))
        thread.start()
        thread.join(5)
    assert found == [None]
    assert Server("a", url="http://h/", callbacks=Callbacks(roots=["x:1"])) == Server(
        "a", url="http://h/", callbacks=Callbacks(roots=["x:1"])
    )
