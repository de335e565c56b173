"""Writers in processes of their own, for tests of what only several processes can show. Works on any store URL."""

import asyncio
import os
import random
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import holdfast
from holdfast.stores import TURNS, Record, Turn, Write
from tests.deadlines import patience
from tests.preloaded import context

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


async def transfer_for_ever(pipe: Connection, url: str, kind: str, ids: list[str]) -> None:
    """Move amounts between two random records until killed, under turns on both; report each that returned."""
    luck = random.Random(os.getpid())
    async with holdfast.open_store(url) as store, store.listen(TURNS) as notices:
        n = 0
        while True:
            pair = [(kind, id) for id in luck.sample(ids, 2)]
            owner = f"{os.getpid()}.{n}"
            while True:
                try:
                    turns = await store.begin_turns(pair, owner=owner, ttl=1, notify=True)
                    break
                except holdfast.errors.Busy as busy:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(busy.retry_after or 0):
                            await anext(notices)
            amount = luck.randint(-50, 50)
            writes = [
                Write(
                    record.with_data({"amount": record.data["amount"] + change}),
                    expect=record.rev,
                    entries=[{"by": owner, "change": change}],
                    fence=turn.claim.token,
                )
                for turn, change in zip(turns, (amount, -amount), strict=True)
                if (record := turn.record) is not None
            ]
            try:
                done = await store.commit_all(writes, release=[turn.claim for turn in turns])
            except holdfast.errors.Conflict:  # our second was up, on a busy machine
                pipe.send((owner, None))
            else:
                pipe.send((owner, [(record.id, record.rev) for record in done]))
            n += 1


async def count_under_turns(pipe: Connection, url: str, kind: str, tasks: int, counts: int) -> None:
    """Add to two records in turns, waiting for each; say when ready, wait for the word, say how many were refused."""
    async with holdfast.open_store(url) as store:
        refused = 0

        async def count(task: int) -> None:
            nonlocal refused
            names = [(kind, id) for id in ("left", "right")]
            async with store.listen(TURNS) as notices:
                for n in range(counts):
                    owner = f"{os.getpid()}.{task}.{n}"
                    while True:
                        try:
                            turns = await store.begin_turns(
                                names[:: 1 if task % 2 else -1], owner=owner, ttl=60, notify=True
                            )
                            break
                        except holdfast.errors.Busy:
                            with suppress(TimeoutError):
                                async with asyncio.timeout(0.5):  # a notice is a hint
                                    await anext(notices)
                    writes = [
                        Write(plus_one_of(turn), expect=turn.record.rev, fence=turn.claim.token)
                        for turn in turns
                        if turn.record is not None
                    ]
                    try:
                        await store.commit_all(writes, release=[turn.claim for turn in turns])
                    except holdfast.errors.Conflict:
                        refused += 1

        pipe.send("ready")
        pipe.recv()
        await asyncio.gather(*(count(task) for task in range(tasks)))
        pipe.send(refused)


def plus_one_of(turn: Turn) -> Record:
    assert turn.record is not None
    return turn.record.with_data(plus_one(turn.record.data))
