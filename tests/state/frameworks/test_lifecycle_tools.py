"""The tools that begin, list, resume, fork and end sessions: their parameters and their advice."""

import pytest
from fastmcp import Client, FastMCP
from pydantic import Field

import holdfast

pytestmark = pytest.mark.anyio


class Basket(holdfast.SessionState):
    items: list[str] = []


@pytest.mark.promise("state.injection")
async def test_fields_with_factories_are_made_for_each_session_and_constraints_are_shown() -> None:
    numbers = iter(range(100))

    class Order(holdfast.SessionState):
        number: int = Field(default_factory=lambda: next(numbers))
        count: int = Field(1, ge=1, description="How many")

    sessions = holdfast.Sessions(Order)
    server = FastMCP("shop")
    sessions.install(server, create=["number", "count"])
    async with Client(server) as client:
        schema = next(tool for tool in await client.list_tools() if tool.name == "create_order").input_schema
        assert schema["properties"]["count"]["minimum"] == 1
        assert schema["properties"]["count"]["description"] == "How many"
        made = [(await client.call_tool("create_order", {})).data["order_id"] for _ in range(3)]
        assert len({(await sessions.find(each)).state.number for each in made}) == 3
        wrong = await client.call_tool("create_order", {"count": 0}, raise_on_error=False)
        assert wrong.is_error
        given = (await client.call_tool("create_order", {"number": 77})).data["order_id"]
        assert (await sessions.find(given)).state.number == 77


@pytest.mark.promise("state.injection")
async def test_advice_names_tools_as_the_caller_knows_them() -> None:
    sessions = holdfast.Sessions(Basket)
    child, outer = FastMCP("shop"), FastMCP("mall")
    sessions.install(child)
    outer.mount(child, namespace="shop")
    async with Client(outer) as client:
        refused = await client.call_tool("shop_resume_basket", {"basket_id": "s_no"}, raise_on_error=False)
        assert "call shop_create_basket to begin one (or the tool whose name ends so)" in refused.content[0].text
        names = [tool.name for tool in await client.list_tools()]
        assert "shop_create_basket" in names
    async with Client(child) as client:
        refused = await client.call_tool("resume_basket", {"basket_id": "s_no"}, raise_on_error=False)
        assert "call create_basket to begin one" in refused.content[0].text
