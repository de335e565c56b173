"""The faults: what is killed, stopped, cut and made to lose sessions, and when."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from typing import Any

from benchmarks.soak.backend import Sdk
from benchmarks.soak.processes import command, descendants
from benchmarks.soak.settings import JUDGED, WARM_UP
from benchmarks.soak.world import World


async def trouble_faulty(world: World, server: Any, done: Counter[str]) -> None:
    """A scripted server: it loses sessions, refuses, hangs and breaks answers."""
    from holdfast.testing import Fault

    effectful = (Fault.CLOSE, Fault.RESET, Fault.CLOSE_IN_BODY, Fault.BROKEN_JSON, Fault.NOT_JSON_RPC, Fault.WRONG_ID)
    others = (Fault.CLOSE_AFTER, Fault.FORGET, Fault.STRAYS, Fault.CLOSE_IN_STREAM, Fault.HTML, Fault.ACCEPTED)
    while not await world.rest(random.uniform(1.0, 5.0)):
        server.lift()
        what = random.choice(("forget", "restart", "refuse", "hang", "break", "break", "status", "cut"))
        done[what] += 1
        match what:
            case "forget":
                server.sessions.sessions.clear()
            case "restart":
                await server.restart()
            case "refuse":
                await server.refuse()
                await world.rest(random.uniform(0.2, 3.0))
                await server.listen()
            case "hang":
                method = random.choice(("tools/call", "tools/call", "initialize", None))
                server.plan(Fault.HANG, method=method, times=10**6, effect=random.random() < 0.5)
                await world.rest(random.uniform(0.5, 4.0))
                server.lift()
                await server.cut()
            case "break":
                fault = random.choice((*effectful, *others))
                effect = fault in effectful and random.random() < 0.6
                server.plan(fault, method="tools/call", times=random.randint(1, 5), effect=effect)
            case "status":
                status = random.choice((429, 500, 502, 503, 504))
                server.plan(Fault.STATUS, method="tools/call", times=random.randint(1, 5), status=status)
            case _:
                await server.cut()
        server.requests.clear()
    server.lift()


async def trouble_sdk(world: World, sdk: Sdk, done: Counter[str]) -> None:
    """A real server: killed, or stopped for a while."""
    while not await world.rest(random.uniform(4.0, 12.0)):
        if random.random() < 0.5:
            done["kill"] += 1
            await sdk.kill()
            await world.rest(random.uniform(0.0, 2.0))
            await sdk.start()
        else:
            done["stop"] += 1
            sdk.send(signal.SIGSTOP)
            await world.rest(random.uniform(0.5, 4.0))
            sdk.send(signal.SIGCONT)


async def trouble_children(world: World, done: Counter[str]) -> None:
    """Programs that the gateway started."""
    while not await world.rest(random.uniform(2.0, 8.0)):
        running = [pid for pid in descendants(world.gateway.pid) if "notebook" in command(pid)]
        if running:
            done["kill"] += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(running), signal.SIGKILL)


async def trouble_gateway(world: World, seconds: float, began: float) -> None:
    """The gateway itself: often at first, later rarely enough for a useful memory curve."""
    while True:
        early = began + seconds / 3 - time.monotonic()
        gap = random.uniform(0.15, 0.3) * seconds
        wait = min(gap, random.uniform(10, 35), early) if early > 0 else max(gap, WARM_UP + JUDGED + 10)
        if await world.rest(wait):
            return
        number = random.choice((signal.SIGTERM, signal.SIGKILL))
        code = await world.gateway.restart(number)
        if number is signal.SIGTERM and code != 0:
            world.ledger.fault("untyped", f"the gateway: SIGTERM, and it exited with {code}")
