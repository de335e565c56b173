"""What an author or a caller gets wrong, and what they are told; and a log of ten thousand entries."""

import sqlite3
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import mcp
import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve
from pydantic import Field, field_validator

import holdfast
from holdfast.core.models import Principal
from holdfast.state.log import KIND

pytestmark = pytest.mark.anyio


class Basket(holdfast.SessionState):
    items: list[str] = []
    price: float = 0.0
    anything: Any = None


@pytest.mark.promise("state.bad-input")
async def test_a_value_that_would_not_come_back_is_refused_by_name() -> None:
    sessions = holdfast.Sessions(Basket)
    session = await sessions.begin()
    for value, said in (
        (datetime(2026, 1, 1, tzinfo=UTC), "anything"),
        ({1: "whole numbers are no keys"}, "anything"),
        (object(), "anything|JSON"),
        (("a", "tuple"), "anything"),
        (b"\xff", "JSON|anything"),
        (float("nan"), "anything"),
    ):
        with pytest.raises(holdfast.UnstorableValue, match=said):
            async with session.edit("set") as draft:
                draft.anything = value
    with pytest.raises(holdfast.UnstorableValue, match="price"):
        async with session.edit("set") as draft:
            draft.price = float("inf")
    with pytest.raises(holdfast.UsageError, match=r"(?s)does not validate.*items\.0"):
        async with session.edit("set") as draft:
            draft.items.append(7)  # type: ignore[arg-type]
    assert await session.read() == Basket()
    assert session.rev == 1


@pytest.mark.promise("state.bad-input")
async def test_types_that_json_does_not_have_come_back_equal() -> None:
    class Rich(holdfast.SessionState):
        when: datetime | None = None
        price: Decimal = Decimal(0)
        id: UUID | None = None
        tags: set[str] = Field(default_factory=set[str])
        numbers: dict[int, tuple[str, ...]] = Field(default_factory=dict[int, tuple[str, ...]])

    sessions = holdfast.Sessions(Rich)
    session = await sessions.begin()
    rich = Rich(
        when=datetime(2026, 7, 28, tzinfo=UTC), price=Decimal("1.10"), id=UUID(int=7), tags={"a"}, numbers={1: ("x",)}
    )
    async with session.edit() as draft:
        for name in Rich.model_fields:
            setattr(draft, name, getattr(rich, name))
    assert (await sessions.find(session.handle)).state == rich


@pytest.mark.promise("state.bad-input")
async def test_limits_are_told_with_figures_and_the_state_stays() -> None:
    alice = Principal("alice")
    sessions = holdfast.Sessions(Basket, max_bytes=2_000, quota=2)
    session = await sessions.begin(alice)
    with pytest.raises(holdfast.LimitReached) as refused:
        async with session.edit() as draft:
            draft.items = ["x" * 3_000]
    assert "2000" in str(refused.value).replace(",", "")
    assert (await session.read()).items == []
    await session.fork()
    for more in (sessions.begin(alice), session.fork()):
        with pytest.raises(holdfast.LimitReached, match="2 of 2"):
            await more


@pytest.mark.promise("state.bad-input")
def test_bad_settings_are_refused_where_they_are_written() -> None:
    for settings, said in (
        ({"idle": 0}, "idle"),
        ({"max_age": -1.0}, "max_age"),
        ({"quota": 0}, "quota"),
        ({"history": 0}, "history"),
        ({"store": "mysql://x"}, "mysql"),
        ({"keys": ["short"]}, "key"),
    ):
        with pytest.raises(holdfast.HoldfastError, match=said):
            holdfast.Sessions(Basket, **settings)  # type: ignore[arg-type]
    with pytest.raises(holdfast.UsageError, match="SessionState"):
        holdfast.Sessions(dict)  # type: ignore[type-var]
    with pytest.raises(holdfast.UsageError, match="items has no default"):

        class Needs(holdfast.SessionState):
            items: list[str]

    with pytest.raises(holdfast.UsageError, match="no migration from version 1"):

        class Skips(holdfast.SessionState, version=3):
            @holdfast.migrate(from_version=2)
            @staticmethod
            def _v2(raw: dict[str, Any]) -> dict[str, Any]:
                return raw


