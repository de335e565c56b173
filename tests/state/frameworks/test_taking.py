"""`writes` and `reads` on both frameworks: what the model sees, what the tool gets, and what is kept of a call."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp
import pytest
from fastmcp import Client, FastMCP
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, Field

import holdfast
from holdfast.state.frameworks.middleware import IDEMPOTENCY_KEY
from holdfast.state.storage.entries import KIND
from tests.deadlines import patience

pytestmark = pytest.mark.anyio
both_frameworks = pytest.mark.parametrize("framework", ["fastmcp", "mcpserver"])


class Basket(holdfast.SessionState):
    items: list[str] = []
    note: str = ""


class Stock(holdfast.SessionState):
    pears: int = 3


class Lid(BaseModel):
    color: str = "blue"
    marks: dict[str, int] = {}


@dataclass
class Label:
    text: str = ""


class Shelf(holdfast.SessionState):
    boxes: dict[str, list[int]] = {}
    lids: tuple[Lid, ...] = ()
    queue: deque[int] = deque()
    label: Label = Label()
    counts: defaultdict[str, int] = Field(default_factory=lambda: defaultdict(int))


class Server:
    """A server of either framework with a client, and its decorators under one name."""

    def __init__(self, framework: str) -> None:
        self.server: Any = FastMCP("shop") if framework == "fastmcp" else MCPServer("shop")
        self.is_fast = framework == "fastmcp"
        self.tool: Any = self.server.tool if self.is_fast else self.server.tool()
        self.prompt: Any = self.server.prompt if self.is_fast else self.server.prompt()
        self.client: Any = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Call"]:
        self.client = Client(self.server) if self.is_fast else mcp.Client(self.server)
        extra: dict[str, Any] = {"raise_on_error": False} if self.is_fast else {}

        async def call(tool: str, key: str | None = None, **arguments: Any) -> tuple[bool, str]:
            meta = {IDEMPOTENCY_KEY: key} if key else None
            answer = await self.client.call_tool(tool, arguments, meta=meta, **extra)
            return answer.is_error, "\n".join(getattr(part, "text", "") for part in answer.content)

        async with self.client:
            yield call

    async def schema(self, tool: str) -> dict[str, Any]:
        listed = await self.client.list_tools()
        tools = listed if self.is_fast else listed.tools
        found = next(each for each in tools if each.name == tool)
        return dict(getattr(found, "input_schema", None) or found.inputSchema)


Call = Callable[..., Awaitable[tuple[bool, str]]]


@both_frameworks
@pytest.mark.promise("state.call")
async def test_writes_fills_the_state_describes_the_argument_and_keeps_what_changed(framework: str) -> None:
    baskets = holdfast.Sessions(Basket)
    shop = Server(framework)
    baskets.install(shop.server, tools=("create", "list", "end"))

    @shop.tool
    @baskets.writes
    async def add(article: str, basket: Basket) -> list[str]:
        basket.items.append(article)
        return basket.items

    @shop.tool
    @baskets.writes
    def plain(article: str, basket: Basket, session: holdfast.Session[Basket]) -> str:
        basket.items.append(article)
        return session.handle

    @shop.tool
    @baskets.reads
    async def count(basket: Basket) -> int:
        return len(basket.items)

    async with shop.running() as call:
        schema = await shop.schema("add")
        assert set(schema["properties"]) == {"article", "basket_id"}
        assert schema["properties"]["basket_id"]["description"] == (
            "The id of the basket, as create_basket returned it."
        )
        begun = await baskets.begin()
        assert (await call("add", article="pear", basket_id=begun.handle))[0] is False
        assert await call("plain", article="fig", basket_id=begun.handle) == (False, begun.handle)
        assert await call("count", basket_id=begun.handle) == (False, "2")
        assert (await begun.read()).items == ["pear", "fig"]
        assert begun.rev == 3
        assert [entry.label for entry in await begun.log.last(5)] == ["add", "plain"]
        for wrong in ("s_never", "odd\x01"):
            failed, said = await call("add", article="x", basket_id=wrong)
            assert failed
            assert "there is no such session" in said
            assert "create_basket" in said


@both_frameworks
@pytest.mark.promise("state.call")
async def test_a_call_that_fails_or_is_cancelled_leaves_nothing_and_no_turn(framework: str) -> None:
    async with holdfast.open_store("memory:") as store:
        baskets = holdfast.Sessions(Basket, store)
        shop = Server(framework)
        baskets.install(shop.server)
        inside = asyncio.Event()

        @shop.tool
        @baskets.writes
        async def add(how: str, basket: Basket) -> dict[str, int]:
            basket.items.append("x")
            inside.set()
            if how == "raise":
                raise RuntimeError("half-way")
            if how == "hang":
                await asyncio.Event().wait()
            return {"n": "text" if how == "wrong" else 1}  # type: ignore[dict-item]

        async with shop.running() as call:
            begun = await baskets.begin()
            assert (await call("add", how="raise", basket_id=begun.handle))[0]
            for _ in range(3):
                inside.clear()
                hanging = asyncio.ensure_future(call("add", how="hang", basket_id=begun.handle))
                await inside.wait()
                assert await store.holder(KIND, begun.handle) is not None
                hanging.cancel()
                await asyncio.gather(hanging, return_exceptions=True)
            async with asyncio.timeout(patience(5)):
                while await store.holder(KIND, begun.handle) is not None:
                    await asyncio.sleep(0)
            assert (await begun.read()).items == []
            assert begun.rev == 1
            assert (await call("add", how="", basket_id=begun.handle))[0] is False
            assert (await begun.read()).items == ["x"]


@both_frameworks
@pytest.mark.promise("state.call")
async def test_two_decorators_are_one_transaction_over_both(framework: str) -> None:
    async with holdfast.open_store("memory:") as store:
        baskets, stocks = holdfast.Sessions(Basket, store), holdfast.Sessions(Stock, store)
        shop = Server(framework)
        baskets.install(shop.server)
        stocks.install(shop.server)

        @shop.tool
        @baskets.writes
        @stocks.writes
        async def buy(basket: Basket, stock: Stock) -> int:
            basket.items.append("pear")
            stock.pears -= 1
            if stock.pears < 0:
                raise RuntimeError("sold out")
            return stock.pears

        async with shop.running() as call:
            stock, mine = await stocks.begin(), [await baskets.begin() for _ in range(5)]
            answers = await asyncio.gather(
                *(call("buy", basket_id=each.handle, stock_id=stock.handle) for each in mine)
            )
            assert sorted(failed for failed, _ in answers) == [False] * 3 + [True] * 2
            assert (await stock.read()).pears == 0
            assert sum([len((await each.read()).items) for each in mine]) == 3


@both_frameworks
@pytest.mark.promise("state.call")
async def test_two_sessions_of_one_kind_are_named_by_their_parameters(framework: str) -> None:
    stocks = holdfast.Sessions(Stock)
    shop = Server(framework)
    stocks.install(shop.server)

    @shop.tool
    @stocks.writes
    async def move(number: int, source: Stock, target: Stock) -> int:
        source.pears -= number
        target.pears += number
        return target.pears

    async with shop.running() as call:
        one, other = await stocks.begin(), await stocks.begin()
        schema = await shop.schema("move")
        assert set(schema["required"]) == {"number", "source_id", "target_id"}
        assert await call("move", number=2, source_id=one.handle, target_id=other.handle) == (False, "5")
        assert ((await one.read()).pears, (await other.read()).pears) == (1, 5)
        assert await call("move", number=2, source_id=one.handle, target_id=one.handle) == (False, "1")
        assert (await one.read()).pears == 1


@both_frameworks
@pytest.mark.promise("state.call")
async def test_what_is_only_read_can_not_be_changed_and_waits_for_nobody(framework: str) -> None:
    baskets = holdfast.Sessions(Basket)
    shop = Server(framework)
    baskets.install(shop.server)
    inside, go = asyncio.Event(), asyncio.Event()

    @shop.tool
    @baskets.writes
    async def slow(basket: Basket) -> int:
        basket.items.append("slow")
        inside.set()
        await go.wait()
        return len(basket.items)

    @shop.tool
    async def ping() -> str:
        return "pong"

    @shop.tool
    @baskets.reads
    async def spoil(how: str, basket: Basket) -> int:
        if how == "field":
            basket.note = "x"
        if how == "list":
            basket.items.append("x")
        return len(basket.items)

    async with shop.running() as call:
        begun = await baskets.begin()
        working = asyncio.ensure_future(call("slow", basket_id=begun.handle))
        async with asyncio.timeout(patience(5)):
            await inside.wait()
            assert await call("ping") == (False, "pong")
            assert await call("spoil", how="", basket_id=begun.handle) == (False, "0")
            for how in ("field", "list"):
                assert (await call("spoil", how=how, basket_id=begun.handle))[0]
        go.set()
        assert await working == (False, "1")
        assert (await begun.read()).items == ["slow"]


@both_frameworks
@pytest.mark.promise("state.keys")
async def test_a_key_gives_the_same_result_once_and_refuses_another_call_by_name(framework: str) -> None:
    baskets = holdfast.Sessions(Basket)
    shop = Server(framework)
    baskets.install(shop.server)
    runs = 0

    @shop.tool
    @baskets.writes
    async def add(article: str, basket: Basket) -> dict[str, Any]:
        nonlocal runs
        runs += 1
        basket.items.append(article)
        return {"count": len(basket.items), "exact": [1.0, None, "ü"]}

    @shop.tool
    @baskets.writes
    async def clear(basket: Basket) -> str:
        basket.items.clear()
        return "cleared"

    async with shop.running() as call:
        begun, other = await baskets.begin(), await baskets.begin()
        answers = await asyncio.gather(*(call("add", "k", article="pear", basket_id=begun.handle) for _ in range(20)))
        assert len(set(answers)) == 1
        assert (runs, (await begun.read()).items, begun.rev) == (1, ["pear"], 2)
        whole = [
            await shop.client.call_tool(
                "add", {"article": "pear", "basket_id": begun.handle}, meta={IDEMPOTENCY_KEY: key}
            )
            for key in ("k", "new")
        ]
        assert whole[0].structured_content == {"count": 1, "exact": [1.0, None, "ü"]}
        assert type(whole[0]) is type(whole[1])
        failed, said = await call("clear", "k", basket_id=begun.handle)
        assert failed
        assert "used for another call of 'add'" in said
        assert (await call("add", "k", article="pear", basket_id=other.handle))[0] is False
        assert (await other.read()).items == ["pear"]
        for number in range(70):
            await call("add", f"k{number}", article="fig", basket_id=begun.handle)
        before = runs
        assert await call("add", "k", article="pear", basket_id=begun.handle) == answers[0]
        assert runs == before


@both_frameworks
@pytest.mark.promise("state.call")
async def test_in_a_call_the_session_does_all_that_it_does_elsewhere_and_stands_or_falls_with_it(
    framework: str,
) -> None:
    baskets = holdfast.Sessions(Basket)
    shop = Server(framework)
    baskets.install(shop.server)

    @shop.tool
    @baskets.writes
    async def work(how: str, basket: Basket, session: holdfast.Session[Basket]) -> str:
        if how == "undo":
            await session.undo()
        elif how == "note":
            await session.log.add("seen", {"by": "test"})
        elif how == "begin":
            other = await baskets.begin(state=Basket(items=["other"]))
            await (await baskets.find(other.handle)).update(lambda state: state.items.append("more"))
            return other.handle
        elif how == "fork":
            return (await session.fork()).handle
        elif how == "end":
            await session.end()
        elif how == "begin and fail":
            begun.append((await baskets.begin()).handle)
            raise RuntimeError("half-way")
        return ",".join(basket.items)

    begun: list[str] = []
    async with shop.running() as call:
        mine = await baskets.begin()
        await mine.update(lambda state: state.items.append("a"))
        await mine.update(lambda state: state.items.append("b"))
        assert await call("work", how="undo", basket_id=mine.handle) == (False, "a")
        assert (await mine.read()).items == ["a"]
        assert (await mine.redo()).items == ["a", "b"]
        await call("work", how="note", basket_id=mine.handle)
        assert [entry.label for entry in await mine.log.last(1)] == ["seen"]
        _, other = await call("work", how="begin", basket_id=mine.handle)
        assert (await baskets.find(other)).state.items == ["other", "more"]
        _, forked = await call("work", how="fork", basket_id=mine.handle)
        assert (await baskets.find(forked)).state.items == ["a", "b"]
        assert (await call("work", how="begin and fail", basket_id=mine.handle))[0]
        with pytest.raises(holdfast.errors.NotFound):
            await baskets.find(begun[0])
        assert (await call("work", how="end", basket_id=mine.handle))[0] is False
        with pytest.raises(holdfast.errors.Ended):
            await baskets.find(mine.handle)


@both_frameworks
@pytest.mark.promise("state.call")
async def test_everyones_session_is_written_in_turns_and_begins_anew_after_its_end(framework: str) -> None:
    baskets = holdfast.Sessions(Basket, identity=[holdfast.state.ForEveryone()])
    shop = Server(framework)
    baskets.install(shop.server, tools=False)

    @shop.tool
    @baskets.writes
    async def add(basket: Basket, session: holdfast.Session[Basket]) -> str:
        basket.items.append("x")
        return f"{len(basket.items)} {session.handle}"

    async with shop.running() as call:
        assert (await shop.schema("add"))["properties"] == {}
        answers = [said.split() for _, said in await asyncio.gather(*(call("add") for _ in range(10)))]
        assert sorted(int(number) for number, _ in answers) == list(range(1, 11))
        assert len({handle for _, handle in answers}) == 1
        await baskets.end(answers[0][1])
        failed, said = await call("add")
        assert (failed, said.split()[0]) == (False, "1")


@both_frameworks
@pytest.mark.promise("state.call")
async def test_what_only_reads_can_change_nothing_of_any_type_in_silence(framework: str) -> None:
    shelves = holdfast.Sessions(Shelf)
    shop = Server(framework)
    shelves.install(shop.server)

    @shop.tool
    @shelves.reads
    async def spoil(how: str, shelf: Shelf) -> str:
        match how:
            case "dict":
                shelf.boxes["a"].append(1)
            case "model":
                shelf.lids[0].color = "red"
            case "nested":
                shelf.lids[0].marks["x"] = 1
            case "deque":
                shelf.queue.append(1)
            case "dataclass":
                shelf.label.text = "x"
            case "default":
                shelf.counts["new"]
            case _:
                return f"{len(shelf.queue)} {shelf.label.text} {len(shelf.counts)} {shelf.lids[0].marks}"
        return "done"

    async with shop.running() as call:
        begun = await shelves.begin(state=Shelf(boxes={"a": []}, lids=(Lid(),)))
        for how in ("dict", "model", "nested", "deque", "dataclass", "default"):
            failed, said = await call("spoil", how=how, shelf_id=begun.handle)
            assert failed, how
            assert "only reads its session" in said, (how, said)
        assert await call("spoil", how="", shelf_id=begun.handle) == (False, "0  0 {}")


@both_frameworks
@pytest.mark.promise("state.call")
async def test_an_error_of_ours_in_the_body_of_a_tool_reaches_the_model(framework: str) -> None:
    baskets = holdfast.Sessions(Basket)
    shop = Server(framework)
    baskets.install(shop.server)

    @shop.tool
    @baskets.writes
    async def merge(other: str, basket: Basket) -> int:
        basket.items += (await baskets.find(other)).state.items
        return len(basket.items)

    async with shop.running() as call:
        begun = await baskets.begin()
        failed, said = await call("merge", other="s_never", basket_id=begun.handle)
        assert failed
        assert "there is no such session; call create_basket to begin one" in said
