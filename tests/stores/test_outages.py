"""Servers that die, stop and come back under load: typed errors in time, nothing lost, the same store works again."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from typing import cast

import pytest

import holdfast
from holdfast import events
from holdfast.stores import JSON, Gap, Notice, Record
from holdfast.stores.postgres import notice_listener as postgres_ear
from holdfast.stores.redis import notice_listener as redis_ear
from holdfast.stores.sealing import new_key
from tests.deadlines import patience
from tests.servers import Postgres, Server, Valkey
from tests.stores.processes import Worker, edit_for_ever, publish_many, workers

pytestmark = pytest.mark.anyio

WAIT = 60.0


@pytest.fixture(scope="module", params=["postgres", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One of our own: it will suffer."""
    server = Postgres() if request.param == "postgres" else Valkey()
    yield server
    server.close()


@pytest.fixture
def url(server: Server) -> str:
    return cast("Postgres", server).url + "?timeout=2"


@pytest.fixture
def kind() -> str:
    return f"outage-{secrets.token_hex(6)}"


def _plus_one(data: JSON) -> JSON:
    return cast("int", data) + 1


async def _back(store: holdfast.Store) -> None:
    """Wait until the store answers again."""
    async with asyncio.timeout(patience(WAIT)):
        while True:
            try:
                await store.get("k", "a")
                return
            except holdfast.Unavailable:
                await asyncio.sleep(0.01)


@pytest.mark.promise("store.outage")
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
async def test_a_server_killed_under_load_loses_no_edit_that_returned(
    server: Server, url: str, kind: str, sealed: bool
) -> None:
    keys = [new_key()] if sealed else None
    returned: list[tuple[str, int]] = []
    failures: list[holdfast.HoldfastError] = []
    slowest = 0.0
    stopping = asyncio.Event()

    async def write(store: holdfast.Store, name: str) -> None:
        nonlocal slowest
        n = 0
        while not stopping.is_set():
            began = time.monotonic()
            try:
                record = await holdfast.stores.update(store, kind, "a", _plus_one, entries=[f"{name}.{n}"])
                returned.append((f"{name}.{n}", record.rev))
            except (holdfast.errors.StoreDown, holdfast.errors.WriteUnsettled) as error:
                failures.append(error)
            slowest = max(slowest, time.monotonic() - began)
            n += 1

    async def read(store: holdfast.Store) -> None:
        while not stopping.is_set():
            try:
                assert await store.get(kind, "a") is not None, "an outage must not look like absence"
            except holdfast.errors.StoreDown as error:
                failures.append(error)
                await asyncio.sleep(0)

    async with holdfast.open_store(url, keys=keys) as store:
        await store.commit(Record(kind, "a", data=0), expect=0)
        crew = [asyncio.create_task(write(store, f"w{n}")) for n in range(8)]
        crew += [asyncio.create_task(read(store)) for _ in range(2)]
        for _ in range(3):
            before = len(returned)
            async with asyncio.timeout(patience(WAIT)):
                while len(returned) < before + 50:
                    await asyncio.sleep(0)
            await asyncio.to_thread(server.kill)
            async with asyncio.timeout(patience(WAIT)):
                known = len(failures)
                while len(failures) < known + 20:
                    await asyncio.sleep(0)
            await asyncio.to_thread(server.start)
            await _back(store)
        stopping.set()
        await asyncio.gather(*crew)
        record = await store.get(kind, "a")
        assert record is not None
        log = await store.log(kind, "a", limit=10_000)
    assert [entry.rev for entry in log] == list(range(2, record.rev + 1))
    assert record.data == len(log)
    written = {entry.data: entry.rev for entry in log}
    assert all(written[name] == rev for name, rev in returned)
    # What came back as StoreDown was not written; what is unsettled may have been.
    assert (
        len(returned)
        <= len(log)
        <= len(returned) + sum(isinstance(e, holdfast.errors.WriteUnsettled) for e in failures)
    )
    assert slowest < patience(2 * 2 + 5 + 2), (
        "a call waits for a connection, its answer and the settling of it, and no longer"
    )


