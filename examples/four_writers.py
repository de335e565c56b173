"""Four processes edit one session at once, one is killed in the middle, and nothing is lost.

Run it with `python examples/four_writers.py`. It uses a SQLite file in a temporary folder and takes a few seconds.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing.connection import wait

import holdfast

WRITERS = 4
EDITS = 100
KILL_AFTER = 30


def add_line(data: holdfast.stores.JSON) -> holdfast.stores.JSON:
    assert isinstance(data, dict)
    return {"lines": data["lines"] + 1}


def writer(number: int, url: str, start, said) -> None:
    async def edit() -> None:
        async with holdfast.open_store(url) as store:
            start.wait()
            for n in range(EDITS):
                await holdfast.stores.update(store, "draft", "d1", add_line, entries=[{"by": number, "n": n}])
                said.send(n + 1)

    asyncio.run(edit())


async def create(url: str) -> None:
    async with holdfast.open_store(url) as store:
        draft = holdfast.stores.Record("draft", "d1", holdfast.Principal("alice"), {"lines": 0}, idle=3600)
        await store.commit(draft, expect=0)


async def read(url: str) -> tuple[holdfast.stores.Record, list[holdfast.stores.LogEntry]]:
    async with holdfast.open_store(url) as store:
        record = await store.get("draft", "d1")
        assert record is not None
        return record, await store.log("draft", "d1", limit=WRITERS * EDITS + 1)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/sessions.db"
        asyncio.run(create(url))
        context = multiprocessing.get_context("spawn")
        start = context.Barrier(WRITERS)
        # A pipe for each writer: a queue has a lock, which a killed writer would never release.
        pipes = [context.Pipe(duplex=False) for _ in range(WRITERS)]
        crew = [context.Process(target=writer, args=(n, url, start, pipes[n][1])) for n in range(WRITERS)]
        print(f"{WRITERS} processes, {EDITS} edits each, one session on SQLite …")
        for process, (_, theirs) in zip(crew, pipes, strict=True):
            process.start()
            theirs.close()

        began = time.perf_counter()
        returned = dict.fromkeys(range(WRITERS), 0)
        killed = None
        talking = {pipe: number for number, (pipe, _) in enumerate(pipes)}
        while talking:
            for pipe in wait(list(talking), timeout=60):
                number = talking[pipe]
                try:
                    returned[number] = pipe.recv()
                except EOFError:
                    del talking[pipe]
                if killed is None and returned[number] == KILL_AFTER:
                    killed = number
                    os.kill(crew[number].pid, signal.SIGKILL)
        for process in crew:
            process.join()
        took = time.perf_counter() - began
        record, log = asyncio.run(read(url))

    kept = {number: [e.data["n"] for e in log if e.data["by"] == number] for number in range(WRITERS)}
    row = "{:<9}  {:<16}  {:<19}  {:<16}  {}"
    print(row.format("process", "fate", "edits that returned", "edits in the log", "lost"))
    lost = 0
    for number in range(WRITERS):
        missing = len(set(range(returned[number])) - set(kept[number]))
        lost += missing
        fate = f"SIGKILL after {returned[number]}" if number == killed else "finished"
        print(row.format(f"writer {number}", fate, returned[number], len(kept[number]), missing))

    in_order = [e.rev for e in log] == list(range(2, len(log) + 2)) and [e.seq for e in log] == list(
        range(1, len(log) + 1)
    )
    counted = record.data == {"lines": len(log)} and record.rev == len(log) + 1
    finished = all(returned[n] == EDITS for n in range(WRITERS) if n != killed)
    print(f"session draft/d1: rev {record.rev}, {record.data['lines']} lines, {len(log)} log entries, {took:.1f} s")
    good = lost == 0 and in_order and counted and finished and killed is not None
    print("nothing was lost, repeated or half-written" if good else "SOMETHING WAS LOST")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
