"""A shopping basket on FastMCP that is kept across calls, restarts and replicas, in both eras.

`python examples/basket_fastmcp.py 8000` serves it at http://127.0.0.1:8000/mcp. BASKETS names the store.
"""

import os
import sys

from fastmcp import FastMCP
from fastmcp.dependencies import Depends

import holdfast


class Basket(holdfast.SessionState):
    items: dict[str, int] = {}
    note: str = ""

    def put(self, article: str) -> None:
        self.items[article] = self.items.get(article, 0) + 1


sessions = holdfast.Sessions(Basket, store=os.environ.get("BASKETS", "sqlite:///baskets.db"))
server = FastMCP("shop")
sessions.install(server, create=["note"])


@server.tool
async def add(
    article: str, basket_id: str = "", basket: holdfast.Session[Basket] = Depends(sessions)
) -> dict[str, int]:
    """Put one more of an article into the basket, and return the contents."""
    state = await basket.update(lambda state: state.put(article), f"add {article}")
    return state.items


@server.resource("basket://{basket_id}")
async def contents(basket_id: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> str:
    """The contents of the basket, one article on each line."""
    return "\n".join(f"{count} x {article}" for article, count in sorted(basket.state.items.items()))


@server.prompt
async def checkout(basket_id: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> str:
    """Ask for the order to be confirmed."""
    return f"Confirm this order: {', '.join(sorted(basket.state.items)) or 'nothing yet'}."


if __name__ == "__main__":
    server.run(transport="http", port=int(sys.argv[1] if len(sys.argv) > 1 else 8000), show_banner=False)
