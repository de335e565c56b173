"""Cursors and page sizes. It owns the form of a scan's cursor; callers treat it as opaque."""

import json

from holdfast.errors import UsageError

MAX_PAGE = 10_000  # a page is held in memory whole


def cursor(kind: str, id: str) -> str:
    return json.dumps([kind, id])


def position(after: str | None) -> tuple[str, str] | None:
    """Where a cursor points, or `UsageError` for one that no scan gave out."""
    if after is None:
        return None
    try:
        match json.loads(after):
            case [str(kind), str(id)]:
                return kind, id
            case _:
                pass
    except (ValueError, TypeError, RecursionError):
        pass
    raise UsageError(f"not a cursor of a scan: {str(after)[:80]!r}", remedy="give `after` the `next` of a page")


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise UsageError(f"limit must be from 1 to {MAX_PAGE:,}, not {limit!r}")
