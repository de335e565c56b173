"""Commits of several records when writers, servers and connections die: whole or not at all, at every read."""

import asyncio
import random
import secrets
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import holdfast
from holdfast.stores import Claim, Record, Store, Write
from holdfast.stores.postgres.pool import AnswerLost as PostgresAnswerLost
from holdfast.stores.redis.pool import AnswerLost as RedisAnswerLost
from tests.deadlines import patience
from tests.servers import Postgres, Server, Valkey
from tests.stores.processes import WAIT, Worker, count_under_turns, transfer_for_ever, workers

pytestmark = pytest.mark.anyio

IDS = ["a", "b", "c"]
START = 1000


@pytest.fixture
def kind() -> str:
    return f"several-{secrets.token_hex(6)}"


@pytest.fixture(params=["postgres", "valkey"])
def running(request: pytest.FixtureRequest) -> Postgres | Valkey:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["postgres", "valkey"])
def mortal(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of our own: it will be killed."""
    server = Postgres() if request.param == "postgres" else Valkey()
    yield server
    server.close()


async def _begin(store: Store, kind: str) -> None:
    writes = [Write(Record(kind, id, data={"amount": START}), expect=0) for id in IDS]
    await store.commit_all(writes)


async def _sum(store: Store, kind: str) -> int:
    found = await store.get_all([(kind, id) for id in IDS])
    assert all(found), "an outage must not look like absence"
    return sum(cast("Any", record).data["amount"] for record in found)


async def _check_logs(store: Store, kind: str) -> dict[str, list[tuple[str, int]]]:
    """Every record is what its log adds up to; each transfer is in two logs. By whom, in which records at which rev."""
    transfers: dict[str, list[tuple[str, int]]] = {}
    changes: dict[str, int] = {}
    for record in await store.get_all([(kind, id) for id in IDS]):
        assert record is not None
        log = await store.log(kind, record.id, limit=10_000)
        assert [entry.rev for entry in log] == list(range(2, record.rev + 1))
        entries = [cast("dict[str, Any]", entry.data) for entry in log]
        assert cast("Any", record).data["amount"] == START + sum(entry["change"] for entry in entries)
        for entry, line in zip(entries, log, strict=True):
            transfers.setdefault(entry["by"], []).append((record.id, line.rev))
            changes[entry["by"]] = changes.get(entry["by"], 0) + entry["change"]
    assert all(len(places) == 2 for places in transfers.values())
    assert set(changes.values()) <= {0}
    return transfers


@pytest.mark.promise("store.transfer")
async def test_transfers_of_four_processes_that_are_killed_keep_the_sum_at_every_read(url: str, kind: str) -> None:
    confirmed: dict[str, Any] = {}
    stopping = asyncio.Event()
    looks = 0

    def confirm(said: list[Any]) -> None:
        confirmed.update((owner, places) for owner, places in said if places is not None)

    async def look() -> None:
        nonlocal looks
        async with holdfast.open_store(url) as other:
            while not stopping.is_set():
                assert await _sum(other, kind) == START * len(IDS)
                looks += 1

    async with holdfast.open_store(url) as store:
        await _begin(store, kind)
        looking = asyncio.create_task(look())
        crew = [Worker(transfer_for_ever, url, kind, IDS) for _ in range(4)]
        luck = random.Random(18)
        with workers(*crew):
            for _ in range(12):
                victim = crew.pop(0)
                for _ in range(luck.randint(1, 4)):
                    confirm([await asyncio.to_thread(victim.receive)])
                if victim.pipe.poll(luck.uniform(0, 0.003)):  # somewhere within the next transfer, or the one after it
                    confirm([victim.pipe.recv()])
                confirm(await asyncio.to_thread(victim.kill))
                crew.append(Worker(transfer_for_ever, url, kind, IDS))
            for worker in crew:
                confirm(await asyncio.to_thread(worker.kill))
        stopping.set()
        await looking
        assert looks > 10
        transfers = await _check_logs(store, kind)
        for owner, places in confirmed.items():
            assert sorted(transfers[owner]) == sorted(map(tuple, places))
        assert len(confirmed) >= 12


@pytest.mark.promise("store.turn")
async def test_turns_of_four_processes_are_all_had_and_none_meets_a_conflict(url: str, kind: str) -> None:
    async with holdfast.open_store(url) as store:
        await store.commit_all([Write(Record(kind, id, data={"count": 0}), expect=0) for id in ("left", "right")])
        crew = [Worker(count_under_turns, url, kind, 3, 5) for _ in range(4)]
        with workers(*crew):
            for worker in crew:
                assert await asyncio.to_thread(worker.receive) == "ready"
            for worker in crew:
                worker.pipe.send("go")
            for worker in crew:
                assert await asyncio.to_thread(worker.receive) == 0
                worker.join()
        found = await store.get_all([(kind, id) for id in ("left", "right")])
        assert [(record.data, record.rev) for record in found if record] == [({"count": 60}, 61)] * 2


@pytest.mark.promise("store.transfer")
async def test_a_server_killed_under_transfers_keeps_the_sum_and_what_returned(mortal: Server, kind: str) -> None:
    url = cast("Postgres", mortal).url + "?timeout=2"
    returned: dict[str, list[tuple[str, int]]] = {}
    unsettled: set[str] = set()
    failures = 0
    stopping = asyncio.Event()

    async def transfer(store: Store, name: str) -> None:
        nonlocal failures
        luck = random.Random(name)
        n = 0
        while not stopping.is_set():
            n += 1
            owner = f"{name}.{n}"
            amount = luck.randint(-50, 50)
            try:
                found = await store.get_all([(kind, id) for id in luck.sample(IDS, 2)])
                writes = [
                    Write(
                        cast("Record", record).with_data({"amount": cast("Any", record).data["amount"] + change}),
                        expect=cast("Record", record).rev,
                        entries=[{"by": owner, "change": change}],
                    )
                    for record, change in zip(found, (amount, -amount), strict=True)
                ]
                done = await store.commit_all(writes)
                returned[owner] = [(record.id, record.rev) for record in done]
            except holdfast.errors.Conflict:
                await asyncio.sleep(0)
            except holdfast.errors.WriteUnsettled:
                unsettled.add(owner)
                failures += 1
            except holdfast.errors.StoreDown:
                failures += 1

    async def look(store: Store) -> None:
        while not stopping.is_set():
            try:
                assert await _sum(store, kind) == START * len(IDS)
            except holdfast.errors.StoreDown:
                await asyncio.sleep(0)

    async with holdfast.open_store(url) as store:
        await _begin(store, kind)
        crew = [asyncio.create_task(transfer(store, f"w{n}")) for n in range(6)]
        crew += [asyncio.create_task(look(store)) for _ in range(2)]
        for _ in range(3):
            await _grown(crew, lambda: len(returned), 30)
            await asyncio.to_thread(mortal.kill)
            await _grown(crew, lambda: failures, 5)
            await asyncio.to_thread(mortal.start)
        await _grown(crew, lambda: len(returned), 10)
        stopping.set()
        await asyncio.gather(*crew)
        transfers = await _check_logs(store, kind)
    for owner, places in returned.items():
        assert sorted(transfers[owner]) == sorted(places)
    assert set(transfers) - set(returned) <= unsettled  # what came back as StoreDown was not written


async def _grown(crew: list[asyncio.Task[None]], number: Callable[[], int], by: int) -> None:
    before = number()
    async with asyncio.timeout(patience(WAIT)):
        while number() < before + by:
            for task in crew:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)


class _losing:  # noqa: N801  # reads as a verb where it is used
    """The server's next answer is thrown away after it came; or the question is never sent."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, *, sent: bool = True) -> None:
        pool = cast("Any", store)._pool
        name, lost = ("_ask", PostgresAnswerLost) if hasattr(pool, "_ask") else ("script", RedisAnswerLost)
        ask = getattr(pool, name)

        async def once(*given: object, **how: object) -> object:
            monkeypatch.undo()
            if sent:
                await ask(*given, **how)
                await self.meanwhile()
            raise lost("the connection broke", "test", None)

        self.arm = lambda: monkeypatch.setattr(pool, name, once)

    async def meanwhile(self) -> None:
        """What others do before the answer is known to be lost."""


@pytest.mark.promise("store.settled")
async def test_a_commit_of_several_whose_answer_was_lost_is_settled_as_a_whole(
    running: Postgres | Valkey, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.open_store(running.url) as store, holdfast.open_store(running.url) as other:
        a, b = await store.commit_all([Write(Record(kind, id, data=0), expect=0) for id in "ab"])
        claim = await store.claim(kind, "a", owner="me", ttl=60)
        writes = [
            Write(a.with_data(1), expect=1, entries=["a"], fence=claim.token),
            Write(b.with_data(1), expect=1, entries=["b"]),
            Write(Record(kind, "c", data=1), expect=0),
        ]
        _losing(store, monkeypatch, sent=False).arm()
        with pytest.raises(holdfast.errors.StoreDown):
            await store.commit_all(writes, release=[claim])
        assert await store.holder(kind, "a") == claim
        assert await store.get_all([(kind, id) for id in "abc"]) == [a, b, None]

        losing = _losing(store, monkeypatch)
        losing.arm()
        made = await store.commit_all(writes, release=[claim])
        assert made == await store.get_all([(kind, id) for id in "abc"])
        assert [(record.rev, record.data) for record in made] == [(2, 1), (2, 1), (1, 1)]
        assert await store.holder(kind, "a") is None
        assert [[e.data for e in await store.log(kind, id)] for id in "ab"] == [["a"], ["b"]]

        async def overwrite_one() -> None:
            await other.commit(made[0].with_data("theirs"), expect=3)

        losing = _losing(store, monkeypatch)
        losing.meanwhile = overwrite_one  # type: ignore[method-assign]
        losing.arm()
        again = [Write(record.with_data(2), expect=record.rev) for record in made]
        found = await store.commit_all(again)  # the second record still shows that all of it happened
        assert [(record.rev, record.data, record.created) for record in found] == [
            (record.rev + 1, 2, record.created) for record in made
        ]
        assert len({record.touched for record in found}) == 1

        async def overwrite_all() -> None:
            for record in found:
                await other.commit(record.with_data("theirs"), expect=(await other.get(kind, record.id)).rev)

        found = [record for record in await store.get_all([(kind, id) for id in "abc"]) if record]
        losing = _losing(store, monkeypatch)
        losing.meanwhile = overwrite_all  # type: ignore[method-assign]
        losing.arm()
        with pytest.raises(holdfast.errors.WriteUnsettled, match="and 2 more"):
            await store.commit_all([Write(record.with_data(3), expect=record.rev) for record in found])

        claims = [await store.claim(kind, id, owner="me", ttl=60) for id in "ab"]
        _losing(store, monkeypatch).arm()
        with pytest.raises(holdfast.errors.WriteUnsettled):
            await store.commit_all([], release=claims)
        _losing(store, monkeypatch).arm()
        with pytest.raises(holdfast.errors.WriteUnsettled):
            await store.begin_turns([(kind, id) for id in "ab"], owner="me", ttl=60)
        await store.begin_turns([(kind, id) for id in "ab"], owner="me", ttl=60)  # the same owner may ask again


@pytest.mark.promise("store.round-trips")
async def test_several_records_cost_one_round_trip(running: Postgres | Valkey, kind: str) -> None:
    async with holdfast.open_store(running.url) as store:
        names = [(kind, id) for id in "abcd"]
        await _everything(store, names)  # from here on the server knows the statements
        pool = cast("Any", store)._pool
        name, trips = "commands" if isinstance(running, Valkey) else "_ask", 0
        ask = getattr(pool, name)

        async def counted(*given: object, **how: object) -> object:
            nonlocal trips
            trips += 1
            return await ask(*given, **how)

        setattr(pool, name, counted)
        assert await _everything(store, [(kind, id) for id in "efgh"], lambda: trips) == [1, 2, 3, 4, 5, 6]


async def _everything(store: Store, names: list[tuple[str, str]], trips: Callable[[], int] = int) -> list[int]:
    """What a call does, and the round trips that it had made after each step."""
    after: list[int] = []
    turns = await store.begin_turns(names, owner="me", ttl=60)
    after.append(trips())
    fresh = [
        Write(Record(*name), expect=0, entries=[1], fence=t.claim.token) for name, t in zip(names, turns, strict=True)
    ]
    made = await store.commit_all(fresh, release=[turn.claim for turn in turns])
    after.append(trips())
    turn = await store.begin_turn(*names[0], owner="me", ttl=60)
    after.append(trips())
    [made[0]] = await store.commit_all([Write(made[0], expect=1, fence=turn.claim.token)], release=[turn.claim])
    after.append(trips())
    await store.get_all(names)
    after.append(trips())
    await store.commit_all([Write(record, expect=record.rev, entries=[2]) for record in made])
    after.append(trips())
    return after


@pytest.mark.promise("store.turn")
async def test_ends_touches_and_commits_that_release_never_lock_each_other_out(postgres: Postgres, kind: str) -> None:
    """On PostgreSQL a deadlock would be undone after a second, as an error: there is none."""
    async with holdfast.open_store(postgres.url) as store:
        for turn in range(30):
            ids = [f"{turn}.{id}" for id in range(4)]
            records = await store.commit_all([Write(Record(kind, id, idle=60), expect=0) for id in ids])
            claims = [await store.claim(kind, id, owner="me", ttl=60) for id in ids]
            writes = [Write(record, expect=1, fence=claim.token) for record, claim in zip(records, claims, strict=True)]
            calls: list[Any] = [
                store.commit_all(writes[::-1], release=claims),
                store.commit_all(writes, release=claims[::-1]),
                *(store.touch(kind, id, fence=claim.token) for id, claim in zip(ids, claims, strict=True)),
                *(store.end(kind, id, fence=claim.token) for id, claim in zip(ids[2:], claims[2:], strict=True)),
                store.begin_turns([(kind, id) for id in reversed(ids)], owner="you", ttl=60),
                store.reap(kind=kind),
            ]
            results = await asyncio.gather(*calls, return_exceptions=True)
            unexpected = [
                result
                for result in results
                if isinstance(result, BaseException)
                and not isinstance(result, holdfast.errors.Conflict | holdfast.errors.Ended | holdfast.errors.Busy)
            ]
            assert not unexpected
    log = (postgres.folder / "server.log").read_text()
    assert kind not in log
    assert "deadlock detected" not in log


@pytest.mark.promise("store.corrupt")
async def test_a_key_of_another_type_keeps_a_commit_of_several_from_being_written_in_part(
    valkey: Valkey, kind: str
) -> None:
    async with holdfast.open_store(valkey.url) as store:
        a = await store.commit(Record(kind, "a", data=0), expect=0)
        pool = cast("Any", store)._pool
        await pool.command("SET", f"holdfast:l:{kind}\x1fb", "not a log")
        try:
            with pytest.raises(holdfast.errors.CorruptRecord):
                await store.commit_all([Write(a, expect=1), Write(Record(kind, "b"), expect=0, entries=["x"])])
            assert await store.get_all([(kind, "a"), (kind, "b")]) == [a, None]
        finally:
            await pool.command("DEL", f"holdfast:l:{kind}\x1fb")


@pytest.mark.promise("store.turn")
async def test_a_turn_on_a_damaged_record_leaves_no_claim(running: Postgres | Valkey, kind: str) -> None:
    async with holdfast.open_store(running.url) as store:
        for id in "ab":
            await store.commit(Record(kind, id), expect=0)
        if isinstance(running, Postgres):
            running.psql(f"UPDATE holdfast_records SET body = 'x' WHERE kind = '{kind}' AND id = 'b'")
        else:
            await cast("Any", store)._pool.command("HSET", f"holdfast:r:{kind}\x1fb", "b", "x")
        with pytest.raises(holdfast.errors.CorruptRecord):
            await store.begin_turns([(kind, id) for id in "ab"], owner="me", ttl=60)
        assert [await store.holder(kind, id) for id in "ab"] == [None, None]
        await store.end(kind, "b")


@pytest.mark.promise("store.release")
async def test_a_release_that_is_none_of_the_callers_is_refused(url: str, kind: str) -> None:
    async with holdfast.open_store(url) as store:
        mine = await store.claim(kind, "a", owner="me", ttl=60)
        forged = Claim(kind, "a", "me", mine.token + 1, mine.expires)
        with pytest.raises(holdfast.errors.Conflict):
            await store.commit_all([Write(Record(kind, "b"), expect=0)], release=[forged])
        assert await store.get(kind, "b", dead=True) is None
        assert await store.holder(kind, "a") == mine
