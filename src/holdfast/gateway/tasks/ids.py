"""Ids of tasks as the other side sees them: with the server that has the task, sealed for one caller.

Nothing is kept for a task: its id names the server, also after a restart and in another process. A seal is made with a
key that the gateways of one store share; an id that another caller shows is like one that was never given out.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

from holdfast.core.exact import is_unicode
from holdfast.core.models import ANONYMOUS, Principal, Record
from holdfast.core.values import members
from holdfast.errors import BadAnswer, Conflict
from holdfast.stores.contract import Store

KIND = "gateway-key"  # of the record with the key
LONGEST_ID = 2_048  # characters of a task's own id: it goes into a header
_OF_SERVERS = "hft."
"""What ids begin with by which clients know the tasks of servers."""
_OF_CLIENTS = "hfc."
"""What ids begin with by which servers know the tasks of clients."""
_SEAL = 22  # characters of 128 bits in base64


def scope_of(principal: Principal, session: str | None) -> str:
    """Who may use a task: its caller; without a token, the session, if there is one."""
    return f"session {session}" if principal == ANONYMOUS and session is not None else f"caller {principal}"


class TaskIds:
    """The ids of the tasks of one gateway."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key: bytes | None = None

    @property
    def is_ready(self) -> bool:
        return self._key is not None

    async def recall(self) -> None:
        """Take the key from the store, if there is one."""
        if self._key is None:
            record = await self._store.get(KIND, "tasks")
            key = members(record.data).get("key") if record is not None else None
            self._key = bytes.fromhex(key) if isinstance(key, str) else None

    async def prepare(self) -> None:
        """Take the key from the store, or make one there; before the first id is sealed or read."""
        while self._key is None:
            await self.recall()
            if self._key is None:
                key = secrets.token_bytes(32)
                try:
                    await self._store.commit(Record(KIND, "tasks", ANONYMOUS, {"key": key.hex()}), expect=0)
                    self._key = key
                except Conflict:
                    continue  # another process was first

    def sealed(self, scope: str, server: str, id: str) -> str:
        """The id by which a client knows the task of a server."""
        if len(id) > LONGEST_ID or not is_unicode(id):
            raise BadAnswer(
                f"{server!r} gave a task an id of {len(id)} characters; at most {LONGEST_ID} are passed on",
                server=server,
            )
        return f"{_OF_SERVERS}{self._seal('server', scope, server, id)}.{server}.{id}"

    def opened(self, scope: str, servers: Iterable[str], id: str) -> tuple[str, str] | None:
        """Server and own id of a task that a client names; None: it was not given out to this caller."""
        if not id.startswith(_OF_SERVERS):
            return None
        seal, rest = id[len(_OF_SERVERS) :][:_SEAL], id[len(_OF_SERVERS) + _SEAL :]
        for server in servers:
            own = rest.removeprefix(f".{server}.")
            if own != rest and self._is_seal(seal, "server", scope, server, own):
                return server, own
        return None

    def sealed_of_client(self, session: str, server: str, id: str) -> str:
        """The id by which a server knows the task of a client, which no other server can use."""
        return f"{_OF_CLIENTS}{self._seal('client', session, server, id)}.{id}"

    def opened_of_client(self, session: str, server: str, id: str) -> str | None:
        """The client's own id of a task that a server names; None: it was not given out to this server."""
        if not id.startswith(_OF_CLIENTS):
            return None
        seal, own = id[len(_OF_CLIENTS) :][:_SEAL], id[len(_OF_CLIENTS) + _SEAL + 1 :]
        return own if self._is_seal(seal, "client", session, server, own) else None

    def _is_seal(self, seal: str, *parts: str) -> bool:
        return is_unicode(parts[-1]) and hmac.compare_digest(
            seal.encode("utf-8", "replace"), self._seal(*parts).encode()
        )

    def _seal(self, *parts: str) -> str:
        assert self._key is not None
        text = "".join(f"{len(part)}:{part}" for part in parts)
        digest = hmac.digest(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256)
        return base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")
