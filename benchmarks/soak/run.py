"""One soak: clients and faults for a time, then the end, then the report."""

import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.soak.backend import Sdk
from benchmarks.soak.clients import library, raw_2025, raw_2026
from benchmarks.soak.faults import trouble_children, trouble_faulty, trouble_gateway, trouble_sdk
from benchmarks.soak.gateway import Gateway
from benchmarks.soak.ledger import Ledger
from benchmarks.soak.memory import Curve
from benchmarks.soak.processes import command, descendants, megabytes, opened, until
from benchmarks.soak.settings import (
    CLIENTS,
    CONNECTIONS,
    FILES,
    JUDGED,
    PATIENCE,
    PLOT,
    PLOT_MINUTES,
    SETTLE,
    SLOPE,
    TO,
    WARM_UP,
)
from benchmarks.soak.world import World


async def soak(minutes: float, seed: int) -> bool:
    from holdfast.testing import FaultServer

    random.seed(seed)
    seconds = minutes * 60
    print(f"soak: {minutes:g} minutes, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdk = Sdk(folder)
        async with FaultServer(answers="sse") as a, FaultServer(era="2026") as b:
            servers: dict[str, Any] = {
                "a": {"url": a.url, "era": "2025"},
                "b": {"url": b.url, "era": "2026"},
                "sdk": {"url": sdk.url, "era": "2025"},
                "notes": {
                    "command": sys.executable,
                    "args": ["-m", "holdfast.gateway.demo.notebook"],
                    "era": "2025",
                    "start": "lazy",
                },
            }
            gateway = Gateway(folder, servers)
            try:
                await sdk.start()
                await gateway.start()
                return await Run(seconds, gateway, a, b, sdk).run()
            finally:
                if gateway.process is not None:
                    gateway.process.kill()
                    await gateway.process.wait()
                await sdk.kill()


class Run:
    """One soak from the first call to the report."""

    def __init__(self, seconds: float, gateway: Gateway, a: Any, b: Any, sdk: Sdk) -> None:
        self.seconds = seconds
        self.gateway, self.a, self.b, self.sdk = gateway, a, b, sdk
        self.ledger = Ledger(gateway)
        self.world = World(gateway, self.ledger)
        self.troubles: dict[str, Counter[str]] = {name: Counter() for name in ("a", "b", "sdk", "notes")}
        self.leaks: list[str] = []
        self.began = 0.0

    async def run(self) -> bool:
        await asyncio.sleep(3)  # its first look at the backends
        files = sum(count for kind, count in self._files().items() if not kind.startswith(TO))
        self.began = time.monotonic()
        curve = Curve(self.gateway, self.began)
        aside = [asyncio.create_task(curve.run()), asyncio.create_task(self._tell())]
        world = self.world
        clients = [
            asyncio.create_task(self._client(kind, number)) for kind, many in CLIENTS.items() for number in range(many)
        ]
        troubles = [
            asyncio.create_task(trouble_faulty(world, self.a, self.troubles["a"])),
            asyncio.create_task(trouble_faulty(world, self.b, self.troubles["b"])),
            asyncio.create_task(trouble_sdk(world, self.sdk, self.troubles["sdk"])),
            asyncio.create_task(trouble_children(world, self.troubles["notes"])),
            asyncio.create_task(trouble_gateway(world, self.seconds, self.began)),
        ]
        tail = min(max(self.seconds / 3, 10.0), WARM_UP + JUDGED + 30)
        await asyncio.sleep(self.seconds - tail)
        world.calm.set()
        await asyncio.gather(*troubles)
        await self._fresh_start()
        await asyncio.sleep(max(0.0, self.began + self.seconds - time.monotonic()))
        world.running = False
        _, late = await asyncio.wait(clients, timeout=4)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=4)
        for task in clients:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.ledger.fault("untyped", f"a client of the soak broke: {error!r}")
        for task in aside:
            task.cancel()
        await self._find_leaks(files)
        self.ledger.compare(Counter(self.a.effects) + Counter(self.b.effects) + self.sdk.effects())
        return self._report(curve)

    def _files(self) -> Counter[str]:
        ports = {self.a.port: "a", self.b.port: "b", self.sdk.port: "sdk"}
        return Counter(opened(self.gateway.pid, ports))

    async def _client(self, kind: str, number: int) -> None:
        match kind:
            case "raw 2025":
                await raw_2025(self.world, number)
            case "raw 2026":
                await raw_2026(self.world, number)
            case _:
                await library(self.world, number, kind)

    async def _tell(self) -> None:
        every = max(10.0, self.seconds / 20)
        while True:
            await asyncio.sleep(every)
            ledger, at = self.ledger, time.monotonic() - self.began
            bad = ", ".join(f"{kind} {count}" for kind, count in ledger.counts.items() if count) or "nothing amiss"
            print(
                f"{at / 60:5.1f} min  {sum(ledger.calls.values()):>8,} calls  {ledger.outcomes['ok']:>8,} ok  "
                f"{megabytes(self.gateway.pid):4.0f} MB  {sum(self.gateway.restarts.values())} restarts  {bad}",
                flush=True,
            )

    async def _fresh_start(self) -> None:
        """Let the backends lose their sessions and kill the gateway once more: it must end all later sessions."""
        self.world.may_begin.clear()
        with contextlib.suppress(AssertionError):
            await until(lambda: not self.world.beginning, PATIENCE)
        self.a.sessions.sessions.clear()
        await self.sdk.kill()
        await self.sdk.start()
        await asyncio.sleep(2)
        await self.gateway.restart(signal.SIGKILL)
        self.world.may_begin.set()

    async def _find_leaks(self, files: int) -> None:
        """What is left after every session was ended or has expired."""
        gateway, leaks = self.gateway, self.leaks
        own = 2  # sessions for lists: of this process, and of the one that was killed last

        async def left() -> list[str]:
            found: list[str] = []
            if (count := len(self.a.sessions.sessions)) > own:
                found.append(f"{count} sessions at a, {own} are the gateway's own")
            if (count := await self.sdk.sessions()) > own:
                found.append(f"{count} sessions at sdk, {own} are the gateway's own")
            found += [
                f"a child of the gateway: {command(pid)}"
                for pid in descendants(gateway.pid)
                if "warden" not in command(pid)
            ]
            kinds = self._files()
            kept = {kind: kinds.pop(kind) for kind in list(kinds) if kind.startswith(TO)}
            if kinds.total() > files + FILES:
                found.append(f"{kinds.total()} open files, {files} at the start: {_list(kinds)}")
            found += [f"{count} times a {kind}" for kind, count in kept.items() if count > CONNECTIONS]
            return found

        end = time.monotonic() + SETTLE
        found = await left()
        while found and time.monotonic() < end:
            await asyncio.sleep(0.5)
            found = await left()
        leaks += found
        code = await gateway.stop(signal.SIGTERM)
        if code != 0:
            leaks.append(f"the gateway exited with {code} on SIGTERM")
        leaks += [f"a process outlived its gateway: {pid} {command(pid)}" for pid in gateway.orphans]
        leaks += await self._records()
        log = gateway.log.read_text(errors="replace")
        if "Traceback" in log:
            at = log.index("Traceback")
            self.ledger.counts["untyped"] += log.count("Traceback")
            self.ledger.faults["untyped"].append(f"in the gateway's log: {log[max(0, at - 300) : at + 3000]}")

    async def _records(self) -> list[str]:
        from holdfast.gateway.sessions.record import KIND
        from holdfast.stores import open_store

        async with open_store(self.gateway.store) as store:
            count = await store.count(kind=KIND)
        return [f"{count} records of sessions in the store"] if count else []

    def _report(self, curve: Curve) -> bool:
        ledger, minutes = self.ledger, self.seconds / 60
        slope, judged = curve.slope()
        total = sum(ledger.calls.values())
        print(f"\n{minutes:g} minutes, {total:,} calls, {total / self.seconds:.0f} a second")
        print("calls:    " + ", ".join(f"{kind} {count:,}" for kind, count in ledger.calls.most_common()))
        print("outcomes:")
        for outcome, count in ledger.outcomes.most_common():
            print(f"  {count:>9,}  {outcome}")
        print("troubles: " + "; ".join(f"{name}: {_list(done)}" for name, done in self.troubles.items()))
        print(f"restarts of the gateway: {_list(self.gateway.restarts)}")
        good = True
        for kind, words in (
            ("double", "double effects"),
            ("wrong", "wrong answers"),
            ("silent", "silent losses"),
            ("untyped", "untyped errors"),
        ):
            count = ledger.counts[kind]
            good = good and not count
            print(f"{'ok  ' if not count else 'FAIL'} {words}: {count}")
            for text in ledger.faults[kind]:
                print(f"       {text}")
        good = good and not self.leaks
        print(f"{'ok  ' if not self.leaks else 'FAIL'} leaks: {len(self.leaks)}")
        for text in self.leaks:
            print(f"       {text}")
        flat = slope is None or slope < SLOPE
        good = good and flat
        said = f"{slope:+.2f} MB a minute over {judged:.0f} s" if slope is not None else "not judged, too few samples"
        print(f"{'ok  ' if flat else 'FAIL'} memory: {said}")
        print(f"  {curve.line()}")
        if minutes >= PLOT_MINUTES and curve.samples:
            PLOT.write_text(curve.svg(f"Memory of the gateway, soak of {minutes:g} minutes; dashed: a restart"))
        print("all of it held" if good else "something did not hold", flush=True)
        return good


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
