"""Between Redis's bytes and our rows: how a hash, a claim and a log entry are written there."""

from collections.abc import Sequence
from typing import Any

from holdfast.core.models import Claim
from holdfast.core.records import LogRow, Row
from holdfast.stores.codec import checked_row, corrupt


def text_of(number: float | None) -> str:
    return "" if number is None else repr(float(number))


def _number(value: bytes | None) -> float | None:
    return None if not value else float(value)


def row_from(kind: str, id: str, found: Sequence[bytes | None]) -> Row:
    """A row from the hash's fields, in the order of FIELDS."""
    principal, rev, body, last, created, touched, idle, max_age, ended, nonce = found
    try:
        fields = (
            None if principal is None else principal.decode(),
            int(rev or b""),
            body,
            int(last or b""),
            float(created or b""),
            float(touched or b""),
            _number(idle),
            _number(max_age),
            _number(ended),
            None if nonce is None else nonce.decode(),
        )
    except ValueError as error:
        raise corrupt(kind, id, str(error)) from None
    return checked_row(kind, id, fields)


def refusal_from(kind: str, id: str, found: Sequence[Any]) -> tuple[float, Row | None, Claim | None]:
    """What a script found instead of writing: now, the row without its body, the claim."""
    fields = list(found[2:11])
    fields.insert(2, None)
    row = None if fields[1] is None else row_from(kind, id, fields)
    return float(found[1]), row, claim_from(kind, id, found[11:])


def claim_from(kind: str, id: str, found: Sequence[bytes | None] | None) -> Claim | None:
    if not found or found[0] is None:
        return None
    try:
        return Claim(kind, id, found[0].decode(), int(found[1] or b""), float(found[2] or b""))
    except ValueError:
        raise corrupt(kind, id, "its claim has fields of the wrong type") from None


def log_row_from(kind: str, id: str, packed: bytes, last: bytes) -> LogRow:
    try:
        rev, at, body = packed.split(b"|", 2)
        return LogRow(int(float(last)), int(rev), float(at), body)
    except ValueError:
        raise corrupt(kind, id, "its log has fields of the wrong type") from None


def packed_log(row: LogRow) -> bytes:
    return f"{row.rev}|{row.at:.17g}|".encode() + row.body
