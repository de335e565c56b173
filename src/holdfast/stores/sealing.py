"""Sealed bodies: AES-256-GCM under a ring of keys.

Each body is bound to (kind, id, principal, rev, part): copied to another row, put back under a newer rev, or replaced
by plaintext, it is refused. It can't notice a whole row that was put back, rev and all. Names, principals and
times are not hidden; they must stay searchable.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.errors import ConfigError, CorruptRecord
from holdfast.stores.codec import SEALED, Codec, Name

KEY_BYTES = 32
UNSEALED = "unseal"
"""The phase in an error about a body that is not sealed where all should be: the store may be from before the keys."""
_NONCE_BYTES = 12
_MARK_BYTES = 4  # of the key's digest, to find it in the ring; not a secret


def new_key() -> str:
    """A fresh key, as text for a file or the environment."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def read_key(key: bytes | str, number: int = 1) -> bytes:
    """The 32 bytes of a key given as bytes or base64 text. The error never shows the key."""
    raw = key
    if isinstance(raw, str):
        try:
            raw = base64.b64decode(raw.strip().replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            raw = b""
    if len(raw) != KEY_BYTES:
        raise ConfigError(
            f"sealing key {number} is not {KEY_BYTES} bytes of base64",
            remedy="make one with `holdfast store key`",
        )
    return raw


class SealingCodec(Codec):
    """The first key seals; any key of the ring opens."""

    def __init__(self, max_bytes: int, keys: Sequence[bytes | str]) -> None:
        super().__init__(max_bytes)
        if not keys:
            raise ConfigError("keys is empty", remedy="give at least one sealing key, or keys=None for none")
        raw = [read_key(key, number) for number, key in enumerate(keys, 1)]
        self._ring = {_mark(key): AESGCM(key) for key in raw}
        self._first = _mark(raw[0])

    def seal(self, name: Name, body: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return SEALED + self._first + nonce + self._ring[self._first].encrypt(nonce, body, _bound_to(name))

    def unseal(self, name: Name, body: bytes) -> bytes:
        kind, id, _, rev, part = name
        if not body.startswith(SEALED):
            raise CorruptRecord(
                f"the {part} of {kind}/{id} is not sealed, and the store was opened with keys",
                kind=kind,
                id=id,
                phase=UNSEALED,
                remedy="`holdfast store reseal --plaintext` seals what was written before there were keys; else end it",
            )
        mark, nonce, box = _split(body)
        key = self._ring.get(mark)
        if key is None:
            for other in self._ring.values():  # the mark is no part of what was sealed: it may be what is damaged
                with suppress(InvalidTag):
                    return other.decrypt(nonce, box, _bound_to(name))
            raise ConfigError(
                f"{kind}/{id} is sealed with key {mark.hex()}, which is not among the {len(self._ring)} keys given",
                kind=kind,
                id=id,
                remedy="add that key to the ring",
            )
        try:
            return key.decrypt(nonce, box, _bound_to(name))
        except InvalidTag:
            raise CorruptRecord(
                f"the {part} of {kind}/{id} was not sealed for this record at rev {rev}: changed, copied or put back",
                kind=kind,
                id=id,
                remedy="restore it from a backup, or end it: `holdfast store end URL KIND ID`",
            ) from None

    def is_current(self, body: bytes) -> bool:
        """Sealed with the first key."""
        return body.startswith(SEALED + self._first)

    def reseal(self, name: Name, body: bytes, *, plaintext: bool) -> bytes:
        """The same content under the first key. With `plaintext`, bodies that are not sealed are trusted as they are:
        so a store becomes sealed, once. Without, they are refused like everywhere else."""
        if plaintext and not body.startswith(SEALED):
            return self.seal(name, body)
        return self.seal(name, self.unseal(name, body))


def _mark(key: bytes) -> bytes:
    return hashlib.sha256(b"holdfast key mark" + key).digest()[:_MARK_BYTES]


def _split(body: bytes) -> tuple[bytes, bytes, bytes]:
    start = len(SEALED)
    middle = start + _MARK_BYTES
    return body[start:middle], body[middle : middle + _NONCE_BYTES], body[middle + _NONCE_BYTES :]


def _bound_to(name: Name) -> bytes:
    """Every field with its length before it, so that no two lists of fields give the same bytes."""
    fields = [str(field).encode() for field in name]
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)
