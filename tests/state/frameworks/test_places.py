"""Sessions that stand for a user, taken by calls after the one before has ended or expired."""

import asyncio
import getpass
import secrets

import pytest

import holdfast
from holdfast.state.identity import local_principal
from holdfast.stores.contract import Store
from tests.deadlines import patience
from tests.state.frameworks.test_taking import Call, Server, both_frameworks

pytestmark = pytest.mark.anyio
USER = local_principal(getpass.getuser())


class Taste(holdfast.SessionState):
    likes: list[str] = []


class Count(holdfast.SessionState):
    calls: int = 0


def shop(framework: str, tastes: "holdfast.Sessions[Taste]", counts: "holdfast.Sessions[Count]") -> Server:
    server = Server(framework)
    tastes.install(server.server)
    counts.install(server.server)

    @server.tool
    @tastes.writes
    async def like(what: str, taste: Taste) -> int:
        taste.likes.append(what)
        return len(taste.likes)

    @server.tool
    @counts.writes
    @tastes.writes
    async def both(what: str, taste: Taste, count: Count) -> int:
        taste.likes.append(what)
        count.calls += 1
        return count.calls

    @server.tool
    @tastes.writes
    async def forget(taste: holdfast.Session[Taste]) -> bool:
        return await taste.end()

    return server


def replicas(framework: str, store: Store) -> list[Server]:
    """Two servers with sessions of their own for this test: the user is the same in all of them."""
    name = secrets.token_hex(4)
    return [
        shop(
            framework,
            holdfast.Sessions(Taste, store, per="user", idle=60.0, name=f"Taste-{name}"),
            holdfast.Sessions(Count, store, per="user", idle=60.0, name=f"Count-{name}"),
        )
        for _ in range(2)
    ]


async def _told(call: Call, tool: str, times: int) -> None:
    for _ in range(times):
        failed, said = await call(tool, what="told")
        assert failed
        assert "has expired, and what it held is gone" in said


@both_frameworks
@pytest.mark.promise("state.call")
async def test_calls_wait_for_the_session_that_follows_an_expired_one(framework: str, url: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store(url, clock=clock) as store:
        one, two = replicas(framework, store)
        async with one.running() as here, two.running() as there, asyncio.timeout(patience(60)):
            for round in range(3):
                for call in (here, there):
                    failed, said = await call("both", what="first")  # each replica knows the sessions
                    assert not failed, said
                clock.advance(61)
                await _told(here, "both", 2)  # of each of the two sessions once
                answers = await asyncio.gather(
                    *(call("both" if n % 2 else "like", what="x") for n in range(8) for call in (here, there))
                )
                assert [said for failed, said in answers if failed] == [], round
        await store.erase(USER)


@both_frameworks
@pytest.mark.promise("state.keys")
async def test_a_key_holds_across_the_beginning_of_the_session_that_follows(framework: str, url: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store(url, clock=clock) as store:
        one, two = replicas(framework, store)
        async with one.running() as here, two.running() as there, asyncio.timeout(patience(60)):
            for call in (here, there):
                assert not (await call("like", what="first"))[0]
            clock.advance(61)
            await _told(here, "like", 1)
            answers = [await call("like", "k", what="x") for call in (here, here, there, there)]
            assert answers == [(False, "1")] * 4
            assert not (await call("forget"))[0]
            answers = [await call("like", "l", what="x") for call in (here, there, here)]
            assert answers == [(False, "1")] * 3
        await store.erase(USER)
