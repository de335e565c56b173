"""Sessions of all callers: whose they are, the store they are kept in, and settings that make no sense."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.models import Principal
from holdfast.state.sessions import Sessions
from holdfast.stores import open_store
from holdfast.stores.sealing import new_key
from tests.state.basket import ALICE, Basket

pytestmark = pytest.mark.anyio


@pytest.mark.promise("state.owners")
async def test_another_callers_session_answers_like_none(url: str) -> None:
    alice, bob = (Principal(f"{name}-{secrets.token_hex(4)}") for name in ("alice", "bob"))  # the store is shared
    async with open_store(url) as store:
        sessions = Sessions(Basket, store, quota=2)
        mine = await sessions.begin(alice)
        told: list[tuple[type, str]] = []
        for handle, caller in ((mine.handle, bob), ("s_never", bob), ("s_never", alice), ("odd\x00", alice), ("", bob)):
            with pytest.raises(holdfast.errors.NotFound) as refused:
                await sessions.find(handle, caller)
            told.append((type(refused.value), refused.value.what))
        assert len(set(told)) == 1
        ended = await sessions.begin(alice)
        with pytest.raises(holdfast.errors.LimitReached):
            await sessions.begin(alice)
        await ended.end()
        with pytest.raises(holdfast.errors.NotFound):  # an end is the owner's to know
            await sessions.find(ended.handle, bob)
        await sessions.begin(bob)
        assert [each.handle for each in await sessions.all(alice)] == [mine.handle]


@pytest.mark.promise("state.owners")
async def test_with_keys_nothing_readable_is_in_the_file(tmp_path: Path) -> None:
    keys, url = [new_key()], f"sqlite:///{tmp_path}/s.db"
    sealed = Sessions(Basket, url, keys=keys)
    session = await sealed.begin(ALICE, Basket(note="in the clear?"))
    assert (await sealed.find(session.handle, ALICE)).state.note == "in the clear?"
    await sealed.close()
    assert not any(b"in the clear?" in file.read_bytes() for file in tmp_path.iterdir())
    other = Sessions(Basket, url, keys=[new_key()])
    with pytest.raises(holdfast.errors.ConfigError, match="add that key to the ring"):
        await other.find(session.handle, ALICE)
    await other.close()


@pytest.mark.promise("state.real")
def test_a_store_in_memory_is_there_in_the_next_event_loop() -> None:
    sessions = holdfast.Sessions(Basket)
    begun = asyncio.run(sessions.begin())
    assert asyncio.run(sessions.find(begun.handle)).handle == begun.handle


@pytest.mark.promise("state.real")
async def test_a_closed_store_is_not_called_an_unknown_session() -> None:
    async with holdfast.open_store("memory:") as store:
        sessions = holdfast.Sessions(Basket, store)
        begun = await sessions.begin()
    with pytest.raises(holdfast.errors.LeaseClosed):
        await sessions.find(begun.handle)


@pytest.mark.promise("state.bad-input")
def test_bad_settings_are_refused_where_they_are_written() -> None:
    for settings, said in (
        ({"idle": 0}, "idle"),
        ({"max_age": -1.0}, "max_age"),
        ({"quota": 0}, "quota"),
        ({"history": 0}, "history"),
        ({"store": "mysql://x"}, "mysql"),
        ({"keys": ["short"]}, "key"),
    ):
        with pytest.raises(holdfast.HoldfastError, match=said):
            holdfast.Sessions(Basket, **settings)  # type: ignore[arg-type]
    with pytest.raises(holdfast.UsageError, match="SessionState"):
        holdfast.Sessions(dict)  # type: ignore[type-var]
    with pytest.raises(holdfast.UsageError, match="items has no default"):

        class Needs(holdfast.SessionState):
            items: list[str]

    with pytest.raises(holdfast.UsageError, match="no migration from version 1"):

        class Skips(holdfast.SessionState, version=3):
            @holdfast.state.migrate(from_version=2)
            @staticmethod
            def _v2(raw: dict[str, Any]) -> dict[str, Any]:
                return raw
