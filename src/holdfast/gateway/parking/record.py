"""The record of a parked call: by it, another process knows that a call waited, and whose it was.

It holds neither the call nor its questions. Its name is a digest, so that a reader of the store can answer nothing.
"""

import logging
import secrets

from holdfast.core.models import Principal, Record
from holdfast.core.values import JSON, members
from holdfast.errors import HoldfastError
from holdfast.gateway.sessions.record import record_id
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

KIND = "parked-call"
PREFIX = "hfp_"
"""What every `requestState` of ours begins with; those of 2026 servers pass through."""


def new_state() -> str:
    """A name that can't be guessed: 256 bits. It holds no data itself, so nothing can be changed in it."""
    return PREFIX + secrets.token_urlsafe(32)


class ParkedRecords:
    """The records of calls that one process has parked. A store that is away costs the record, not the call."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def write(self, state: str, principal: Principal, digest: str, lifetime: float) -> None:
        data: JSON = {"owner": self._owner, "request": digest}
        try:
            await self._store.commit(Record(KIND, record_id(state), principal, data, idle=lifetime), expect=0)
        except HoldfastError as error:
            log.warning(
                "a parked call has no record, so that its client gets no reason if the gateway restarts: %s", error.what
            )

    async def end(self, state: str) -> None:
        """The state was used, or its call is over."""
        try:
            await self._store.end(KIND, record_id(state))
        except HoldfastError as error:
            log.info("the record of a parked call is left to expire: %s", error.what)

    async def was_elsewhere(self, state: str, principal: Principal, digest: str) -> bool:
        """Does, or did, another process hold this very call of this caller?"""
        record = await self._store.get(KIND, record_id(state))
        if record is None or record.principal != principal:
            return False
        data = members(record.data)
        return data.get("request") == digest and data.get("owner") != self._owner
