"""Writers in processes of their own, for tests of what only several processes can show. Works on any store URL."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import holdfast
from holdfast.stores import Record
from tests.deadlines import patience

# Children are forked from a server that has imported everything once: ten milliseconds each instead of half a second.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "holdfast.stores.sqlite.store",
        "holdfast.stores.postgres.store",
        "holdfast.stores.redis.store",
        "tests.stores.processes",
    ]
)

WAIT = 60.0


class Worker:
    """One child and a pipe to it."""

    def __init__(self, target: Any, *args: Any) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_enter, args=(target, theirs, *args), daemon=True)
        self.process.start()
        theirs.close()

    def receive(self) -> Any:
        assert self.pipe.poll(patience(WAIT)), f"{self.process} said nothing for {WAIT} s"
        return self.pipe.recv()

    def kill(self) -> list[Any]:
        """SIGKILL, and what it had still said before."""
        self.process.kill()
        self.process.join(patience(WAIT))
        said = []
        try:
            while self.pipe.poll():
                said.append(self.pipe.recv())
        except EOFError:
            pass
        self.pipe.close()
        return said

    def send_signal(self, number: int) -> None:
        assert self.process.pid
        os.kill(self.process.pid, number)

    def join(self) -> None:
        self.process.join(patience(WAIT))
        assert self.process.exitcode == 0, f"exit code {self.process.exitcode}"
        self.pipe.close()
        self.process.close()


@contextmanager
def workers(*workers: Worker) -> Iterator[None]:
    """Whatever happens, none of them stays."""
    try:
        yield
    finally:
        for worker in workers:
            try:
                worker.send_signal(signal.SIGKILL)
            except (ValueError, ProcessLookupError):
                continue


def _enter(target: Any, pipe: Connection, *args: Any) -> None:
    main: Coroutine[Any, Any, None] = target(pipe, *args)
    asyncio.run(main)


def plus_one(data: Any) -> Any:
    return {**data, "count": data["count"] + 1}


async def edit_many(
    pipe: Connection, url: str, kind: str, tasks: int, edits: int, keys: list[str] | None = None
) -> None:
    """Edit one record; say when ready, wait for the word, say when done."""
    async with holdfast.open_store(url, keys=keys) as store:

        async def edit(name: str) -> None:
            for n in range(edits):
                await holdfast.stores.update(store, kind, "shared", plus_one, entries=[{"by": name, "n": n}])

        pipe.send("ready")
        pipe.recv()
        await asyncio.gather(*(edit(f"{os.getpid()}.{task}") for task in range(tasks)))
        pipe.send("done")


async def edit_for_ever(pipe: Connection, url: str, kind: str) -> None:
    """Edit one record until killed; report every edit that returned."""
    async with holdfast.open_store(url) as store:
        n = 0
        while True:
            name = f"{os.getpid()}.{n}"
            record = await holdfast.stores.update(store, kind, "shared", plus_one, entries=[name, f"{name}!"])
            pipe.send((name, record.rev))
            n += 1


async def claim_and_freeze(pipe: Connection, url: str, kind: str) -> None:
    """Claim, say so (to be paused there), and then try to write under the claim."""
    async with holdfast.open_store(url) as store:
        record = await store.get(kind, "shared")
        assert record is not None
        claim = await store.claim(kind, "shared", owner="sleeper", ttl=0.3)
        pipe.send(claim.token)
        pipe.recv()
        try:
            await store.commit(record.with_data("written by the sleeper"), expect=record.rev, fence=claim.token)
            pipe.send("written")
        except holdfast.errors.Conflict as error:
            pipe.send(f"refused: {error}")


async def publish_many(pipe: Connection, url: str, topic: str, count: int) -> None:
    async with holdfast.open_store(url) as store:
        pipe.send("ready")
        pipe.recv()
        for n in range(count):
            await store.publish(topic, n)
        pipe.send("done")


async def just_open(pipe: Connection, url: str, kind: str) -> None:
    """Wait for the word, open the store for the first time, leave a record."""
    pipe.send("ready")
    pipe.recv()
    async with holdfast.open_store(url) as store:
        await store.commit(Record(kind, str(os.getpid())), expect=0)
    pipe.send("done")
