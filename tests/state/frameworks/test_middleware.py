"""Each call as one transaction, and calls that may be repeated: on both frameworks, on every store."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import mcp
import pytest
from fastmcp import Client, FastMCP
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer

import holdfast
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


async def work(basket: Basket, item: str, fail: bool, gate: str) -> int:
    basket.items.append(item)
    if gate:
        BEGUN[gate].set()
        await GATES[gate].wait()
    if fail:
        raise RuntimeError("half-way")
    return len(basket.items)


def shop(framework: str, sessions: "holdfast.Sessions[Basket]") -> Any:
    server: Any = FastMCP("shop") if framework == "fastmcp" else MCPServer("shop")
    sessions.install(server)
    tool = server.tool if framework == "fastmcp" else server.tool()

    @tool
    @sessions.writes
    async def add(item: str, basket: Basket, fail: bool = False, gate: str = "") -> int:
        return await work(basket, item, fail, gate)

    @tool
    @sessions.writes
    async def look(basket: Basket) -> int:
        return len(basket.items)

    @tool
    @sessions.writes
    async def edit(basket: Basket, session: Session[Basket]) -> int:
        async with session.edit("first") as draft:
            draft.items.append("a")
        assert basket.items[-1] == "a"
        assert (await session.read()).items == basket.items
        return len((await session.update(lambda state: state.items.append("b"), "second")).items)

    @tool
    async def plain(text: str) -> str:
        return text

    return server


@asynccontextmanager
async def calling(framework: str, sessions: "holdfast.Sessions[Basket]") -> AsyncGenerator[Call]:
    """A function that calls a tool: (is it an error, text, structured content)."""
    server = shop(framework, sessions)
    client: Any = Client(server) if framework == "fastmcp" else mcp.Client(server)

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
@pytest.mark.promise("state.call")
async def test_what_a_call_changed_is_saved_after_it_and_a_failure_is_not(framework: str, url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Basket, store)
        begun = await sessions.begin()
        async with calling(framework, sessions) as call:
            assert (await call("add", item="apple", basket_id=begun.handle))[2] == {"result": 1}
            assert (await call("add", item="pear", basket_id=begun.handle, fail=True))[0]
            assert (await call("look", basket_id=begun.handle))[2] == {"result": 1}
            assert (await call("edit", basket_id=begun.handle))[2] == {"result": 3}
            assert (await begun.read()).items == ["apple", "a", "b"]
            assert begun.rev == 3  # two edits in one call are one write
            assert [entry.label for entry in await begun.log.last(5)] == ["add", "first; second"]


@both
@pytest.mark.promise("state.call")
async def test_calls_in_two_processes_take_turns_and_lose_nothing(framework: str, url: str) -> None:
    async with holdfast.open_store(url) as store:
        here, there = holdfast.Sessions(Basket, store), holdfast.Sessions(Basket, store)  # as two processes have them
        begun = await here.begin()
        async with calling(framework, here) as call, calling(framework, there) as other:
            gate = GATES["slow"] = asyncio.Event()
            entered = BEGUN["slow"] = asyncio.Event()
            slow = asyncio.ensure_future(call("add", item="slow", basket_id=begun.handle, gate="slow"))
            await asyncio.wait_for(entered.wait(), patience(10))
            fast = asyncio.ensure_future(other("add", item="fast", basket_id=begun.handle))
            gate.set()
            assert [(await each)[0] for each in (slow, fast)] == [False, False]
            assert (await begun.read()).items == ["slow", "fast"]
            parallel = [way("add", item="x", basket_id=begun.handle) for _ in range(10) for way in (call, other)]
            assert not any(answer[0] for answer in await asyncio.gather(*parallel))
            assert len((await begun.read()).items) == 22


@both
@pytest.mark.promise("state.call")
async def test_unchanged_state_is_not_written_but_slides_and_no_session_means_no_store(framework: str) -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        sessions = holdfast.Sessions(Basket, store, idle=100.0)
        begun = await sessions.begin()
        async with calling(framework, sessions) as call:
            for _ in range(4):
                clock.advance(60)
                assert (await call("look", basket_id=begun.handle))[2] == {"result": 0}
            record = await store.get(KIND, begun.handle)
            assert record is not None
            assert record.rev == 1
            touched: list[str] = []
            for name in ("get_all", "begin_turns", "commit", "commit_all", "touch", "scan", "count", "log"):
                setattr(store, name, lambda *args, name=name, **kwargs: touched.append(name))
            assert (await call("plain", text="hello", key="k"))[1] == "hello"
            assert touched == []


@both
@pytest.mark.promise("state.keys")
async def test_a_repeated_call_answers_the_same_and_appends_nothing(framework: str, url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Basket, store)
        begun = await sessions.begin()
        async with calling(framework, sessions) as call:
            first = await call("add", key="order-1", item="apple", basket_id=begun.handle)
            assert first[2] == {"result": 1}
            assert await call("add", key="order-1", item="apple", basket_id=begun.handle) == first
            assert (await call("add", key="order-2", item="apple", basket_id=begun.handle))[2] == {"result": 2}
            assert await call("add", key="order-1", item="apple", basket_id=begun.handle) == first
            failed, said, _ = await call("add", key="order-1", item="pear", basket_id=begun.handle)
            assert failed
            assert "was used for another call" in said
            assert (await begun.read()).items == ["apple", "apple"]
            assert len(await begun.log.last(9)) == 2
            answers = await asyncio.gather(
                *(call("add", key="order-3", item="fig", basket_id=begun.handle) for _ in range(8))
            )
            assert {each[2]["result"] for each in answers if not each[0]} == {3}
            assert (await begun.read()).items.count("fig") == 1
            failed = (await call("add", key="order-4", item="fig", basket_id=begun.handle, fail=True))[0]
            assert failed
            again = await call("add", key="order-5", item="fig", basket_id=begun.handle)
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
    """A client of a shop with one basket for all."""
    server: Any = FastMCP("shop") if framework == "fastmcp" else MCPServer("shop")
    sessions.install(server, tools=False)

    @(server.tool if framework == "fastmcp" else server.tool())
    @sessions.writes
    async def order(item: str, basket: Basket) -> list[str]:
        basket.items.append(item)
        return basket.items

    return Client(server) if framework == "fastmcp" else mcp.Client(server)


@both
@pytest.mark.promise("state.keys")
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


@pytest.mark.promise("state.keys")
async def test_a_key_that_is_no_text_is_refused() -> None:
    sessions, server = holdfast.Sessions(Basket), FastMCP("shop")
    sessions.install(server)
    async with Client(server) as client:
        wrong = await client.call_tool("list_baskets", {}, meta={IDEMPOTENCY_KEY: 7}, raise_on_error=False)
        assert wrong.is_error
        assert "is not text" in str(wrong.content)


@both
@pytest.mark.promise("state.keys")
async def test_an_empty_argument_for_the_key_is_none_and_an_empty_one_in_meta_is_refused(framework: str) -> None:
    sessions = holdfast.Sessions(Basket)
    begun = await sessions.begin()
    server: Any = FastMCP("shop") if framework == "fastmcp" else MCPServer("shop")
    sessions.install(server, tools=False)

    @(server.tool if framework == "fastmcp" else server.tool())
    @sessions.writes
    async def add(basket: Basket, idempotency_key: str = "") -> int:
        basket.items.append("x")
        return len(basket.items)

    client: Any = Client(server) if framework == "fastmcp" else mcp.Client(server)
    extra: dict[str, Any] = {"raise_on_error": False} if framework == "fastmcp" else {}
    async with client:

        async def call(meta: dict[str, Any] | None = None, **given: Any) -> tuple[bool, str]:
            answer = await client.call_tool("add", {"basket_id": begun.handle, **given}, meta=meta, **extra)
            return answer.is_error, answer.content[0].text

        assert [await call(idempotency_key="") for _ in range(2)] == [(False, "1"), (False, "2")]  # a model's default
        assert [await call(idempotency_key="k") for _ in range(2)] == [(False, "3"), (False, "3")]
        failed, said = await call({IDEMPOTENCY_KEY: ""})
        assert failed
        assert "is not text of at least one character" in said
