"""Cells that are wrong today, and how. A cell that comes to hold fails its test until it is taken out of its row."""

from dataclasses import dataclass

from tests.eras.cells import CELLS, FEATURES, Cell

ALL_GATEWAY = ("gateway-2025-2025", "gateway-2025-2026", "gateway-2026-2025", "gateway-2026-2026")
TRANSPORT = ("transport-2025-2025", "transport-2025-2026", "transport-2026-2025", "transport-2026-2026")
LINK_2025_2026 = ("transport-2025-2026", "dispatcher-2025-2026")
LINK_2026_2025 = ("transport-2026-2025", "dispatcher-2026-2025")
GATEWAY_2025 = ("gateway-2025-2025", "gateway-2025-2026")
LINK_CROSSED = LINK_2025_2026 + LINK_2026_2025


@dataclass(frozen=True)
class Wrong:
    """A feature by its name, its cells by theirs, and what comes instead of the right outcome."""

    feature: str
    cells: tuple[str, ...]
    symptom: str


def _all(symptom: str, cells: tuple[str, ...], *features: str) -> tuple[Wrong, ...]:
    return tuple(Wrong(feature, cells, symptom) for feature in features)


KNOWN_WRONG: tuple[Wrong, ...] = (
    # Handshake
    Wrong("the server's `extensions`", ALL_GATEWAY, "the gateway says none of them"),
    Wrong("the server's `experimental` capabilities", ALL_GATEWAY, "the gateway says none of them"),
    Wrong("`serverInfo` with title, icons, website", ALL_GATEWAY, "the client gets the gateway's own"),
    *_all(
        "the link refuses `server/discover` with -32601: the server speaks 2025",
        ("dispatcher-2026-2025",),
        "the server's capabilities",
        "the server's `extensions`",
        "the server's `experimental` capabilities",
        "`serverInfo` with title, icons, website",
        "instructions",
    ),
    # Tools and calls
    Wrong("parameters in headers (`x-mcp-header`)", LINK_2026_2025, "the header goes on to the 2025 server"),
    Wrong(
        "a parameter that goes into a header since the list was read",
        ("gateway-2025-2026",),
        "the client gets -32020, a code of 2026; the list is not read again",
    ),
    Wrong(
        "progress of the server: the client's token, message, total, `_meta`",
        TRANSPORT,
        "only progress, total and message pass; `_meta` and other members are lost",
    ),
    Wrong("progress of the client on a question", ("gateway-2025-2025",), "it does not reach the server"),
    Wrong("the level reaches the server", ("gateway-2026-2025", *LINK_2026_2025), "no `logging/setLevel` is sent"),
    Wrong("no log messages without a level", LINK_2026_2025, "they are passed on"),
    Wrong(
        "the server takes its question back",
        ("gateway-2025-2025",),
        "`notifications/cancelled` comes on the session's GET stream, not on the call's, where the question came",
    ),
    # Questions
    Wrong(
        "a question that the client has not declared: -32021 in 2026, no question in 2025",
        ("gateway-2025-2026",),
        "the client gets -32021, a code of 2026",
    ),
    *_all(
        "the client gets the server's request as it is, which 2026 does not have",
        LINK_2026_2025,
        "form elicitation: schema, `_meta`, unknown members, content of the answer",
        "form elicitation: declined",
        "URL elicitation",
        "sampling with tools",
        "roots",
        "a question in `prompts/get`",
        "a question in `resources/read`",
        "two questions at once",
        "three rounds of questions",
        "a question on the server's own stream in the middle of a call",
        "a changed or used `requestState` is refused: -32602",
    ),
    Wrong(
        "a question that the client has not declared: -32021 in 2026, no question in 2025",
        LINK_2026_2025,
        "the client gets the server's request as it is, or its error, without -32021",
    ),
    Wrong(
        "-32042, URLs to visit first: an error in 2025, `input_required` in 2026",
        LINK_2026_2025,
        "the client gets -32042, a code of 2025",
    ),
    # Changes and streams
    *_all(
        "the link does not subscribe at the server",
        LINK_CROSSED,
        "`tools/list_changed`, and the list after it",
        "`prompts/list_changed`, and the list after it",
        "`resources/list_changed`, and the list after it",
        "a subscription, and updates with `_meta` and unknown members",
        "a subscription to a resource that no list shows",
        "the end of a subscription reaches the server",
        "updates of nothing but what was subscribed to",
    ),
    *_all(
        "the server has no `subscriptions/listen`, and its error passes",
        LINK_2026_2025,
        "`subscriptions/listen`: nothing that was not asked for",
        "`tools/list_changed` on a call's own stream",
    ),
    Wrong("batches of 2025-03-26", GATEWAY_2025, "400: the version is agreed on, its batches are refused"),
    # Extensions
    Wrong("a vendor's method of the server", ALL_GATEWAY, "-32601"),
    Wrong("a vendor's notification of the client", ("gateway-2025-2025",), "it does not reach the server"),
    Wrong("a vendor's question of the server", ("gateway-2025-2025",), "the server gets -32601"),
    *_all(
        "no `tasks` capability, and -32601 for `tasks/*`",
        ("gateway-2025-2025",),
        "2025: a call as a task, `tasks/get`, `tasks/result`",
        "2025: `tasks/list`, `tasks/cancel`",
    ),
    Wrong(
        "2026: a call that becomes a task, `tasks/get|update|cancel` with `Mcp-Name`",
        ("gateway-2026-2026",),
        "the extension is not offered, and -32601 for `tasks/*`",
    ),
    Wrong(
        "2026: `notifications/tasks` for the `taskIds` of a listen",
        ("gateway-2026-2026",),
        "`taskIds` are not acknowledged",
    ),
    Wrong(
        "a task of 2026 never reaches a 2025 client",
        ("gateway-2025-2026", *LINK_2025_2026),
        "a client that declares the extension gets `task` without its `resultType`",
    ),
    Wrong(
        "codes of 2026 (-32020 to -32099) are others for a 2025 client",
        ("gateway-2025-2026",),
        "they are passed on as they are",
    ),
)


def symptom(feature: str, cell: Cell) -> str | None:
    """How a cell is wrong; None if it is right."""
    return next((each.symptom for each in KNOWN_WRONG if each.feature == feature and cell.name in each.cells), None)


def strangers() -> list[tuple[str, str]]:
    """Rows of the list that name no cell with a meaning."""
    meant = {(each.name, cell.name) for each in FEATURES for cell in CELLS if each.why_not(cell) is None}
    return [(each.feature, cell) for each in KNOWN_WRONG for cell in each.cells if (each.feature, cell) not in meant]
