"""What the links of this process to one server share: the eras that it offers, and its circuit.

There is one entry per target, for as long as a link refers to it; what a URL offers is kept for longer. Sessions and
preferences belong to each link. Where one caller's failures say nothing of others', each caller's links have an entry,
and so a circuit, of their own.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import cast
from weakref import WeakValueDictionary

from holdfast.core.circuit import THRESHOLD, Circuit
from holdfast.core.eras import Offers
from holdfast.errors import HoldfastError
from holdfast.links.target import CommandTarget, HttpTarget, ObjectTarget, Target


@dataclass(eq=False)
class Peer:
    """A server, as far as it is known."""

    offers: Offers = field(default_factory=Offers)
    circuit: Circuit = field(default_factory=Circuit)
    last_failure: HoldfastError | None = None
    """Why it did not start, the last time that it did not."""

    def not_started(self, failure: HoldfastError) -> None:
        """A program did not start."""
        self.last_failure = failure

    def first_without_session(self) -> bool:
        """True for the first link that finds no session there, so that one warning is enough."""
        first = not self.offers.reported_sessionless
        self.offers.reported_sessionless = True
        return first


REMEMBERED = 512  # URLs whose offers outlive their links: a run's next one asks no more than the first

_offers: OrderedDict[str, Offers] = OrderedDict()
_peers: WeakValueDictionary[object, Peer] = WeakValueDictionary()


def peer_of(target: Target, threshold: int = THRESHOLD, caller: str | None = None) -> Peer:
    """The one peer of a target, for links with that threshold. A target whose URL is found out at run time is its own
    server. `caller`: the peer for the links of that caller only."""
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
    key = key, threshold, caller
    peer = _peers.get(key)
    if peer is None:
        url = target.url if isinstance(target, HttpTarget) and isinstance(target.url, str) else None
        offers = Offers() if url is None else _offers_of(url)
        peer = _peers[key] = Peer(offers, Circuit(threshold))
    return peer


def _offers_of(url: str) -> Offers:
    offers = _offers.pop(url, None) or Offers()
    _offers[url] = offers
    while len(_offers) > REMEMBERED:
        _offers.popitem(last=False)
    return offers
