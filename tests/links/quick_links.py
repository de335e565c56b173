"""What the tests of links share: fast limits, and a count of everything a link may leave."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import uvloop

import holdfast
from holdfast import Link
from holdfast.links import Limits, Options

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
    deliver=2,
    backoff=0.01,
    stream_retry=0.02,
    message_bytes=200_000,
)
"""For servers on loopback that answer at once, or not at all."""
FAMILIES = (holdfast.Unavailable, holdfast.OutcomeUnknown, holdfast.Rejected, holdfast.UsageError)


def scaled(limits: Limits, factor: float) -> Limits:
    """A copy with all times multiplied, for tests that can't wait for minutes."""
    spans = (
        "resolve", "authorize", "connect", "handshake", "program_handshake", "start", "slow_start", "silence",
        "close", "exit", "deliver", "backoff", "stream_retry",
    )  # fmt: skip
    return replace(limits, **{name: getattr(limits, name) * factor for name in spans})


def link_to(url: object, **options: Any) -> Link:
    options.setdefault("limits", FAST)
    return Link(url, Options(**options), name="it")


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def text_of(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


async def helper_is_cancelled(*_: Any) -> Any:
    """An author's function that waits for a task, which is cancelled."""
    task = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


class Notifications:
    """Keeps the notifications that a link hands on."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def __call__(self, method: str, params: Any) -> None:
        self.heard.append((method, params))

    def count(self, method: str) -> int:
        return sum(each == method for each, _ in self.heard)
