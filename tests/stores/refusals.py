"""What tests expect of a store that can't be opened: which error, with which words, and soon."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import holdfast
from tests.deadlines import patience


@contextmanager
def refused(kind: type[holdfast.HoldfastError], *words: str, never: str = "") -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        yield
    assert time.monotonic() - began < patience(5)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert not never or never not in f"{caught.value!r} {caught.value}"


async def use_once(url: str, **given: object) -> None:
    async with holdfast.open_store(url, **given) as store:  # type: ignore[arg-type]
        await store.get("k", "a")
