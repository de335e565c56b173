"""What the links of this process to one server share: the eras that it offers, and its circuit.

There is one entry per target, as long as a link refers to it; the eras of a URL are remembered for longer. Sessions and
preferences belong to each link. Where failures depend on the caller, each caller's links have an entry, and so a
circuit, of their own.
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
    """What is known about one server."""

    offers: Offers = field(default_factory=Offers)
    circuit: Circuit = field(default_factory=Circuit)
    last_failure: HoldfastError | None = None
    """The reason of its latest failed start."""

    def not_started(self, failure: HoldfastError) -> None:
        """Record that a program did not start."""
        self.last_failure = failure

    def first_without_session(self) -> bool:
        """True for the first link that finds no session there, so that only one warning is logged."""
        first = not self.offers.reported_sessionless
        self.offers.reported_sessionless = True
        return first


REMEMBERED = 512  # URLs whose eras are remembered after their links, so that later links need not probe again

_offers: OrderedDict[str, Offers] = OrderedDict()
_peers: WeakValueDictionary[object, Peer] = WeakValueDictionary()


def peer_of(target: Target, threshold: int = THRESHOLD, caller: str | None = None) -> Peer:
    """The one peer of a target, for links with that threshold.
    A target whose URL is a callable is a server of its own. With `caller`, the peer for the links of that caller only.
    """
    match target:
        case HttpTarget(url=str() as url):
            key: object = ("http", url)
        case ObjectTarget(server=server):
            key = ("object", id(server))
        case CommandTarget(command=command, args=args, cwd=cwd, env=env):
            named = frozenset(cast("dict[str, object]", env).items()) if isinstance(env, dict) else id(env)
            key = ("command", command, args, cwd, named)  # with another token it is another server
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
