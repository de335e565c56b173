"""The loop around `commit`: read, change, write, and again if another writer was faster.

It goes on until the deadline, and then raises the last conflict.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from holdfast.core.models import Record
from holdfast.core.records import absent, ended, expired
from holdfast.core.values import JSON
from holdfast.errors import Conflict
from holdfast.stores.contract import Store

UPDATE_SECONDS = 30.0  # twenty writers on one record are through in a second or two
_LONGEST_PAUSE = 0.05


async def update(
    store: Store,
    kind: str,
    id: str,
    change: Callable[[JSON], JSON],
    *,
    entries: Sequence[JSON] = (),
    fence: int | None = None,
    timeout: float = UPDATE_SECONDS,
) -> Record:
    """Commit `change(data)` to the record `kind`/`id` of a `store`, on a fresh reading after each lost race.

    `entries` are appended to its log and `fence` is the token of a claim, as in `Store.commit`. After `timeout` seconds
    of lost races the last `Conflict` is raised. `change` may run several times, so it must do nothing but compute. It
    gets a copy and may return that copy changed.
    """
    deadline = time.monotonic() + timeout
    pause = 0.001
    while True:
        record = await store.get(kind, id, dead=True)
        if record is None:
            raise absent(kind, id)
        if record.ended is not None:
            raise expired(kind, id) if record.expired else ended(kind, id)
        try:
            return await store.commit(
                record.with_data(change(record.data)), expect=record.rev, entries=entries, fence=fence
            )
        except Conflict as conflict:
            if conflict.actual is None or time.monotonic() > deadline:  # a lost claim is not a race
                raise
        await asyncio.sleep(random.uniform(0, pause))
        pause = min(pause * 2, _LONGEST_PAUSE)
