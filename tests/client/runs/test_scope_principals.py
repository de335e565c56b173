"""The principal of a call: never another user's, and the same one in every task of a run."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.client.runs.pool import pool
from holdfast.links import Options
from holdfast.testing import FaultServer
from tests.client.servers import at, count

pytestmark = pytest.mark.anyio


async def in_a_task(server: holdfast.Server) -> int:
    return await asyncio.create_task(count(server))


@pytest.mark.promise("run.generators")
async def test_tasks_of_interleaved_generators_are_refused_and_never_another_users() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def agent(principal: str) -> AsyncIterator[tuple[str, Any]]:
            async with holdfast.run(principal=principal) as run:
                bound = run.bind(server)
                while True:
                    results = await asyncio.gather(
                        in_a_task(server), asyncio.create_task(count(server)), return_exceptions=True
                    )
                    assert [type(each) for each in results] == [holdfast.UsageError] * 2
                    assert "run.bind(server)" in str(results[0])
                    assert "agent" in str(results[0])
                    assert holdfast.current_run() is run
                    yield principal, await asyncio.gather(in_a_task(bound), count(bound))

        alice, bob = agent("alice"), agent("bob")
        seen = [await anext(each) for each in (alice, bob, alice, bob)]
        assert [(who, sorted(numbers)) for who, numbers in seen] == [
            (who, numbers) for numbers in ([1, 2], [3, 4]) for who in ("alice", "bob")
        ]
        assert len(http.sessions.sessions) == 2
        for generator in (alice, bob):
            await generator.aclose()  # type: ignore[attr-defined]


@pytest.mark.promise("run.generators")
@pytest.mark.parametrize("reuse", ["run", "process", "call"])
async def test_a_task_of_the_code_that_steps_a_generator_is_not_in_the_generators_run(reuse: Any) -> None:
    async with FaultServer() as http:
        server = at(http, reuse=reuse)

        async def agent() -> AsyncIterator[int]:
            async with holdfast.run(principal="bob"):
                while True:
                    yield await count(server)

        async def outside() -> None:
            assert holdfast.current_run() is None
            for use in (count(server), server.session(), server.watch(tools=True)):
                with pytest.raises(holdfast.UsageError, match=r"async generator .*agent"):
                    await use
            with pytest.raises(holdfast.UsageError, match="async generator"):
                async with holdfast.run(on_event=lambda _: None):
                    raise AssertionError("not reached")
            async with holdfast.run(principal="alice") as own:
                assert own.principal == "alice"
                assert await in_a_task(server) == 1

        bob = agent()
        assert await anext(bob) == 1
        await asyncio.create_task(outside())
        await bob.aclose()  # type: ignore[attr-defined]
        await pool.close()


@pytest.mark.promise("run.generators")
async def test_tasks_of_a_run_that_a_generator_joins_or_that_ends_within_a_step_are_in_it() -> None:
    async with FaultServer() as http:
        server = at(http)

        async def agent() -> AsyncIterator[list[int]]:
            async with holdfast.run():
                while True:
                    yield sorted(await asyncio.gather(in_a_task(server), in_a_task(server)))

        async def work() -> list[int]:
            async with holdfast.run(principal="carol"):
                return [await in_a_task(server)]

        async def other() -> AsyncIterator[list[int]]:
            async with holdfast.run(principal="dave"):
                while True:
                    yield await work()  # a run of its own, within one step

        async with holdfast.run(principal="alice"):
            joined = agent()
            assert [await anext(joined) for _ in range(2)] == [[1, 2], [3, 4]]
            await joined.aclose()  # type: ignore[attr-defined]
            dave = other()
            assert [await anext(dave) for _ in range(2)] == [[1], [1]]
            await dave.aclose()  # type: ignore[attr-defined]


@pytest.mark.promise("run.nested")
async def test_an_empty_principal_is_refused() -> None:
    with pytest.raises(holdfast.UsageError, match="is empty"):
        holdfast.run(principal="")
    with pytest.raises(holdfast.errors.ConfigError, match="is empty"):
        Options(principal=holdfast.Principal(""))


@pytest.mark.promise("run.nested")
async def test_a_task_that_outlives_its_run_opens_one_for_the_same_principal() -> None:
    async with FaultServer() as http:
        server = at(http, reuse="process")
        async with holdfast.run():
            assert await count(server) == 1  # of callers without a name
        go = asyncio.Event()

        async def later(**more: Any) -> tuple[str, int]:
            await go.wait()
            async with holdfast.run(**more) as run:
                return str(run.principal), await count(server)

        async with holdfast.run(principal="alice"):
            assert await count(server) == 1
            async with holdfast.run(on_event=lambda _: None):
                same = asyncio.create_task(later(on_event=lambda _: None))
            other = asyncio.create_task(later(principal="bob"))
        go.set()
        assert await same == ("alice", 2)
        assert await other == ("bob", 1)
        async with holdfast.run() as run:
            assert run.principal == "anonymous"
        await pool.close()


@pytest.mark.promise("run.nested")
async def test_another_event_loop_works_for_the_same_principal() -> None:
    asked: list[str] = []

    def memory(server: Any, id: Any, principal: str) -> None:
        asked.append(principal)

    async with FaultServer() as http:
        server = at(http, memory=memory)

        async def inside() -> str:
            assert await count(server) == 1  # outside a run
            async with holdfast.run() as run:
                assert await count(server) == 1
                return str(run.principal)

        async with holdfast.run(principal="alice"):
            assert await asyncio.to_thread(lambda: asyncio.run(inside())) == "alice"
        assert set(asked) == {"alice"}
        loop = asyncio.get_running_loop()
        loop.set_default_executor(__import__("concurrent.futures").futures.ThreadPoolExecutor(1))
        await loop.shutdown_default_executor()


@pytest.mark.promise("run.generators")
async def test_what_a_generator_left_behind_passes_its_principal_to_no_run() -> None:
    async def agent() -> AsyncIterator[int]:
        async with holdfast.run(principal="bob"):
            yield 1

    bob = agent()
    assert await anext(bob) == 1
    await asyncio.create_task(bob.aclose())  # type: ignore[attr-defined]

    async def opens() -> str:
        async with holdfast.run() as run:
            return str(run.principal)

    assert await opens() == "anonymous"
    assert await asyncio.create_task(opens()) == "anonymous"
