"""Several processes on one store: nothing is lost, whoever dies and whenever."""

import asyncio
import random
import secrets
import signal

import pytest

import holdfast
from holdfast.stores import LogEntry, Notice, Record
from holdfast.stores.sealing import new_key
from tests.deadlines import patience
from tests.stores.processes import (
    WAIT,
    Worker,
    claim_and_freeze,
    edit_for_ever,
    edit_many,
    just_open,
    publish_many,
    workers,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def kind() -> str:
    return f"processes-{secrets.token_hex(6)}"


async def _create(url: str, kind: str, keys: list[str] | None = None) -> None:
    async with holdfast.open_store(url, keys=keys) as store:
        await store.commit(Record(kind, "shared", data={"count": 0}), expect=0)


async def whole_log(store: holdfast.Store, kind: str) -> list[LogEntry]:
    log: list[LogEntry] = []
    while page := await store.log(kind, "shared", after=len(log), limit=5_000):
        log += page
    return log


@pytest.mark.promise("store.processes")
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
async def test_four_processes_with_five_tasks_lose_none_of_a_thousand_edits(
    url: str, kind: str, sealed: bool, request: pytest.FixtureRequest
) -> None:
    keys = [new_key()] if sealed else None
    if sealed and not url.startswith("sqlite"):  # sealed and plain records do not mix in one place
        url = request.getfixturevalue("postgres" if url.startswith("postgresql") else "valkey").sealed_url
    await _create(url, kind, keys)
    crew = [Worker(edit_many, url, kind, 5, 50, keys) for _ in range(4)]
    with workers(*crew):
        for worker in crew:
            assert worker.receive() == "ready"
        for worker in crew:
            worker.pipe.send("go")
        for worker in crew:
            assert await asyncio.to_thread(worker.receive) == "done"
            worker.join()
    async with holdfast.open_store(url, keys=keys) as store:
        record = await store.get(kind, "shared")
        assert record is not None
        assert (record.data, record.rev) == ({"count": 1000}, 1001)
        log = await store.log(kind, "shared", limit=2000)
        assert [entry.rev for entry in log] == list(range(2, 1002))
        assert len({str(entry.data) for entry in log}) == 1000


@pytest.mark.promise("store.sigkill")
async def test_killing_writers_fifty_times_leaves_every_commit_whole(url: str, kind: str) -> None:
    await _create(url, kind)
    confirmed: list[tuple[str, int]] = []
    crew = [Worker(edit_for_ever, url, kind) for _ in range(3)]
    luck = random.Random(7)
    with workers(*crew):
        for _ in range(50):
            victim = crew.pop(0)
            confirmed += [await asyncio.to_thread(victim.receive) for _ in range(luck.randint(1, 5))]
            if victim.pipe.poll(luck.uniform(0, 0.003)):  # somewhere within the next edit, or the one after it
                confirmed.append(victim.pipe.recv())
            confirmed += victim.kill()
            crew.append(Worker(edit_for_ever, url, kind))
        for worker in crew:
            confirmed += worker.kill()
    async with holdfast.open_store(url) as store:
        record = await store.get(kind, "shared")
        assert record is not None
        log = await whole_log(store, kind)
        assert record.data == {"count": record.rev - 1}
        assert [entry.seq for entry in log] == list(range(1, 2 * record.rev - 1))
        assert [entry.rev for entry in log] == [rev for rev in range(2, record.rev + 1) for _ in range(2)]
        assert [f"{entry.data}!" for entry in log[::2]] == [entry.data for entry in log[1::2]]
        written = {entry.data: entry.rev for entry in log}
        assert len(confirmed) >= 50
        assert all(written[name] == rev for name, rev in confirmed)
        assert (await store.commit(record, expect=record.rev)).rev == record.rev + 1  # no lock was left behind


@pytest.mark.promise("store.fence")
async def test_an_owner_paused_by_the_system_is_refused_when_it_wakes(url: str, kind: str) -> None:
    await _create(url, kind)
    sleeper = Worker(claim_and_freeze, url, kind)
    with workers(sleeper):
        token = await asyncio.to_thread(sleeper.receive)
        sleeper.send_signal(signal.SIGSTOP)
        async with holdfast.open_store(url) as store:
            async with asyncio.timeout(patience(WAIT)):
                while await store.holder(kind, "shared") is not None:
                    await asyncio.sleep(0)
            mine = await store.claim(kind, "shared", owner="me", ttl=30)
            assert mine.token > token
            sleeper.send_signal(signal.SIGCONT)
            sleeper.pipe.send("go")
            assert "refused: claim" in await asyncio.to_thread(sleeper.receive)
            record = await store.get(kind, "shared")
            assert record is not None
            assert record.data == {"count": 0}
            await store.commit(record, expect=1, fence=mine.token)
        sleeper.join()


@pytest.mark.promise("store.notices")
async def test_notices_of_another_process_are_heard_in_order(url: str, kind: str) -> None:
    publisher = Worker(publish_many, url, kind, 1000)
    with workers(publisher):
        assert await asyncio.to_thread(publisher.receive) == "ready"
        async with holdfast.open_store(url) as store, store.listen(kind) as heard:
            publisher.pipe.send("go")
            async with asyncio.timeout(patience(WAIT)):
                found = [await anext(heard) for _ in range(1000)]
        assert found == [Notice(kind, n) for n in range(1000)]
        assert await asyncio.to_thread(publisher.receive) == "done"
        publisher.join()


@pytest.mark.promise("store.open")
async def test_ten_processes_may_open_a_new_store_at_once(url: str, kind: str) -> None:
    crew = [Worker(just_open, url, kind) for _ in range(10)]
    with workers(*crew):
        for worker in crew:
            assert await asyncio.to_thread(worker.receive) == "ready"
        for worker in crew:
            worker.pipe.send("go")
        for worker in crew:
            assert await asyncio.to_thread(worker.receive) == "done"
            worker.join()
    async with holdfast.open_store(url) as store:
        assert await store.count(kind=kind) == 10
