"""Records of a store for a table: all of one kind. It owns the pages, and refuses to know what the records mean."""

from holdfast.core.models import Record
from holdfast.stores import Store


async def all_records(store: Store, kind: str) -> list[Record]:
    """Every live record of a kind."""
    found: list[Record] = []
    after: str | None = None
    while True:
        page = await store.scan(kind=kind, after=after)
        found.extend(page.records)
        if page.next is None:
            return found
        after = page.next
