"""What the links of one backend have counted, those that were closed included."""

from weakref import WeakSet

from holdfast.links.link import Link


class LinkCounts:
    """The links of one backend that are not closed, and what the closed ones counted."""

    def __init__(self) -> None:
        self._links: WeakSet[Link] = WeakSet()
        self._replaced = 0
        self._unknown = 0

    def add(self, link: Link) -> None:
        self._links.add(link)

    def close(self, link: Link) -> None:
        """A link was closed; it may be closed again."""
        if link in self._links:
            self._links.discard(link)
            statistics = link.statistics()
            self._replaced += statistics.replacements
            self._unknown += statistics.unknown_outcomes

    @property
    def links(self) -> list[Link]:
        """The links that are not closed."""
        return list(self._links)

    @property
    def of_closed(self) -> tuple[int, int]:
        """Sessions that were replaced, and calls of unknown outcome, on links that were closed."""
        return self._replaced, self._unknown