@pytest.mark.promise("store.settled")
async def test_a_commit_whose_answer_was_lost_is_settled_by_its_nonce(
    server: Server, url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.open_store(url) as store:
        record = await store.commit(Record(kind, "a", data=0), expect=0)
        lose = _losing_answers(store, monkeypatch)
        with lose:  # written, and the answer lost: the read-back finds it
            record = await store.commit(record.with_data(1), expect=1, entries=["once"])
        assert (record.rev, record.data) == (2, 1)
        assert [e.data for e in await store.log(kind, "a")] == ["once"]
        with lose, pytest.raises(holdfast.errors.WriteUnsettled):
            await store.claim(kind, "a", owner="me", ttl=5)
        with lose, pytest.raises(holdfast.errors.WriteUnsettled):
            await store.end(kind, "b") if isinstance(server, Valkey) else await store.release(
                holdfast.stores.Claim(kind, "a", "me", 1, 0.0)
            )
        await store.claim(kind, "a", owner="me", ttl=5)  # the same owner may ask again


class _losing_answers:  # noqa: N801  # reads as a verb where it is used
    """The next answer of the server is thrown away after it came, as if the connection had broken before it."""

    def __init__(self, store: holdfast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        from holdfast.stores.postgres import pool as postgres_pool
        from holdfast.stores.redis import pool as redis_pool

        self._pool = store._pool  # type: ignore[attr-defined]
        self._redis = isinstance(self._pool, redis_pool.RedisPool)
        self._lost = redis_pool.AnswerLost if self._redis else postgres_pool.AnswerLost
        self._name = "script" if self._redis else "row"

    def __enter__(self) -> None:
        call = getattr(self._pool, self._name)

        async def once(*given: object, **how: object) -> object:
            setattr(self._pool, self._name, call)
            await call(*given, **how)
            raise self._lost("the connection broke", "test", None)

        setattr(self._pool, self._name, once)

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.promise("store.paused")
async def test_a_server_paused_for_longer_than_a_claim_never_has_two_owners(
    server: Server, url: str, kind: str
) -> None:
    """The owner holds a claim for 1 s. The server is stopped for 4 s. Whoever owns it after, nobody else does."""
    async with holdfast.open_store(url) as store, holdfast.open_store(url) as other:
        record = await store.commit(Record(kind, "a", data=0), expect=0)
        mine = await store.claim(kind, "a", owner="me", ttl=1)
        server.pause()
        try:
            began = time.monotonic()
            while time.monotonic() - began < 4:  # each call waits out the 2 s of the URL
                refusals = await asyncio.gather(
                    other.claim(kind, "a", owner="you", ttl=1),
                    store.commit(record.with_data(1), expect=1, fence=mine.token),
                    store.get(kind, "a"),
                    return_exceptions=True,
                )
                for refusal in refusals:
                    assert isinstance(refusal, (holdfast.errors.StoreDown, holdfast.errors.WriteUnsettled)), refusal
        finally:
            server.resume()
        await _back(store)
        # Commands that waited in the server's buffers may have run when it woke; the rules held all the same.
        current = await store.get(kind, "a")
        assert current is not None
        assert current.data in (0, 1)
        async with asyncio.timeout(patience(WAIT)):
            while True:
                try:
                    yours = await other.claim(kind, "a", owner="them", ttl=30)
                    break
                except holdfast.errors.Busy:
                    await asyncio.sleep(0.01)
        assert yours.token > mine.token
        with pytest.raises(holdfast.errors.Conflict, match="no longer held"):
            await store.commit(current.with_data("late"), expect=current.rev, fence=mine.token)
        with pytest.raises(holdfast.errors.Conflict):
            await store.renew(mine, ttl=1)
        assert await store.holder(kind, "a") == yours


@pytest.mark.promise("store.gap")
async def test_ten_thousand_notices_of_another_process_and_a_gap_after_a_cut(
    server: Server, url: str, kind: str
) -> None:
    seen: list[object] = []
    publisher = Worker(publish_many, url, kind, 10_000)
    with workers(publisher):
        assert await asyncio.to_thread(publisher.receive) == "ready"
        async with holdfast.open_store(url, on_event=seen.append) as store, store.listen(kind) as heard:
            publisher.pipe.send("go")
            async with asyncio.timeout(patience(WAIT)):
                found = [await anext(heard) for _ in range(10_000)]
            assert found == [Notice(kind, n) for n in range(10_000)]
            assert await asyncio.to_thread(publisher.receive) == "done"
            publisher.join()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(patience(WAIT)):
                assert await anext(heard) == Gap()
                await store.publish(kind, "after the cut")
                assert await anext(heard) == Notice(kind, "after the cut")
            assert any(isinstance(event, events.ListenerFailed) for event in seen)


@pytest.mark.promise("store.gap")
async def test_a_listening_connection_that_went_silent_is_noticed(
    server: Server, url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgres_ear, redis_ear):
        monkeypatch.setattr(module, "PROOF_SECONDS", 0.2)
    failed = asyncio.Event()

    def note(event: object) -> None:
        if isinstance(event, events.ListenerFailed):
            failed.set()

    async with holdfast.open_store(url, on_event=note) as store, store.listen(kind) as heard:
        server.pause()
        try:
            async with asyncio.timeout(patience(WAIT)):
                await failed.wait()
        finally:
            server.resume()
        async with asyncio.timeout(patience(WAIT)):
            assert await anext(heard) == Gap()
            await store.publish(kind, 1)
            assert await anext(heard) == Notice(kind, 1)


@pytest.mark.promise("store.closed")
async def test_closing_waits_for_what_is_under_way_and_refuses_what_waits(url: str, kind: str) -> None:
    store = holdfast.open_store(f"{url}&connections=2")
    async with store:
        await store.commit(Record(kind, "a", data=0), expect=0)
        calls = [asyncio.create_task(store.commit(Record(kind, f"c{n}"), expect=0)) for n in range(20)]
        await asyncio.sleep(0)
    async with asyncio.timeout(patience(WAIT)):
        results = await asyncio.gather(*calls, return_exceptions=True)
    done = [r for r in results if isinstance(r, Record)]
    assert all(isinstance(r, Record | holdfast.errors.LeaseClosed | holdfast.UsageError) for r in results), results
    async with store:
        assert await store.count(kind=kind) == len(done) + 1


@pytest.mark.promise("store.sigkill")
async def test_a_killed_client_leaves_no_lock_behind(server: Server, url: str, kind: str) -> None:
    async with holdfast.open_store(url) as store:
        await store.commit(Record(kind, "shared", data={"count": 0}), expect=0)
        worker = Worker(edit_for_ever, url, kind)
        with workers(worker):
            await asyncio.to_thread(worker.receive)
            worker.kill()
        record = await holdfast.stores.update(store, kind, "shared", lambda data: data)
        assert record.rev >= 3
