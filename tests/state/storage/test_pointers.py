"""Sessions that stand for somebody: their expiry is reported once, and they count."""

import asyncio
from typing import Annotated, Any

import mcp
import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.state.identity import Identity
from holdfast.state.storage import quota
from holdfast.state.storage.entries import KIND, POINTERS

pytestmark = pytest.mark.anyio
ALICE, BOB = Principal("alice"), Principal("bob")
DAY = 86_400.0


class Basket(holdfast.SessionState):
    items: list[str] = []


CALLERS = [
    pytest.param(holdfast.state.FromPrincipal(), Identity(ALICE), id="principal"),
    pytest.param(holdfast.state.ForEveryone(), Identity(), id="everyone"),
    pytest.param(holdfast.state.From2025Session(), Identity(session_2025="x"), id="connection"),
]


@pytest.mark.promise("state.told")
@pytest.mark.parametrize(("place", "caller"), CALLERS)
@pytest.mark.parametrize("late", [61.0, 119.0, 20 * DAY])
async def test_an_implicit_session_that_expired_is_reported_once(place: Any, caller: Identity, late: float) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        one, other = (holdfast.Sessions(Basket, store, identity=[place], idle=60.0, max_age=None) for _ in range(2))
        first = await one.find_for(caller)
        await first.update(lambda state: state.items.append("fig"))
        clock.advance(late)
        await store.reap(kind=KIND, expired_for=DAY)
        await store.reap(kind=POINTERS)
        if caller.session_2025 is not None and late > 2 * 60:  # no connection comes back after that
            assert (await other.find_for(caller)).state.items == []
            return
        calls = await asyncio.gather(*(each.find_for(caller) for each in (other, one) * 5), return_exceptions=True)
        reported = [each for each in calls if isinstance(each, holdfast.errors.SessionExpired)]
        assert len(reported) == 1
        assert "do it again to begin a new one" in str(reported[0])
        begun = {each.handle for each in calls if isinstance(each, holdfast.Session)}
        assert len(begun) == 1  # and one for all, of both replicas
        assert first.handle not in begun
        assert (await one.find_for(caller)).handle in begun


@pytest.mark.promise("state.told")
async def test_an_implicit_session_that_was_ended_begins_anew_without_a_word() -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        sessions = holdfast.Sessions(Basket, store, identity=[holdfast.state.FromPrincipal()])
        first = await sessions.find_for(Identity(ALICE))
        await first.end()
        clock.advance(2 * DAY)
        await store.reap()  # nothing says any more that it was ended
        assert (await sessions.find_for(Identity(ALICE))).handle != first.handle


@pytest.mark.promise("state.told")
@pytest.mark.parametrize("framework", ["fastmcp", "mcpserver"])
async def test_a_model_reads_that_its_implicit_session_expired(framework: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        sessions = holdfast.Sessions(Basket, store, identity=[holdfast.state.ForEveryone()], idle=60.0)
        server: Any
        if framework == "fastmcp":
            server = FastMCP("shop")

            @server.tool  # type: ignore[untyped-decorator]
            async def add(basket: holdfast.Session[Basket] = Depends(sessions)) -> int:
                return len((await basket.update(lambda state: state.items.append("x"))).items)

            client: Any = Client(server)
        else:
            server = MCPServer("shop")

            async def add_(basket: Annotated[holdfast.Session[Basket], Resolve(sessions)]) -> int:
                return len((await basket.update(lambda state: state.items.append("x"))).items)

            server.add_tool(add_, name="add")
            client = mcp.Client(server)
        extra = {"raise_on_error": False} if framework == "fastmcp" else {}
        async with client:
            for wanted in (1, 2):
                answer = await client.call_tool("add", {}, **extra)
                assert answer.structured_content == {"result": wanted}
            clock.advance(61)
            answer = await client.call_tool("add", {}, **extra)
            assert answer.is_error
            assert "has expired, and what it held is gone; do it again" in answer.content[0].text
            assert (await client.call_tool("add", {}, **extra)).structured_content == {"result": 1}


@pytest.mark.promise("state.quota")
async def test_a_quota_holds_across_replicas_and_counts_implicit_sessions(url: str) -> None:
    async with holdfast.open_store(url) as one, holdfast.open_store(url) as two:
        alice = Principal(f"alice-{id(one)}")
        chain = [holdfast.state.FromArgument(), holdfast.state.FromPrincipal()]
        places = [holdfast.Sessions(Basket, store, quota=5, identity=chain) for store in (one, two)]
        implicit = await asyncio.gather(*(places[n % 2].find_for(Identity(alice)) for n in range(6)))
        assert len({each.handle for each in implicit}) == 1
        begun = await asyncio.gather(*(places[n % 2].begin(alice) for n in range(20)), return_exceptions=True)
        made = [each for each in begun if isinstance(each, holdfast.Session)]
        refused = [each for each in begun if isinstance(each, holdfast.errors.LimitReached)]
        assert (len(made), len(refused)) == (4, 16)
        assert "5 of 5 sessions of this caller are open; end one that is done" in str(refused[0])
        assert len(await places[0].all(alice)) == 5
        await made[0].end()
        await places[1].begin(alice)
        with pytest.raises(holdfast.errors.LimitReached):
            await made[1].fork()
        other = Identity(Principal(f"bob-{id(one)}"))
        full = [holdfast.Sessions(Basket, store, quota=1, identity=chain) for store in (one, two)]
        found = await asyncio.gather(*(full[n % 2].find_for(other) for n in range(10)))
        assert len({each.handle for each in found}) == 1  # the last place is taken once, by all of them


@pytest.mark.promise("state.quota")
async def test_anonymous_sessions_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "ANONYMOUS_SESSIONS", 3)
    everyone = [holdfast.state.FromArgument(), holdfast.state.ForEveryone()]
    async with holdfast.open_store("memory:") as store:
        sessions = holdfast.Sessions(Basket, store, quota=1, identity=everyone)
        for _ in range(3):
            await sessions.begin(ANONYMOUS)
        with pytest.raises(holdfast.errors.LimitReached, match="3 of 3 sessions of all anonymous callers are open"):
            await sessions.begin(ANONYMOUS)
        assert (await sessions.find_for(Identity(BOB))).state.items == []  # what all share is nobody's own
        free = holdfast.Sessions(Basket, store)
        await free.begin(ANONYMOUS)
