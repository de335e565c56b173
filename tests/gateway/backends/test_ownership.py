"""Who may run a program: one process at a time; renewed, released, and taken over from a process that is dead."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.clock import ManualClock
from holdfast.core.models import Record
from holdfast.core.values import JSON
from holdfast.errors import RunsElsewhere, StoreDown
from holdfast.gateway.auth import new_token
from holdfast.gateway.backends import ownership
from holdfast.gateway.backends.ownership import CLAIM_SECONDS, PROCESSES, Programs
from holdfast.gateway.config.file import Config
from holdfast.gateway.config.settings import Settings
from holdfast.gateway.gateway import Gateway
from holdfast.stores import open_store
from holdfast.stores.contract import Store
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import NOTEBOOK, Process, gateway


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Store]:
    async with open_store("memory:", clock=clock) as store:
        yield store


@pytest.mark.promise("gateway.one-owner")
async def test_only_one_process_has_it_until_it_is_released(store: Store) -> None:
    one, other = (Programs(store).claim("p", "notebook") for _ in range(2))
    await one.take()
    with pytest.raises(RunsElsewhere) as caught:
        await other.take()
    assert caught.value.retry_after == pytest.approx(CLAIM_SECONDS, abs=1)
    await one.release()
    await other.take()
    assert (one.held, other.held) == (False, True)
    await other.release()


@pytest.mark.promise("gateway.one-owner")
async def test_a_process_that_said_goodbye_is_not_waited_for(store: Store) -> None:
    dead, living = Programs(store), Programs(store)
    await store.commit(Record(PROCESSES, dead.owner), expect=0)
    left = dead.claim("p", "notebook")
    await left.take()
    await store.end(PROCESSES, dead.owner)
    mine = living.claim("p", "notebook")
    await mine.take()
    await mine.release()
    await left.release()


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(30)
    return process.pid


def sign_of_life(**other: JSON) -> dict[str, JSON]:
    data: dict[str, JSON] = {**ownership.whereabouts(), "address": "http://0.0.0.0:8000/mcp"}
    return data | other


@pytest.mark.promise("gateway.one-owner")
async def test_a_process_that_was_killed_on_this_machine_is_not_waited_for(store: Store) -> None:
    dead, living = Programs(store), Programs(store)
    await store.commit(Record(PROCESSES, dead.owner, data=sign_of_life(pid=ended_pid())), expect=0)
    left, mine = (each.claim("p", "notebook") for each in (dead, living))
    await left.take()
    await mine.take()
    for each in (left, mine):
        await each.release()


@pytest.mark.promise("gateway.one-owner")
@pytest.mark.parametrize(
    "place", [{"place": "another container"}, {"place": None}, {}], ids=["another", "unknown", "an earlier version"]
)
async def test_a_process_in_another_container_is_never_taken_for_an_ended_one(
    store: Store, clock: ManualClock, place: dict[str, JSON]
) -> None:
    """Its number means nothing here, and its host name and address may be the same."""
    theirs, ours = Programs(store), Programs(store)
    said = sign_of_life(pid=ended_pid())
    del said["place"]
    await store.commit(Record(PROCESSES, theirs.owner, data=said | place), expect=0)
    running, mine = (each.claim("p", "notebook") for each in (theirs, ours))
    await running.take()
    gateway = Gateway(Config(Settings(), {}), store, clock=clock)
    gateway.address = "http://0.0.0.0:8000/mcp"
    async with gateway.running():
        assert (await store.get(PROCESSES, theirs.owner)) is not None, "a gateway that starts ends no sign of life"
        with pytest.raises(RunsElsewhere):
            await mine.take()
    assert running.held
    await running.release()


@pytest.mark.promise("gateway.one-owner")
async def test_where_a_number_cannot_be_told_apart_no_process_counts_as_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "place", lambda: None)
    said = sign_of_life(pid=ended_pid())
    assert said["place"] is None
    assert not ownership.has_ended(said)


@pytest.mark.promise("gateway.one-owner")
def test_this_process_runs() -> None:
    assert not ownership.has_ended(sign_of_life())
    assert ownership.whereabouts()["pid"] == os.getpid()


class Unchanged:
    """The user of a program whose memory no other process has written to."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    async def is_unchanged(self) -> bool:
        return True

    async def end_program(self) -> None:
        self._ended.set()


