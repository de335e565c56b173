"""Which tools may be called again after a fault, by their annotations in the server's listing. Shared by the process.

Hints are kept by server and principal and outlive the session and the run that listed the tools. They are dropped when
the server reports changed tools or names another version in its handshake, and after `HINT_SECONDS`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.client.declaration import ServerDeclaration
from holdfast.core.models import Principal
from holdfast.core.retry import HINT_SECONDS

__all__ = ["HINT_SECONDS", "Hints", "forget", "known", "learn", "saved_count"]

SERVERS = 256  # servers for which hints are kept, the last used ones: there may be many that differ in a token
TOOLS = 1_000  # of one server
NAME_BYTES = 256  # of one tool; with the two above, at most 64 MiB in all
MARKS = 65_536  # servers and principals for which it is known whether saved definitions are valid: two numbers each


@dataclass(slots=True, eq=False)
class Hints:
    """Whether each tool of one listing may be repeated."""

    repeatable: Mapping[str, bool]
    listed: float
    version: object
    revoked: bool = False
    """Set when the server reported changed tools or was listed again."""


_kept: OrderedDict[tuple[ServerDeclaration, Principal], Hints] = OrderedDict()
_saved_version: OrderedDict[int, int | None] = OrderedDict()
"""By the hash of server and principal:
the hash of the version whose saved definitions are valid; None if they are not.
"""


def learn(
    server: ServerDeclaration, principal: Principal, version: object, listed: Iterable[tuple[str, bool]], now: float
) -> Hints:
    """Record, from a complete listing, whether each tool may be repeated.
    It replaces earlier listings and definitions.
    """
    forget(server, principal)
    known: dict[str, bool] = {}
    for name, repeatable in listed:
        if len(known) >= TOOLS:
            break
        if len(name.encode("utf-8", "replace")) <= NAME_BYTES:
            known[name] = repeatable
    hints = _kept[server, principal] = Hints(known, now, version)
    while len(_kept) > SERVERS:
        _kept.popitem(last=False)
    return hints


def forget(server: ServerDeclaration, principal: Principal) -> None:
    """Drop the hints about a server. Earlier saved definitions of its tools are no longer used either."""
    _mark(hash((server, principal)), None)
    old = _kept.pop((server, principal), None)
    if old is not None:
        old.revoked = True


def known(server: ServerDeclaration, principal: Principal, version: object, now: float) -> Hints | None:
    """The hints about a server's tools. `version` is the server's current one; None before a handshake."""
    key = (server, principal)
    hints = _kept.get(key)
    if hints is None:
        return None
    if now - hints.listed > HINT_SECONDS or (version is not None and version != hints.version):
        forget(server, principal)
        return None
    _kept.move_to_end(key)
    return hints


def saved_count(server: ServerDeclaration, principal: Principal, version: object) -> bool:
    """Whether saved definitions are used:
    not after this process listed the tools or saw the server change; then only a listing is. `version` as in `known`.
    """
    key = hash((server, principal))
    if version is None:
        return _saved_version.get(key, 0) is not None
    now = hash(repr(version))
    if _saved_version.get(key, now) == now:
        _mark(key, now)
        return True
    _mark(key, None)
    return False


def _mark(key: int, version: int | None) -> None:
    _saved_version[key] = version
    _saved_version.move_to_end(key)
    while len(_saved_version) > MARKS:
        _saved_version.popitem(last=False)
