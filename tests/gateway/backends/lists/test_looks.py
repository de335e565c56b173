"""When a list is read again: once for all who wait, not too often, and not from a server that does not answer."""

import asyncio
import time
from collections.abc import Callable

import pytest

from holdfast.errors import ConnectFailed
from holdfast.gateway.backends.lists import looks as module
from holdfast.gateway.backends.lists.looks import FRESH_SECONDS, READINGS, Looks
from tests.deadlines import patience


class Server:
    """A server whose lists are read: `gate` holds a reading up, `fails` makes it fail."""

    def __init__(self, ttl: Callable[[str], float] = lambda _: 0.0) -> None:
        self.read = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False
        self.looks = Looks("s", self._read, ttl)

    async def _read(self, name: str) -> None:
        self.read += 1
        await self.gate.wait()
        if self.fails:
            raise ConnectFailed("it is down")


@pytest.mark.promise("gateway.true-lists")
async def test_one_reading_is_for_all_who_wait() -> None:
    server = Server()
    await asyncio.gather(*(server.looks.freshen("tools", 5) for _ in range(20)))
    assert server.read == 1
    assert server.looks.is_fresh("tools")
    assert not server.looks.is_fresh("prompts")


@pytest.mark.promise("gateway.true-lists")
async def test_a_call_outdates_what_was_read_before_and_during_it() -> None:
    server = Server()
    await server.looks.freshen("tools", 5)
    server.looks.changes += 1
    assert not server.looks.is_fresh("tools")
    server.gate.clear()
    first = asyncio.ensure_future(server.looks.freshen("tools", 5))
    while server.read < 2:
        await asyncio.sleep(0)
    server.looks.changes += 1  # a call ends while the list is being read
    server.gate.set()
    await first
    assert server.read == 3
    assert server.looks.age("tools") < 5


@pytest.mark.promise("gateway.true-lists")
async def test_a_list_that_takes_longer_than_it_stays_fresh_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)  # as if every reading took longer
    server = Server()
    await server.looks.freshen("tools", 5)
    assert server.read == 1
    await server.looks.freshen("tools", 5)
    assert server.read == 2


@pytest.mark.promise("gateway.true-lists")
async def test_a_server_that_announces_a_change_whenever_it_is_listed_is_not_read_without_end() -> None:
    server = Server()
    reading = server._read

    async def read(name: str) -> None:
        await reading(name)
        server.looks.mark_changed()

    looks = server.looks = Looks("s", read, lambda _: 0.0)
    async with asyncio.timeout(patience(5)):
        await looks.freshen("tools", patience(60))
    assert server.read == READINGS


@pytest.mark.promise("gateway.true-lists")
async def test_a_list_is_fresh_for_as_long_as_its_server_says() -> None:
    server = Server(lambda name: 60.0 if name == "tools" else 0.0)
    began = server.looks.began()[0] - 10
    for name in ("tools", "prompts"):
        server.looks.done(name, (began, 0))
    assert server.looks.is_fresh("tools")
    assert not server.looks.is_fresh("tools", since=time.monotonic())
    assert not server.looks.is_fresh("prompts")


@pytest.mark.promise("gateway.true-lists")
async def test_who_asks_without_a_reason_waits_for_the_pause() -> None:
    server = Server()
    await server.looks.freshen("tools", 5)
    began = time.monotonic()
    await asyncio.gather(*(server.looks.freshen("tools", 5, since=time.monotonic()) for _ in range(20)))
    assert server.read == 2
    assert time.monotonic() - began > FRESH_SECONDS / 2


@pytest.mark.promise("gateway.true-lists")
@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_a_server_that_does_not_answer_is_left_alone_for_a_while(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    if fault == "fails":
        server.fails = True
    else:
        server.gate.clear()
    for _ in range(5):
        await server.looks.freshen("tools", 0.05)
    assert server.read == 1
    server.fails = False
    server.gate.set()
    monkeypatch.setattr(module, "REST_SECONDS", 0)
    server.looks.close()
    await server.looks.freshen("tools", 5)
    assert server.read == 1


@pytest.mark.promise("gateway.true-lists")
async def test_one_who_is_cancelled_takes_the_reading_from_nobody() -> None:
    server = Server()
    server.gate.clear()
    one, other = (asyncio.ensure_future(server.looks.freshen("tools", 5)) for _ in range(2))
    while not server.read:
        await asyncio.sleep(0)
    one.cancel()
    await asyncio.wait((one,), timeout=5)
    server.gate.set()
    await asyncio.wait_for(other, patience(5))
    assert server.read == 1
    assert server.looks.is_fresh("tools")
