"""Who shares a link at the same time, as runs do that keep one: each is told of a loss, not only whoever calls first.

It owns what each has yet to be told. It refuses to keep anybody alive.
"""

from weakref import WeakKeyDictionary, WeakSet

from holdfast.links.wires.base import Loss


class Sharers:
    """Those of one link."""

    def __init__(self) -> None:
        self._now: WeakSet[object] = WeakSet()
        self._losses: WeakKeyDictionary[object, Loss] = WeakKeyDictionary()

    def __bool__(self) -> bool:
        return bool(self._now)

    def add(self, sharer: object) -> None:
        self._now.add(sharer)

    def remove(self, sharer: object) -> None:
        self._now.discard(sharer)
        self._losses.pop(sharer, None)

    def lost(self, loss: Loss) -> None:
        for sharer in self._now:
            self._losses[sharer] = loss

    def restored(self) -> None:
        """Nothing is missing any more."""
        self._losses.clear()

    def loss_of(self, sharer: object | None) -> Loss | None:
        """What the next unsafe call of this one has to be told."""
        return None if sharer is None else self._losses.get(sharer)

    def reported(self, sharer: object | None) -> None:
        if sharer is not None:
            self._losses.pop(sharer, None)
