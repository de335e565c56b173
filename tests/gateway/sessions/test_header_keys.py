"""2026 clients that name their session by a configured header."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreDown
from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import Answer, RawClient
from tests.gateway.gateways import gateway


@pytest.mark.promise("gateway.counts")
async def test_a_header_key_lives_again_after_its_session_expired(tmp_path: Path) -> None:
    async with FaultServer() as http:
        settings = {"header": "x-key", "idle": 0.4}
        async with gateway(tmp_path, {"counter": {"url": http.url}}, sessions=settings) as program:
            gate = program.gateway
            assert gate is not None
            async with RawClient(program.url) as client:
                call = {"name": "counter__count", "arguments": {}}
                for _ in range(2):
                    first = await asyncio.gather(*(client.ask_2026("tools/call", call, x_key="k") for _ in range(5)))
                    assert sorted(answer.text for answer in first) == ["1", "2", "3", "4", "5"]
                    await until(lambda: not gate.sessions.live, 10)


@pytest.mark.promise("gateway.counts")
async def test_one_header_key_through_two_gateways_is_one_session(tmp_path: Path) -> None:
    store, settings = f"sqlite:///{tmp_path}/s.db", {"header": "x-key"}
    async with FaultServer() as http:
        servers = {"counter": {"url": http.url}}
        async with gateway(tmp_path, servers, store=store, sessions=settings) as one:
            async with gateway(tmp_path, servers, store=store, sessions=settings) as other:
                async with RawClient(one.url) as a, RawClient(other.url) as b:
                    for key in ("k1", "k2", "k3"):
                        call = {"name": "counter__count", "arguments": {}}
                        both = await asyncio.gather(
                            *(client.ask_2026("tools/call", call, x_key=key) for client in (a, b, a, b))
                        )
                        assert sorted(answer.text for answer in both) == ["1", "2", "3", "4"]


SESSIONS = {"header": "x-key", "steer": False}
COUNT = {"name": "counter__count", "arguments": {}}


async def call(client: RawClient, key: str) -> Answer:
    return await client.ask_2026("tools/call", COUNT, x_key=key)


@pytest.mark.promise("gateway.counts")
async def test_calls_of_a_live_key_read_no_store_and_go_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, sessions=SESSIONS) as program:
        async with RawClient(program.url) as client:
            assert (await call(client, "one")).text == "1"
            assert program.gateway is not None
            store = program.gateway.store
            with monkeypatch.context() as patched:

                async def down(*_: Any, **__: Any) -> Any:
                    raise StoreDown("the store is away")

                for name in ("get", "claim", "commit"):
                    patched.setattr(store, name, down)
                answers = await asyncio.gather(*(call(client, "one") for _ in range(20)))
                assert sorted(int(answer.text) for answer in answers) == list(range(2, 22))
                assert (await call(client, "another")).status == 503


@pytest.mark.promise("gateway.counts")
async def test_twenty_calls_that_begin_one_key_share_the_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, sessions=SESSIONS) as program:
        async with RawClient(program.url) as client:
            assert program.gateway is not None
            store, reads, go = program.gateway.store, Counter[str](), asyncio.Event()
            get = store.get

            async def counted(kind: str, *args: Any, **kwargs: Any) -> Any:
                reads[kind] += 1
                await go.wait()
                return await get(kind, *args, **kwargs)

            monkeypatch.setattr(store, "get", counted)
            calls = [asyncio.create_task(call(client, "one")) for _ in range(20)]
            await until(lambda: reads["key"])
            first = calls.pop(0)
            first.cancel()
            await asyncio.wait((first,))  # one that hangs up does not cancel it for the others
            go.set()
            assert len({(await each).text for each in calls}) == 19
            assert reads["key"] <= 2


@pytest.mark.promise("gateway.counts")
async def test_a_key_whose_session_has_ended_begins_another(tmp_path: Path) -> None:
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, sessions=SESSIONS) as program:
        async with RawClient(program.url) as client:
            assert program.gateway is not None
            for _ in range(2):
                assert [(await call(client, "one")).text for _ in range(2)] == ["1", "2"]
                (session,) = program.gateway.sessions.live.values()
                await program.gateway.sessions.endings.end(session, "ended by a test")
