"""What the tests of links share: fast limits, waiting under a deadline, and a count of everything a link may leave."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

import holdfast
from holdfast import Limits, Link, Options

uvloop.new_event_loop().close()  # opens a pipe that stays for the whole process
EVERY_LOOP = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": True}), "asyncio"], ids=["uvloop", "asyncio"]
)
FAST = Limits(
    connect=2,
    handshake=2,
    program_handshake=2,
    start=10,
    silence=2,
    close=2,
    tell=2,
    backoff=0.01,
    stream_retry=0.02,
    message_bytes=200_000,
)
"""For servers on loopback that answer at once, or not at all."""
FAMILIES = (holdfast.Unavailable, holdfast.OutcomeUnknown, holdfast.Rejected, holdfast.UsageError)


def link_to(url: object, **options: Any) -> Link:
    options.setdefault("limits", FAST)
    return Link(url, Options(**options), name="it")


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def text_of(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    """Wait until it is true, and fail after the deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not become true in time"
        await asyncio.sleep(0.005)


async def helper_is_cancelled(*_: Any) -> Any:
    """An author's function that waits for a task, which is cancelled."""
    task = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(task.cancel)
    await task
