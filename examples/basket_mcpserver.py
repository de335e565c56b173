"""A shopping basket on the SDK's MCPServer that is kept across calls, restarts and replicas, in both eras.

`python examples/basket_mcpserver.py 8000` serves it at http://127.0.0.1:8000/mcp. BASKETS names the store.
"""

import os
import sys

from mcp.server.mcpserver import MCPServer

import holdfast


class Basket(holdfast.SessionState):
    items: dict[str, int] = {}
    note: str = ""

    def put(self, article: str) -> None:
        self.items[article] = self.items.get(article, 0) + 1


sessions = holdfast.Sessions(Basket, store=os.environ.get("BASKETS", "sqlite:///baskets.db"))
server = MCPServer("shop")
sessions.install(server, create=["note"])  # create_basket, list_baskets, resume_basket, fork_basket, end_basket


@server.tool()
@sessions.writes  # adds the argument basket_id
async def add(article: str, basket: Basket) -> dict[str, int]:
    """Put one more of an article into the basket, and return the contents."""
    basket.put(article)
    return basket.items


@server.resource("basket://{basket_id}")
@sessions.reads
async def contents(basket: Basket) -> str:
    """The contents of the basket, one article on each line."""
    return "\n".join(f"{count} x {article}" for article, count in sorted(basket.items.items()))


@server.prompt()
@sessions.reads
async def checkout(basket: Basket) -> str:
    """Ask for the order to be confirmed."""
    return f"Confirm this order: {', '.join(sorted(basket.items)) or 'nothing yet'}."


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1] if len(sys.argv) > 1 else 8000))
