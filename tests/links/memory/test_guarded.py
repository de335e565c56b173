"""A user's memory that raises, lies, hangs or does not close harms no call."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import events
from holdfast.links import StoreMemory
from holdfast.testing import FaultServer
from tests.links.quick_links import link_to, text_of, tool

pytestmark = pytest.mark.anyio


class Broken:
    """A user's memory, with whatever is wrong with it."""

    def __init__(self, does: Any) -> None:
        self._does = does

    @property
    def touch_every(self) -> float | None:
        return self._does("touch_every") or None

    async def load(self) -> Any:
        return await self._do("load")

    async def save(self, saved: Any, token: object) -> Any:
        return await self._do("save")

    async def forget(self) -> None:
        await self._do("forget")

    async def touch(self) -> None:
        await self._do("touch")

    async def claim_stream(self, seconds: float) -> bool:
        return bool(await self._do("claim_stream"))

    async def release_stream(self) -> None:
        await self._do("release_stream")

    async def close(self) -> None:
        await self._do("close")

    async def _do(self, what: str) -> Any:
        return self._does(what)


@pytest.mark.promise("link.memory-faults")
@pytest.mark.parametrize("fault", ["raises", "lies"])
async def test_a_users_memory_that_raises_or_lies_harms_no_call(fault: str) -> None:
    heard: list[events.Event] = []

    def does(what: str) -> Any:
        if fault == "raises":
            raise ValueError(f"{what}: a bug of its author")
        return {"load": {"session": "x"}, "touch_every": 0.001}.get(what, object())

    async with FaultServer() as server:
        link = link_to(server.url, memory=Broken(does), on_event=heard.append)
        assert text_of(await link.request("tools/call", tool("count"))) == "1"
        await link.request("logging/setLevel", {"level": "error"})
        assert text_of(await link.request("tools/call", tool("count"))) == "2"
        await link.close(end=True)
        assert not server.sessions.sessions
    assert any(isinstance(event, events.MemoryFailed) for event in heard)


@pytest.mark.promise("link.memory-faults")
async def test_a_users_memory_that_hangs_is_waited_for_no_longer_than_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.links.memory.guarded.SECONDS", 0.05)
    heard: list[events.Event] = []

    class Hanging(Broken):
        async def _do(self, what: str) -> Any:
            await asyncio.Event().wait()

    async with FaultServer() as server:
        link = link_to(server.url, memory=Hanging(lambda _: None), on_event=heard.append)
        assert text_of(await link.request("tools/call", tool("count"))) == "1"
        await link.close(end=True)
        assert not server.sessions.sessions
    assert any(isinstance(event, events.MemoryFailed) and "longer than" in event.why for event in heard)


@pytest.mark.promise("link.memory-faults")
async def test_what_is_no_memory_is_refused_when_it_is_given() -> None:
    with pytest.raises(holdfast.errors.ConfigError, match="lacks load, save"):
        holdfast.links.Options(memory=object())  # type: ignore[arg-type]


@pytest.mark.promise("link.close")
async def test_a_memory_that_fails_to_close_does_not_poison_the_link() -> None:
    class Broken(StoreMemory):
        async def close(self) -> None:
            raise OSError("disk on fire")

    async with holdfast.open_store("memory:") as store, FaultServer() as server:
        link = link_to(server.url, memory=Broken(store, "x"))
        await link.request("tools/list")
        await link.close()
        assert link.statistics().close_failures == 1
        await link.request("tools/list", timeout=2)
        await link.close(end=True)
