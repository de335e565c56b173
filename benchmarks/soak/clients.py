"""The clients: raw HTTP in both eras, `mcp.Client` and FastMCP's client."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from benchmarks.soak.ledger import Call, Holding, Ledger
from benchmarks.soak.settings import IDLE, PATIENCE
from benchmarks.soak.world import World


async def raw_2025(world: World, number: int) -> None:
    """Raw sessions, which are ended, abandoned or left to expire."""
    import aiohttp

    from tests.gateway.clients import RawClient

    kind, ledger = "raw 2025", world.ledger
    for turn in itertools.count():
        if not world.running:
            return
        holding = Holding(f"raw{number}.{turn}")
        async with RawClient(world.gateway.url) as client, contextlib.AsyncExitStack() as stack:
            began = time.monotonic()
            try:
                async with world.begins(), asyncio.timeout(PATIENCE):
                    initialized = await client.initialize()
            except (aiohttp.ClientError, OSError) as error:
                ledger.disconnected(kind, None, None, began, error)
                await asyncio.sleep(0.3)
                continue
            if initialized.status != 200:
                ledger.refused(kind, None, initialized.status, initialized.raw, False)
                await asyncio.sleep(0.3)
                continue
            if random.random() < 0.25:
                listening = asyncio.create_task(_listen(client))
                stack.callback(listening.cancel)
            notes = random.random() < 0.15
            for _ in range(random.randint(3, 60)):
                if not world.running or not await _call_2025(world, client, holding, notes):
                    break
                await asyncio.sleep(random.uniform(0.005, 0.08))
            else:
                await _leave(world, client)


async def _listen(client: Any) -> None:
    with contextlib.suppress(Exception):
        async with client.stream() as events:
            while True:
                await events.next(PATIENCE)


async def _leave(world: World, client: Any) -> None:
    import aiohttp

    how, ledger, began = random.random(), world.ledger, time.monotonic()
    try:
        if how < 0.45:
            answer = await client.delete()
            if answer.status not in (204, 404):
                ledger.refused("raw 2025", None, answer.status, answer.raw, False)
            after = await client.ask("ping")
            if after.status not in (404, 503):
                ledger.fault("wrong", f"raw 2025: a deleted session answers {after.status} {after.raw!r:.500}")
        elif how < 0.55:
            await world.rest(IDLE + 3)
            answer = await client.ask("ping")
            if answer.status != 200:
                ledger.refused("raw 2025", None, answer.status, answer.raw, False)
    except (aiohttp.ClientError, OSError) as error:
        ledger.disconnected("raw 2025", None, None, began, error)


async def _call_2025(world: World, client: Any, holding: Holding, notes: bool) -> bool:
    """Call once. False: the session is over, or the gateway is down."""
    import aiohttp

    kind, ledger = "raw 2025", world.ledger
    call = ledger.new(holding.label, True, notes)
    ledger.sent(kind, call)
    if random.random() < 0.02:
        await _hang_up(client.call(call.name, **call.arguments))
        ledger.outcomes["hung up by the client"] += 1
        ledger.unknown(call, holding)
        return True
    try:
        async with asyncio.timeout(PATIENCE):
            answer = await client.call(call.name, **call.arguments)
    except TimeoutError:
        _stuck(ledger, kind, call, holding)
        return False
    except (aiohttp.ClientError, OSError) as error:
        ledger.disconnected(kind, call, holding, call.began, error)
        await asyncio.sleep(0.3)
        return True
    if answer.status != 200:
        ledger.refused(kind, call, answer.status, answer.raw, holding.is_live)
        await asyncio.sleep(0.1)
        return answer.status == 503
    _take(ledger, kind, call, holding, answer)
    return True


def _take(ledger: Ledger, kind: str, call: Call, holding: Holding | None, answer: Any) -> None:
    """Record an answer with status 200."""
    last = answer.last if answer.messages else {}
    result = last.get("result")
    if isinstance(result, dict):
        texts = [str(part.get("text")) for part in result.get("content", ())]
        ledger.answered(kind, call, holding, texts, bool(result.get("isError")), result.get("_meta"))
        return
    family = ((last.get("error") or {}).get("data") or {}).get("family")
    if family is not None:
        ledger.failed(call, holding, str(family), str(last["error"]["data"].get("kind")))
        return
    ledger.fault("untyped", f"{kind}: {call.name}: {answer.status} {answer.raw!r:.2000}")
    ledger.unknown(call, holding)


def _stuck(ledger: Ledger, kind: str, call: Call, holding: Holding | None) -> None:
    ledger.fault("untyped", f"{kind}: {call.name} {call.arguments}: no answer in {PATIENCE:g} s")
    ledger.unknown(call, holding)


async def _hang_up(asking: Awaitable[Any]) -> None:
    """Cancel a call while it runs."""
    task = asyncio.ensure_future(asking)
    await asyncio.wait((task,), timeout=random.uniform(0.0005, 0.02))
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


async def raw_2026(world: World, number: int) -> None:
    """Single calls without a session."""
    import aiohttp

    from tests.gateway.clients import RawClient

    kind, ledger = "raw 2026", world.ledger
    async with RawClient(world.gateway.url) as client:
        while world.running:
            call = ledger.new(f"stateless{number}", False, random.random() < 0.02)
            async with world.begins():
                ledger.sent(kind, call)
                if random.random() < 0.03:
                    await _hang_up(client.call_2026(call.name, **call.arguments))
                    ledger.outcomes["hung up by the client"] += 1
                    continue
                try:
                    async with asyncio.timeout(PATIENCE):
                        answer = await client.call_2026(call.name, **call.arguments)
                    if answer.status == 503:
                        ledger.refused(kind, call, answer.status, answer.raw, False)
                    elif call.tool == "read":
                        ledger.outcomes["ok"] += 1
                    else:
                        _take(ledger, kind, call, None, answer)
                except TimeoutError:
                    _stuck(ledger, kind, call, None)
                except (aiohttp.ClientError, OSError) as error:
                    ledger.disconnected(kind, call, None, call.began, error)
                    await asyncio.sleep(0.3)
            await asyncio.sleep(random.uniform(0.02, 0.1))


async def library(world: World, number: int, kind: str) -> None:
    """Clients of other libraries. They can't be used after their connection has failed, so each turn has a new one."""
    import fastmcp
    import mcp

    ledger = world.ledger
    for turn in itertools.count():
        if not world.running:
            return
        holding = Holding(f"{kind}{number}.{turn}")
        call: Call | None = None
        began = time.monotonic()
        beginning = contextlib.AsyncExitStack()
        await beginning.enter_async_context(world.begins())
        try:
            client: Any = (
                mcp.Client(world.gateway.url, read_timeout_seconds=PATIENCE)
                if kind == "mcp.Client"
                else fastmcp.Client(world.gateway.url, timeout=PATIENCE)
            )
            async with client:
                await beginning.aclose()
                ask: Callable[..., Awaitable[Any]] = client.call_tool if kind == "mcp.Client" else client.call_tool_mcp
                notes = random.random() < 0.15
                for _ in range(random.randint(3, 60)):
                    if not world.running:
                        break
                    call = ledger.new(holding.label, True, notes)
                    ledger.sent(kind, call)
                    result = await ask(call.name, call.arguments)
                    texts = [part.text for part in result.content]
                    ledger.answered(kind, call, holding, texts, bool(result.is_error), result.meta)
                    call = None
                    await asyncio.sleep(random.uniform(0.01, 0.1))
        except Exception as error:
            _library_failed(world, kind, call, holding, began if call is None else call.began, error)
            await asyncio.sleep(0.3)
        finally:
            await beginning.aclose()


def _library_failed(
    world: World, kind: str, call: Call | None, holding: Holding, since: float, error: Exception
) -> None:
    import httpx2
    import mcp

    ledger = world.ledger
    if call is not None:
        ledger.unknown(call, holding)
    for each in _leaves(error):
        if isinstance(each, mcp.MCPError):
            family = (each.error.data or {}).get("family") if isinstance(each.error.data, dict) else None
            if family is not None:
                ledger.outcomes[f"{family}: {each.error.data.get('kind')}"] += 1
                continue
            if each.error.code == -32001 and "not found" in each.error.message:
                ledger.refused(kind, None, 404, each.error.message, holding.is_live)
                continue
        connection = isinstance(each, httpx2.TransportError | mcp.MCPError | OSError) or "onnect" in str(each)
        if connection and world.gateway.was_down(since):
            ledger.outcomes["no connection, the gateway was down"] += 1
            continue
        ledger.fault("untyped", f"{kind}: {call.name if call else 'begin or end'}: {each!r:.2000}")


def _leaves(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
