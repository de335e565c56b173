"""State for each conversation, for each user, and for everyone, on FastMCP.

`python examples/preferences_fastmcp.py stdio` serves the user who starts it. With a port instead of `stdio` it serves
HTTP, where users are told apart by their tokens: give `server` the authentication that you use. SHOP names the store.
"""

import os
import sys

from fastmcp import FastMCP

import holdfast

STORE = os.environ.get("SHOP", "sqlite:///shop.db")


class Order(holdfast.SessionState):
    """What is ordered in one conversation: the model passes on an `order_id`."""

    articles: list[str] = []


class Preferences(holdfast.SessionState):
    """What a user likes, in all conversations and from all clients."""

    language: str = "en"


class Shop(holdfast.SessionState):
    """What the shop has sold to everyone."""

    sold: dict[str, int] = {}


orders = holdfast.Sessions(Order, STORE, per="conversation")
preferences = holdfast.Sessions(Preferences, STORE, per="user")
shops = holdfast.Sessions(Shop, STORE, per="everyone")

server = FastMCP("shop")
for sessions in (orders, preferences, shops):
    sessions.install(server)


@server.tool
@preferences.writes
async def speak(language: str, preferences: Preferences) -> str:
    """Change the language in which the user is answered."""
    preferences.language = language
    return preferences.language


@server.tool
@orders.writes
@shops.writes
@preferences.reads
async def order(article: str, order: Order, shop: Shop, preferences: Preferences) -> str:
    """Order an article."""
    order.articles.append(article)
    shop.sold[article] = shop.sold.get(article, 0) + 1
    return f"{preferences.language}: {len(order.articles)} ordered, {shop.sold[article]} sold"


if __name__ == "__main__":
    if sys.argv[1:] == ["stdio"]:
        server.run(transport="stdio", show_banner=False)
    else:
        server.run(transport="http", port=int(sys.argv[1] if len(sys.argv) > 1 else 8000), show_banner=False)
