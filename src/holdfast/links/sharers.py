"""The concurrent users of a link, such as runs that share one: a loss is reported to each of them.

References are weak, so sharing keeps nothing alive.
"""

from weakref import WeakKeyDictionary, WeakSet

from holdfast.links.wires.base import Loss


class Sharers:
    """The sharers of one link, and the losses that are still to be reported to each."""

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
        """Clear all losses: the state was restored."""
        self._losses.clear()

    def loss_of(self, sharer: object | None) -> Loss | None:
        """The loss to report to this sharer's next unsafe call, or None."""
        return None if sharer is None else self._losses.get(sharer)

    def reported(self, sharer: object | None) -> None:
        if sharer is not None:
            self._losses.pop(sharer, None)
