"""A root agent with two parallel sub-agents over one stateful server: one session, which the root closes.

`python examples/sub_agents.py` starts the server itself: a shop with one basket per session.
"""

import asyncio

from mcp.server.mcpserver import MCPServer

import holdfast

shop = MCPServer("shop")
basket: list[str] = []


@shop.tool()
def add(item: str) -> str:
    """Put something into the basket."""
    basket.append(item)
    return f"{len(basket)} things"


@shop.tool()
def checkout() -> str:
    """Buy the contents of the basket."""
    bought, basket[:] = sorted(basket), []
    return ", ".join(bought)


server = holdfast.Server("shop", app=shop)


async def sub_agent(*items: str) -> None:
    async with holdfast.run():  # joins the root's run
        for item in items:
            await server.call_tool("add", {"item": item})


async def main() -> None:
    async with holdfast.run() as run:
        await asyncio.gather(sub_agent("apples", "bread"), sub_agent("cheese"))
        result = await server.call_tool("checkout")
        print(result.content[0].text)
        print("sessions opened:", run.statistics()["shop"].handshakes)


asyncio.run(main())
