"""Cursors, page sizes and filters. It owns the form of a scan's cursor; callers treat it as opaque."""

import json
from typing import get_args

from holdfast.core.models import check_key, check_name, check_seconds
from holdfast.core.records import State
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
                check_key(kind, id)
                return kind, id
            case _:
                pass
    except (ValueError, TypeError, RecursionError, UsageError):
        pass
    raise UsageError(f"not a cursor of a scan: {str(after)[:80]!r}", remedy="give `after` the `next` of a page")


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise UsageError(f"limit must be from 1 to {MAX_PAGE:,}, not {limit!r}")


def check_after(after: int) -> None:
    if type(after) is not int or not 0 <= after < 2**63:
        raise UsageError(f"after must be the number of a log entry, or 0, not {after!r:.80}")


def check_filters(kind: str | None, principal: str | None, state: str | None) -> None:
    if kind is not None:
        check_name(kind, "kind")
    if principal is not None:
        check_name(principal, "principal")
    if state is not None and state not in get_args(State):
        raise UsageError(f"state must be one of {', '.join(get_args(State))} or None, not {state!r:.80}")


def check_ages(kind: str | None, expired_for: float, ended_for: float) -> None:
    """What `reap` is asked: a negative age would reach into the living."""
    check_filters(kind, None, None)
    check_seconds(expired_for, "expired_for", zero=True)
    check_seconds(ended_for, "ended_for", zero=True)
