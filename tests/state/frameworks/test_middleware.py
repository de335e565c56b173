"""Middleware that saves after a call, and calls that may be repeated: on both frameworks, on every store."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import mcp
import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.utilities.tasks import TaskConfig
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast.state.frameworks.fastmcp import LifecycleProvider
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY
from holdfast.state.session import Session
from holdfast.state.storage.entries import KIND
from tests.deadlines import patience

pytestmark = pytest.mark.anyio


class Basket(holdfast.SessionState):
    items: list[str] = []


Call = Callable[..., Any]
GATES: dict[str, asyncio.Event] = {}
BEGUN: dict[str, asyncio.Event] = {}


async def work(basket: Session[Basket], item: str, fail: bool, gate: str) -> int:
    basket.draft.items.append(item)
    if gate:
        BEGUN[gate].set()
        await GATES[gate].wait()
    if fail:
        raise RuntimeError("half-way")
    return len(basket.draft.items)


def on_fastmcp(sessions: "holdfast.Sessions[Basket]") -> "FastMCP[Any]":
    server = FastMCP("shop")
    sessions.install(server, save=True)

    @server.tool
    async def add(
        item: str,
        session_id: str,
        fail: bool = False,
        gate: str = "",
        basket: holdfast.Session[Basket] = Depends(sessions),
    ) -> int:
        return await work(basket, item, fail, gate)

    @server.tool
    async def look(session_id: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> int:
        return len(basket.draft.items)

    @server.tool
    async def edit(session_id: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> int:
        async with basket.edit("first") as draft:
            draft.items.append("a")
        return len((await basket.update(lambda state: state.items.append("b"), "second")).items)

    @server.tool
    async def plain(text: str) -> str:
        return text

    return server


def on_mcpserver(sessions: "holdfast.Sessions[Basket]") -> "MCPServer[Any]":
    server: MCPServer[Any] = MCPServer("shop")
    sessions.install(server, save=True)
    current = Annotated[holdfast.Session[Basket], Resolve(sessions)]

    @server.tool()
    async def add(item: str, session_id: str, basket: current, fail: bool = False, gate: str = "") -> int:  # type: ignore[valid-type]
        return await work(basket, item, fail, gate)

    @server.tool()
    async def look(session_id: str, basket: current) -> int:  # type: ignore[valid-type]
        return len(basket.draft.items)  # type: ignore[attr-defined]

    @server.tool()
    async def edit(session_id: str, basket: current) -> int:  # type: ignore[valid-type]
        async with basket.edit("first") as draft:  # type: ignore[attr-defined]
            draft.items.append("a")
        return len((await basket.update(lambda state: state.items.append("b"), "second")).items)  # type: ignore[attr-defined]

    @server.tool()
    async def plain(text: str) -> str:
        return text

    return server


@asynccontextmanager
async def calling(framework: str, sessions: "holdfast.Sessions[Basket]") -> AsyncGenerator[Call]:
    """A function that calls a tool: (is it an error, text, structured content)."""
    client: Any = Client(on_fastmcp(sessions)) if framework == "fastmcp" else mcp.Client(on_mcpserver(sessions))

    async def call(tool: str, key: str | None = None, **arguments: Any) -> tuple[bool, str, Any]:
        meta = {IDEMPOTENCY_KEY: key} if key else None
        extra = {"raise_on_error": False} if framework == "fastmcp" else {}
        answer = await client.call_tool(tool, arguments, meta=meta, **extra)
        said = "\n".join(getattr(part, "text", "") for part in answer.content)
        return answer.is_error, said, answer.structured_content

    async with client:
        yield call


both = pytest.mark.parametrize("framework", ["fastmcp", "mcpserver"])


@both
@pytest.mark.promise("state.middleware")
async def test_what_a_call_changed_is_saved_after_it_and_a_failure_is_not(framework: str, url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Basket, store)
        begun = await sessions.begin()
        async with calling(framework, sessions) as call:
            assert (await call("add", item="apple", session_id=begun.handle))[2] == {"result": 1}
            assert (await call("add", item="pear", session_id=begun.handle, fail=True))[0]
            assert (await call("look", session_id=begun.handle))[2] == {"result": 1}
            assert (await call("edit", session_id=begun.handle))[2] == {"result": 3}
            assert (await begun.read()).items == ["apple", "a", "b"]
            assert begun.rev == 3  # two edits in one call are one write
            assert [entry.label for entry in await begun.log.last(5)] == ["add", "first; second"]


@both
@pytest.mark.promise("state.middleware")
async def test_two_calls_at_once_lose_nothing_in_silence(framework: str, url: str) -> None:
    async with holdfast.open_store(url) as store:
        here, there = holdfast.Sessions(Basket, store), holdfast.Sessions(Basket, store)  # as two processes have them
        begun = await here.begin()
        async with calling(framework, here) as call, calling(framework, there) as other:
            gate = GATES["slow"] = asyncio.Event()
            entered = BEGUN["slow"] = asyncio.Event()
            slow = asyncio.ensure_future(call("add", item="slow", session_id=begun.handle, gate="slow"))
            await asyncio.wait_for(entered.wait(), patience(10))
            assert not (await other("add", item="fast", session_id=begun.handle))[0]
            gate.set()
            failed, said, _ = await slow
            assert failed
            assert "another call wrote first, and nothing of this one was written; try again" in said
            assert (await begun.read()).items == ["fast"]
            parallel = [call("add", item=str(number), session_id=begun.handle) for number in range(20)]
            assert not any(answer[0] for answer in await asyncio.gather(*parallel))  # in one process they take turns
            assert len((await begun.read()).items) == 21


@both
@pytest.mark.promise("state.middleware")
async def test_unchanged_state_is_not_written_but_slides_and_no_session_means_no_store(framework: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        sessions = holdfast.Sessions(Basket, store, idle=100.0)
        begun = await sessions.begin()
        async with calling(framework, sessions) as call:
            for _ in range(4):
                clock.advance(60)
                assert (await call("look", session_id=begun.handle))[2] == {"result": 0}
            record = await store.get(KIND, begun.handle)
            assert record is not None
            assert record.rev == 1
            touched: list[str] = []
            for name in ("get", "commit", "touch", "scan", "count", "log"):
                setattr(store, name, lambda *args, name=name, **kwargs: touched.append(name))
            assert (await call("plain", text="hello", key="k"))[1] == "hello"
            assert touched == []


@both
@pytest.mark.promise("state.once")
async def test_a_repeated_call_answers_the_same_and_appends_nothing(framework: str, url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Basket, store)
        begun = await sessions.begin()
        async with calling(framework, sessions) as call:
            first = await call("add", key="order-1", item="apple", session_id=begun.handle)
            assert first[2] == {"result": 1}
            assert await call("add", key="order-1", item="apple", session_id=begun.handle) == first
            assert (await call("add", key="order-2", item="apple", session_id=begun.handle))[2] == {"result": 2}
            assert await call("add", key="order-1", item="apple", session_id=begun.handle) == first
            failed, said, _ = await call("add", key="order-1", item="pear", session_id=begun.handle)
            assert failed
            assert "was used for another call" in said
            assert (await begun.read()).items == ["apple", "apple"]
            assert len(await begun.log.last(9)) == 2
            answers = await asyncio.gather(
                *(call("add", key="order-3", item="fig", session_id=begun.handle) for _ in range(8))
            )
            assert {each[2]["result"] for each in answers if not each[0]} == {3}
            assert (await begun.read()).items.count("fig") == 1
            failed = (await call("add", key="order-4", item="fig", session_id=begun.handle, fail=True))[0]
            assert failed
            again = await call("add", key="order-5", item="fig", session_id=begun.handle)
            assert again[2] == {"result": 4}


@contextmanager
def signed_in(subject: str | None) -> Iterator[None]:
    """Whoever connects in here is this user."""
    token = AccessToken(
        token="t", client_id="app", scopes=[], subject=subject, claims={"iss": "https://issuer.invalid"}
    )
    before = auth_context_var.set(AuthenticatedUser(token) if subject else None)
    try:
        yield
    finally:
        auth_context_var.reset(before)


def everyones(framework: str, sessions: "holdfast.Sessions[Basket]") -> Any:
    """A shop with one basket for all, saved by middleware."""
    if framework == "fastmcp":
        fast = FastMCP("shop")
        sessions.install(fast, save=True, tools=False)

        @fast.tool(name="order")
        async def order_here(item: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> list[str]:
            basket.draft.items.append(item)
            return basket.draft.items

        return Client(fast)
    server: MCPServer[Any] = MCPServer("shop")
    sessions.install(server, save=True, tools=False)

    @server.tool()
    async def order(item: str, basket: Annotated[holdfast.Session[Basket], Resolve(sessions)]) -> list[str]:
        basket.draft.items.append(item)
        return basket.draft.items

    return mcp.Client(server)


@both
@pytest.mark.promise("state.once")
async def test_the_same_key_of_two_users_of_one_session_is_two_calls(framework: str, url: str) -> None:
    extra: dict[str, Any] = {"raise_on_error": False} if framework == "fastmcp" else {}
    async with holdfast.open_store(url) as store:
        shared = holdfast.state.ForEveryone(secrets.token_hex(4))
        answers: list[Any] = []
        for user in ("alice", "bob", "alice"):
            sessions = holdfast.Sessions(Basket, store, identity=[shared])  # as a replica each
            with signed_in(user):
                async with everyones(framework, sessions) as client:
                    said = await client.call_tool("order", {"item": "x"}, meta={IDEMPOTENCY_KEY: "order-1"}, **extra)
                    answers.append(said.structured_content["result"])
        assert answers == [["x"], ["x", "x"], ["x"]]
        # Nobody in particular has no keys of his own there: refused, and nothing is executed.
        sessions = holdfast.Sessions(Basket, store, identity=[shared])
        async with everyones(framework, sessions) as client:
            refused = await client.call_tool("order", {"item": "y"}, meta={IDEMPOTENCY_KEY: "order-1"}, **extra)
            assert refused.is_error
            assert "needs an authenticated caller" in refused.content[0].text
            assert (await client.call_tool("order", {"item": "z"}, **extra)).structured_content["result"][2:] == ["z"]


@pytest.mark.promise("state.once")
async def test_a_background_tool_that_takes_a_saved_session_is_refused_when_the_server_starts() -> None:
    for save in (True, False):
        sessions, server = holdfast.Sessions(Basket), FastMCP("shop")
        sessions.install(server, save=save)

        @server.tool(name="later")
        async def later(item: str, session_id: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> int:
            return await work(basket, item, False, "")

        tool = await server.get_tool("later")
        assert tool is not None
        tool.task_config = TaskConfig(mode="optional")  # what `task=True` declares
        [ours] = [each for each in server.providers if isinstance(each, LifecycleProvider)]
        if save:
            with pytest.raises(holdfast.UsageError, match=r"'later' runs in the background \(task=True\)"):
                await ours.lifespan().__aenter__()
        else:
            async with ours.lifespan():
                pass


@both
@pytest.mark.promise("state.middleware")
async def test_calls_that_take_no_session_wait_for_nobody(framework: str) -> None:
    shared = holdfast.state.ForEveryone()
    sessions = holdfast.Sessions(Basket, identity=[shared])
    client = everyones(framework, sessions)
    entered, go = asyncio.Event(), asyncio.Event()

    async def slow(basket: "holdfast.Session[Basket]") -> int:
        entered.set()
        await go.wait()
        basket.draft.items.append("slow")
        return len(basket.draft.items)

    async def ping() -> str:
        return "pong"

    if framework == "fastmcp":
        server = FastMCP("shop")
        sessions.install(server, save=True, tools=False)

        @server.tool(name="slow")
        async def slow_here(basket: holdfast.Session[Basket] = Depends(sessions)) -> int:
            return await slow(basket)

        server.tool(ping)
        client = Client(server)
    else:
        official: MCPServer[Any] = MCPServer("shop")
        sessions.install(official, save=True, tools=False)

        @official.tool(name="slow")
        async def slow_there(basket: Annotated[holdfast.Session[Basket], Resolve(sessions)]) -> int:
            return await slow(basket)

        official.tool()(ping)
        client = mcp.Client(official)
    async with client:
        first = asyncio.ensure_future(client.call_tool("slow", {}))
        await asyncio.wait_for(entered.wait(), patience(10))
        second = asyncio.ensure_future(client.call_tool("slow", {}))
        pong = await asyncio.wait_for(client.call_tool("ping", {}), patience(10))
        assert pong.structured_content == {"result": "pong"}
        go.set()
        results = [(await each).structured_content["result"] for each in (first, second)]
        assert results == [1, 2]  # those that take it still take turns


@pytest.mark.promise("state.once")
async def test_a_key_is_refused_where_it_would_not_be_kept() -> None:
    sessions, server = holdfast.Sessions(Basket), FastMCP("shop")
    sessions.install(server, save=True)
    runs: list[str] = []

    @server.tool
    async def later() -> None:
        runs.append("later")

    @server.tool
    async def elsewhere(session_id: str, other: str) -> None:
        (await sessions(session_id=other)).draft.items.append("x")
        runs.append("elsewhere")

    mine, other = await sessions.begin(), await sessions.begin()
    both = {"session_id": mine.handle, "other": other.handle}
    async with Client(server) as client:
        tool = await server.get_tool("later")
        assert tool is not None
        tool.task_config = TaskConfig(mode="optional")  # what `task=True` declares
        for name, arguments, why in (
            ("later", {}, "'later' runs in the background, where no idempotency key is stored"),
            ("elsewhere", both, "covers the session that the call names"),
        ):
            answer = await client.call_tool(name, arguments, meta={IDEMPOTENCY_KEY: "k"}, raise_on_error=False)
            assert answer.is_error
            assert why in str(answer.content)
        assert runs == []
        assert (await other.read()).items == []
        await client.call_tool("elsewhere", both)
        assert (await other.read()).items == ["x"]
