"""A long turn that lasts a known number of renewals."""

from typing import Any

import holdfast
from tests.deadlines import until


async def lasts(sessions: "holdfast.Sessions[Any]") -> None:
    """A turn of five renewals, a third of its time to live each."""
    store = await sessions.open()
    renew, renewed = store.renew, 0

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal renewed
        renewed += 1
        return await renew(*args, **kwargs)

    store.renew = counted  # type: ignore[method-assign]
    await until(lambda: renewed == 5, 30)
