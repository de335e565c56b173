"""A shopping basket on the SDK's MCPServer that is kept across calls, restarts and replicas, in both eras.

`python examples/basket_mcpserver.py 8000` serves it at http://127.0.0.1:8000/mcp. BASKETS names the store.
"""

import os
import sys
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast


class Basket(holdfast.SessionState):
    items: dict[str, int] = {}
    note: str = ""

    def put(self, article: str) -> None:
        self.items[article] = self.items.get(article, 0) + 1


sessions = holdfast.Sessions(Basket, store=os.environ.get("BASKETS", "sqlite:///baskets.db"))
CurrentBasket = Annotated[holdfast.Session[Basket], Resolve(sessions)]
server = MCPServer("shop")
sessions.install(server, create=["note"])


@server.tool()
async def add(article: str, basket: CurrentBasket, basket_id: str = "") -> dict[str, int]:
    """Put one more of an article into the basket, and return the contents."""
    state = await basket.update(lambda state: state.put(article), f"add {article}")
    return state.items


@server.resource("basket://{basket_id}")
@sessions.inject
async def contents(basket_id: str, basket: CurrentBasket) -> str:
    """The contents of the basket, one article on each line."""
    return "\n".join(f"{count} x {article}" for article, count in sorted(basket.state.items.items()))


@server.prompt()
@sessions.inject
async def checkout(basket_id: str, basket: CurrentBasket) -> str:
    """Ask for the order to be confirmed."""
    return f"Confirm this order: {', '.join(sorted(basket.state.items)) or 'nothing yet'}."


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1] if len(sys.argv) > 1 else 8000))