@pytest.mark.promise("gateway.one-owner")
@pytest.mark.parametrize("taken", [False, True])
async def test_a_claim_that_ran_out_is_had_again_unless_another_began_the_program(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    monkeypatch.setattr(ownership, "RENEW_SECONDS", 0.01)
    mine, ended = Programs(store).claim("p", "notebook"), asyncio.Event()

    mine.serve(Unchanged(ended))
    await mine.take()
    before = await store.holder("program", "p")
    clock.advance(CLAIM_SECONDS + 1)  # both happen in one turn of the loop: nothing was renewed
    if taken:
        claim = await store.claim("program", "p", owner="other", ttl=CLAIM_SECONDS)
        await asyncio.wait_for(ended.wait(), patience(5))
        assert not mine.held
        assert await store.holder("program", "p") == claim
    else:
        async with asyncio.timeout(patience(5)):
            while (now := await store.holder("program", "p")) is None or now == before:
                await asyncio.sleep(0.005)
        assert mine.held
        assert not ended.is_set()
    await mine.release()
    await until(lambda: not any(task.get_name() == "own notebook" for task in asyncio.all_tasks()))


@pytest.mark.promise("gateway.one-owner")
@pytest.mark.parametrize("taken", [False, True])
async def test_a_process_that_stood_still_asks_before_it_uses_its_program_again(
    store: Store, clock: ManualClock, taken: bool
) -> None:
    mine, other = (Programs(store, clock).claim("p", "notebook") for _ in range(2))
    ended = asyncio.Event()

    mine.serve(Unchanged(ended))
    await mine.take()
    assert mine.held
    clock.advance(CLAIM_SECONDS + 1)
    assert not mine.held
    if taken:
        await other.take()
        with pytest.raises(RunsElsewhere):
            await mine.take()
        assert ended.is_set()
        assert other.held
    else:
        await mine.take()
        assert mine.held
        assert not ended.is_set()
    for each in (mine, other):
        await each.release()


@pytest.mark.promise("gateway.one-owner")
async def test_while_the_store_is_away_only_a_process_that_stood_still_is_in_doubt(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = asyncio.Event()

    async def away(*_: object, **__: object) -> None:
        tried.set()
        raise StoreDown("away")

    mine = Programs(store, clock).claim("p", "notebook")
    await mine.take()
    with monkeypatch.context() as patch:
        patch.setattr(ownership, "RENEW_SECONDS", 0.0)
        await mine.release()
        await mine.take()
        patch.setattr(store, "renew", away)
        for _ in range(3):  # it is asked again and again, and goes on
            tried.clear()
            await asyncio.wait_for(tried.wait(), patience(5))
            clock.advance(CLAIM_SECONDS / 2)
        await until(lambda: mine.held)
        patch.setattr(ownership, "RENEW_SECONDS", 60.0)
        tried.clear()
        await asyncio.wait_for(tried.wait(), patience(5))
        clock.advance(CLAIM_SECONDS + 1)
        with pytest.raises(StoreDown):
            await mine.take()
    await mine.take()
    assert mine.held
    await mine.release()


@pytest.mark.promise("gateway.one-owner")
@pytest.mark.parametrize("reuse", ["session", "principal", "shared"])
async def test_a_program_runs_in_one_gateway_and_another_refuses(
    tmp_path: Path, reuse: str, caplog: pytest.LogCaptureFixture
) -> None:
    token, hashed = new_token()
    settings: dict[str, Any] = {
        "store": f"sqlite:///{tmp_path}/s.db",
        "auth": {"tokens": [{"hash": hashed, "principal": "alice"}]},
    }
    servers = {"notebook": {**NOTEBOOK, "reuse": reuse, "start": "lazy"}}
    async with RawClient("", token) as client:
        async with gateway(tmp_path, servers, **settings) as one:
            client.url = one.url
            await until(lambda: one.gateway is not None and one.gateway.table.tools, 20)
            await client.initialize()
            assert (await client.call("notebook__write", text="a")).text == "noted, 1 so far"
            async with gateway(tmp_path, servers, **settings) as other:
                client.url = other.url
                refused = await client.call("notebook__write", text="b")
                assert refused.result["_meta"]["dev.holdfast/error"]["kind"] == "RunsElsewhere"
                assert refused.result["_meta"]["dev.holdfast/error"]["family"] == "Unavailable"
                assert one.url not in str(refused.last)
                assert any(f"runs in another gateway process, {one.url}" in text for text in caplog.messages)
                client.url = one.url
                assert (await client.call("notebook__write", text="b")).text == "noted, 2 so far"
        async with gateway(tmp_path, servers, **settings) as third:
            client.url = third.url
            told = await client.call("notebook__write", text="c")
            assert told.result["_meta"]["dev.holdfast/error"]["kind"] == "SessionReplaced"
            assert (await client.call("notebook__write", text="c")).text == "noted, 1 so far"


@pytest.mark.promise("gateway.one-owner")
async def test_the_program_of_a_killed_gateway_is_begun_elsewhere_and_told(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    servers = {"notebook": {**NOTEBOOK, "reuse": "shared", "start": "lazy"}}
    process = Process(tmp_path, servers)
    async with RawClient(await process.start(store)) as client:
        await client.initialize()
        async with asyncio.timeout(patience(20)):
            while not await client.tools():
                await asyncio.sleep(0.05)
        assert (await client.call("notebook__write", text="a")).text == "noted, 1 so far"
        async with gateway(tmp_path, servers, store=store) as other:
            client.url = other.url
            refused = await client.call("notebook__write", text="b")
            assert refused.result["_meta"]["dev.holdfast/error"]["kind"] == "RunsElsewhere"
            await process.stop(signal.SIGKILL)
            told = await client.call("notebook__write", text="b")
            assert told.result["_meta"]["dev.holdfast/error"]["kind"] == "SessionReplaced"
            assert (await client.call("notebook__write", text="b")).text == "noted, 1 so far"


@pytest.mark.promise("gateway.one-owner")
def test_a_process_that_has_ended_unnoticed_by_its_parent_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:  # nobody waits for it before the end of the block
        stat = Path(f"/proc/{child.pid}/stat")
        asyncio.run(until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z"))
        assert ownership.has_ended({"place": ownership.place(), "pid": child.pid})
