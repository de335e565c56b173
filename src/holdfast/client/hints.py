"""Which tools may be called again after a fault, by their annotations in the server's listing, for the whole process.

Hints are kept by server and principal: they outlive the session and the run that listed the tools. They end when the
server reports that its tools changed, names another version in its handshake, or after `HINT_SECONDS`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.client.declaration import ServerDeclaration
from holdfast.core.models import Principal

HINT_SECONDS = 3_600.0  # a server may be redeployed with other tools and report nothing
SERVERS = 256  # hints are kept of the servers used last: declarations that differ in a token have no end
TOOLS = 1_000  # of one server
NAME_BYTES = 256  # of one tool; with the two above, at most 64 MiB from servers that list nonsense


@dataclass(slots=True, eq=False)
class Hints:
    """What one listing says of each tool: may it be repeated?"""

    repeatable: Mapping[str, bool]
    listed: float
    version: object
    revoked: bool = False
    """The server reported that its tools changed, or was listed again."""


_kept: OrderedDict[tuple[ServerDeclaration, Principal], Hints] = OrderedDict()


def learn(
    server: ServerDeclaration, principal: Principal, version: object, listed: Iterable[tuple[str, bool]], now: float
) -> Hints:
    """Keep what a whole listing says, by tool: may it be repeated? In place of an earlier one."""
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
    """Drop the hints about a server."""
    old = _kept.pop((server, principal), None)
    if old is not None:
        old.revoked = True


def of(server: ServerDeclaration, principal: Principal, version: object, now: float) -> Hints | None:
    """What is known of a server's tools. `version` is what it calls itself now; None before a handshake."""
    key = (server, principal)
    hints = _kept.get(key)
    if hints is None:
        return None
    if now - hints.listed > HINT_SECONDS or (version is not None and version != hints.version):
        forget(server, principal)
        return None
    _kept.move_to_end(key)
    return hints
