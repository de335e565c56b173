"""The methods that the protocol itself defines, of both eras. All others are of extensions and vendors."""

FROM_CLIENTS = frozenset(
    {
        "initialize", "ping", "server/discover", "subscriptions/listen", "tools/list", "tools/call", "prompts/list",
        "prompts/get", "resources/list", "resources/templates/list", "resources/read", "resources/subscribe",
        "resources/unsubscribe", "completion/complete", "logging/setLevel",
    }
)  # fmt: skip
FROM_SERVERS = frozenset({"ping", "sampling/createMessage", "elicitation/create", "roots/list"})
NOTICES_FROM_CLIENTS = frozenset(
    {
        "notifications/initialized", "notifications/cancelled", "notifications/progress",
        "notifications/roots/list_changed", "notifications/tasks/status",
    }
)  # fmt: skip
TASKS = "tasks/"
"""What the methods of tasks begin with, which both sides may call in 2025."""


def is_foreign(method: str) -> bool:
    """Is this a method that the protocol does not define, and that is not named like its tasks and notifications?"""
    return (
        method not in FROM_CLIENTS and method not in FROM_SERVERS and not method.startswith((TASKS, "notifications/"))
    )
