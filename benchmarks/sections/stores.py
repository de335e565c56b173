"""Stores compared with their raw drivers: the same statements by hand, in alternating rounds of one run."""

import asyncio
import sqlite3
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import holdfast
from benchmarks.sections.raw import DATA, TASKS, Operation, Subject, raw_postgres, raw_redis, raw_sqlite
from holdfast.stores import JSON, Record
from tests.servers import Postgres, Valkey

ROUNDS = 7
OPERATIONS = ("get", "edit", "append", "claim")

LEGEND = (
    "Microseconds an operation, median of 7 alternating rounds; `raw` is the same statements by hand on the driver, "
    "and the ratio is ours over raw. `edit` is a read and a compare-and-swap, `append` a commit with a log entry, "
    "`claim` a claim and its release. By hand on SQLite every statement is a hop to the driver's thread, ours is one a "
    "transaction; by hand on PostgreSQL each task has a connection of its own and no pool; by hand on Valkey it is "
    "redis-py's client and registered scripts (append-only file synced every second on both sides)."
)


@dataclass
class Contest:
    """Our store and the raw driver, by operation."""

    name: str
    ours: Subject
    raw: Subject | None
    rounds_of: int


async def measure(operation: Operation, tasks: int, count: int) -> float:
    """Seconds an operation, over `count` in all."""

    async def work(number: int) -> None:
        for _ in range(count // tasks):
            await operation(number)

    start = time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(tasks)))
    return (time.perf_counter() - start) / (count // tasks * tasks)


async def subject_of(store: holdfast.Store) -> Subject:
    """The operations of a user of the store, each task on a record of its own."""
    for number in range(max(TASKS)):
        await store.commit(Record("bench", str(number), data={**DATA, "n": 0}), expect=0)

    def plus_one(data: JSON) -> JSON:
        assert isinstance(data, dict)
        return {**data, "n": data["n"] + 1}  # type: ignore[operator]

    revs = [1] * max(TASKS)

    async def get(number: int) -> None:
        await store.get("bench", str(number))

    async def edit(number: int) -> None:
        revs[number] = (await holdfast.stores.update(store, "bench", str(number), plus_one)).rev

    async def append(number: int) -> None:
        record = Record("bench", str(number), data=DATA)
        revs[number] = (await store.commit(record, expect=revs[number], entries=[{"did": "append"}])).rev

    async def claim(number: int) -> None:
        await store.release(await store.claim("bench", str(number), owner="bench", ttl=60))

    return {"get": get, "edit": edit, "append": append, "claim": claim}


async def _made(path: Path) -> None:
    """The tables and the records that the statements by hand work on."""
    async with holdfast.open_store(f"sqlite:///{path}") as store:
        await subject_of(store)


async def compare(contest: Contest, progress: Progress) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    bar = progress.add_task(contest.name, total=len(OPERATIONS) * len(TASKS) * ROUNDS)
    # `append` writes data without a counter and `edit` needs one, so the order of OPERATIONS is part of the plan.
    for operation in OPERATIONS:
        for tasks in TASKS:
            ours: list[float] = []
            raw: list[float] = []
            for _ in range(ROUNDS):
                ours.append(await measure(contest.ours[operation], tasks, contest.rounds_of))
                if contest.raw:
                    raw.append(await measure(contest.raw[operation], tasks, contest.rounds_of))
                progress.advance(bar)
            micros = f"{statistics.median(ours) * 1e6:,.0f}"
            if raw:
                ratio = statistics.median(a / b for a, b in zip(ours, raw, strict=True))
                rows.append(
                    (
                        contest.name,
                        operation,
                        str(tasks),
                        micros,
                        f"{statistics.median(raw) * 1e6:,.0f}",
                        f"{ratio:.2f}",
                    )
                )
            else:
                rows.append((contest.name, operation, str(tasks), micros, "", ""))
    return rows


async def get_cost_by_size(folder: Path, scale: float) -> list[tuple[str, ...]]:
    """Does a get cost more among 100,000 records than among 1,000?"""
    found: dict[int, list[float]] = {}
    async with AsyncExitStack() as stack:
        stores: dict[int, holdfast.Store] = {}
        for size in (1_000, 100_000):
            path = folder / f"size{size}.db"
            store = await stack.enter_async_context(holdfast.open_store(f"sqlite:///{path}"))
            await store.commit(Record("bench", "template", data=DATA), expect=0)
            with sqlite3.connect(path) as db:
                columns = "principal, rev, body, last, created, touched, idle, max_age, ended, nonce, expires"
                db.execute(
                    "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?) "
                    f"INSERT INTO holdfast_records (kind, id, {columns}) "
                    f"SELECT 'bench', 'id' || i, {columns} FROM n, holdfast_records WHERE id = 'template'",
                    (size,),
                )
            db.close()
            stores[size] = store
        for turn in range(ROUNDS):
            for size, store in stores.items():
                ids = [f"id{(turn * 7919 + n * 104_729) % size}" for n in range(int(2000 * scale))]

                async def get(_: int, store: holdfast.Store = store, ids: list[str] = ids) -> None:
                    assert await store.get("bench", ids.pop()) is not None

                found.setdefault(size, []).append(await measure(get, 1, len(ids)))
    small, large = (statistics.median(found[size]) for size in (1_000, 100_000))
    return [("sqlite", f"{small * 1e6:,.0f}", f"{large * 1e6:,.0f}", f"{large / small:.2f}")]


def markdown(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ("---",) * len(head), *rows])


async def run(scale: float) -> str:
    console = Console(stderr=True)
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as name, Progress(console=console, transient=True) as progress:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            memory = await stack.enter_async_context(holdfast.open_store("memory:"))
            rows += await compare(Contest("memory", await subject_of(memory), None, int(4000 * scale)), progress)
            sqlite = await stack.enter_async_context(holdfast.open_store(f"sqlite:///{folder}/ours.db"))
            await _made(folder / "raw.db")
            raw = await stack.enter_async_context(raw_sqlite(folder / "raw.db"))
            rows += await compare(Contest("sqlite", await subject_of(sqlite), raw, int(640 * scale)), progress)
        sizes = await get_cost_by_size(folder, scale)
        async with AsyncExitStack() as stack:
            postgres, valkey = Postgres(synced=True), Valkey("--appendfsync", "everysec")
            stack.callback(postgres.close)
            stack.callback(valkey.close)
            store = await stack.enter_async_context(holdfast.open_store(postgres.url))
            raw = await stack.enter_async_context(raw_postgres(postgres.url))
            rows += await compare(Contest("postgresql", await subject_of(store), raw, int(1600 * scale)), progress)
            store = await stack.enter_async_context(holdfast.open_store(valkey.url))
            raw = await stack.enter_async_context(raw_redis(valkey.url))
            rows += await compare(Contest("valkey", await subject_of(store), raw, int(3200 * scale)), progress)
    text = "\n\n".join(
        (
            "## Stores",
            LEGEND,
            markdown(("store", "operation", "tasks", "ours µs", "raw µs", "ratio"), rows),
            "A get among 1,000 and among 100,000 records:",
            markdown(("store", "1k µs", "100k µs", "ratio"), sizes),
        )
    )
    Console(soft_wrap=True, highlight=False).print(text, markup=False)
    return text