@pytest.mark.promise("state.bad-input")
async def test_a_validator_that_refuses_leaves_the_state_as_it_was() -> None:
    class Small(holdfast.SessionState):
        items: list[str] = []

        @field_validator("items")
        @classmethod
        def few(cls, items: list[str]) -> list[str]:
            if len(items) > 2:
                raise ValueError("a basket holds two")
            return items

    session = await holdfast.Sessions(Small).begin()
    for _ in range(2):
        await session.update(lambda state: state.items.append("x"))
    with pytest.raises(holdfast.UsageError, match="a basket holds two"):
        await session.update(lambda state: state.items.append("x"))
    assert len((await session.read()).items) == 2


@pytest.mark.promise("state.history")
async def test_ten_thousand_entries_make_no_edit_dearer_and_a_fork_copies_none(url: str) -> None:
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Basket, store)
        long, short = await sessions.begin(), await sessions.begin()
        for _ in range(20):
            record = await store.get(KIND, long.handle)
            assert record is not None
            notes: list[Any] = [{"label": "note", "data": number, "was": {}} for number in range(500)]
            await store.commit(record, expect=record.rev, entries=notes)

        async def edits(session: "holdfast.Session[Basket]") -> float:
            began = time.perf_counter()
            for number in range(20):
                async with session.edit() as draft:
                    draft.price += number + 1
            return time.perf_counter() - began

        best = min([await edits(long) / await edits(short) for _ in range(5)])
        assert best < 2.0  # noise apart, the same
        forked = await long.fork()
        assert [entry async for entry in forked.log] == []
        assert len([entry async for entry in long.log]) == 10_000 + 100
        assert (await forked.read()).price == (await long.read()).price


@pytest.mark.promise("state.injection")
async def test_a_tool_error_tells_the_caller_no_address_and_no_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "private" / "place.db"
    path.parent.mkdir()
    sessions = holdfast.Sessions(Basket, f"sqlite:///{path}?timeout=0.1")
    fast = FastMCP("shop")
    sessions.install(fast)
    official: MCPServer[Any] = MCPServer("shop")
    sessions.install(official)

    @fast.tool(name="put")
    async def put_here(session_id: str, plain: holdfast.Session[Basket] = Depends(sessions)) -> str:
        await plain.update(lambda state: setattr(state, "price", state.price + 1))
        return "ok"

    @official.tool()
    async def put(session_id: str, plain: Annotated[holdfast.Session[Basket], Resolve(sessions)]) -> str:
        await plain.update(lambda state: setattr(state, "price", state.price + 1))
        return "ok"

    @fast.tool
    async def turn(session_id: str, plain: holdfast.Session[Basket] = Depends(sessions)) -> str:
        async with plain.lease():
            return "ok"

    async with Client(fast) as client, mcp.Client(official) as other:
        begun = await sessions.begin()
        arguments = {"session_id": begun.handle}
        async with begun.lease():
            busy = (await client.call_tool("turn", arguments, raise_on_error=False)).content[0].text
        assert "another long turn on this session is under way" in busy
        assert "lease-" not in busy
        with sqlite3.connect(path, isolation_level=None) as locking:
            locking.execute("BEGIN IMMEDIATE")
            told = [
                (await client.call_tool("put", arguments, raise_on_error=False)).content[0].text,
                getattr((await other.call_tool("put", arguments)).content[0], "text", ""),
            ]
            locking.execute("ROLLBACK")
        locking.close()
        for each in told:
            assert "the server's store does not answer" in each
            assert "private" not in each
            assert "place.db" not in each
        assert "place.db is locked" in caplog.text  # the operator is told where
        with pytest.raises(holdfast.NotFound, match="there is no such session"):
            await sessions.find("s_unknown")
        await sessions.close()


@pytest.mark.promise("state.injection")
async def test_advice_names_tools_as_the_caller_knows_them() -> None:
    sessions = holdfast.Sessions(Basket)
    child, outer = FastMCP("shop"), FastMCP("mall")
    sessions.install(child, noun="basket")
    outer.mount(child, namespace="shop")
    async with Client(outer) as client:
        refused = await client.call_tool("shop_resume_basket", {"session_id": "s_no"}, raise_on_error=False)
        assert "call shop_create_basket to begin one (or the tool whose name ends so)" in refused.content[0].text
        names = [tool.name for tool in await client.list_tools()]
        assert "shop_create_basket" in names
    async with Client(child) as client:
        refused = await client.call_tool("resume_basket", {"session_id": "s_no"}, raise_on_error=False)
        assert "call create_basket to begin one" in refused.content[0].text
