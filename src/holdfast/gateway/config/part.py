"""What all parts of the gateway's file have in common."""

import re

from pydantic import BaseModel, ConfigDict

MIB = 1024 * 1024
_HASH = re.compile(r"sha256:[0-9a-f]{64}").fullmatch


class Part(BaseModel):
    """A part of the configuration: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def hash_checked(value: str) -> str:
    """A token's hash. Raises `ValueError` if it is none."""
    if not _HASH(value):
        raise ValueError("is not a hash like sha256:… of 64 digits; `holdfast token new` prints one")
    return value
