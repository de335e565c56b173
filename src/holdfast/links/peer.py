"""What all links of this process to one server know together: its era and its circuit.

It owns one entry per target for as long as a link holds on to it. It refuses to know sessions: those are each link's.
"""

from dataclasses import dataclass, field
from typing import cast
from weakref import WeakValueDictionary

from holdfast.core.circuit import Circuit
from holdfast.core.eras import Era
from holdfast.errors import HoldfastError
from holdfast.links.target import CommandTarget, HttpTarget, ObjectTarget, Target


@dataclass(eq=False)
class Peer:
    """A server, as far as it is known."""

    era: Era | None = None
    circuit: Circuit = field(default_factory=Circuit)
    last_failure: HoldfastError | None = None
    """Why it did not start, the last time that it did not."""


_peers: WeakValueDictionary[object, Peer] = WeakValueDictionary()


def peer_of(target: Target) -> Peer:
    """The one peer of a target. A target whose URL is found out at run time is its own server."""
    match target:
        case HttpTarget(url=str() as url):
            key: object = ("http", url)
        case ObjectTarget(server=server):
            key = ("object", id(server))
        case CommandTarget(command=command, args=args, cwd=cwd, env=env):
            named = frozenset(cast("dict[str, object]", env).items()) if isinstance(env, dict) else id(env)
            key = ("command", command, args, cwd, named)  # another token makes another server of it
        case _:
            key = ("target", id(target))
    peer = _peers.get(key)
    if peer is None:
        peer = _peers[key] = Peer()
    return peer
