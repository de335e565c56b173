"""Unknown methods of extensions and vendors, and lost sessions, where a 2025 server answers both with 404."""

import asyncio
import re
from dataclasses import replace

from holdfast.core.eras import METHOD_NOT_FOUND, Era
from holdfast.core.lost_session import NO_SUCH_SESSION
from holdfast.core.methods import TASKS, is_foreign
from holdfast.core.verdicts import Seen, Verdict, judge
from holdfast.links.calls.exchange import NO_HEADERS, Exchanger
from holdfast.links.wires.base import Generation, Patience

PROBE_SECONDS = 10.0  # for the server to answer a ping


def may_be_unknown(method: str, seen: Seen) -> bool:
    """May a 404 mean the method? It does not where its text names the session, or where the protocol has the method."""
    is_optional = is_foreign(method) or method.startswith(TASKS)
    is_404 = seen.era is Era.Y2025 and seen.session_sent and seen.status == 404
    return is_404 and is_optional and re.search(NO_SUCH_SESSION, seen.text, re.IGNORECASE) is None


async def still_has_session(exchanger: Exchanger, generation: Generation, until: float | None) -> bool:
    """Ask the server: a ping that it answers, in whatever way, is one of a session that it has."""
    limit = asyncio.get_running_loop().time() + PROBE_SECONDS
    patience = Patience(limit if until is None else min(until, limit), PROBE_SECONDS)
    reply = await exchanger.exchange(generation, "ping", None, NO_HEADERS, patience)
    return reply.seen is None or judge(reply.seen) is Verdict.ANSWER


def as_unknown(seen: Seen) -> Seen:
    """The 404 with the code of an unknown method, unless it has one of its own."""
    return seen if seen.code is not None else replace(seen, code=METHOD_NOT_FOUND, text="Method not found")
