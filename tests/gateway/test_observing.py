"""The gateway's own sinks, by its file: the audit trail of a real gateway, its faults, and a kill."""

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.auth import new_token
from holdfast.sinks.audit.verify import verify
from holdfast.sinks.audit.writers import KIND
from holdfast.stores import open_store
from holdfast.testing import Fault, FaultServer, Refusal
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import Process, gateway

SECRET = "hunter2-never-written"


def trail(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().splitlines()
    assert verify((str(number), line) for number, line in enumerate(lines, 1)).holds
    return [json.loads(line) for line in lines]


@pytest.mark.promise("observe.audit")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_the_trail_says_who_did_what_with_which_outcome(tmp_path: Path, era: str) -> None:
    token, hashed = new_token()
    path = tmp_path / "audit.jsonl"
    settings: dict[str, Any] = {
        "auth": {"tokens": [{"hash": hashed, "principal": "alice"}]},
        "observe": {"audit": {"to": str(path)}},
        "sessions": {"steer": False},
    }
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}, **settings) as program,
        RawClient(program.url, token) as client,
        RawClient(program.url, "hft_wrong") as stranger,
    ):
        assert program.gateway is not None
        gate = program.gateway
        await until(lambda: gate.table.tools, 20)
        if era == "2025":
            await client.initialize()
        call = client.call if era == "2025" else client.call_2026
        await call("counter__count", secret=SECRET)
        http.plan(Fault.STATUS, method="tools/call", refusal=Refusal("odd", 500, b"", {}))
        await call("counter__count")
        await call("ghost__tool")
        assert (await stranger.ask("ping")).status == 401
        session = client.session
    entries = trail(path)
    calls = [entry for entry in entries if entry["type"] == "call"]
    assert [entry["outcome"] for entry in calls] == ["ok", "unknown", "refused"]
    assert {entry["principal"] for entry in calls} == {"alice"}
    assert calls[0]["arguments"] == {"secret": {"bytes": len(SECRET) + 2}}
    kinds = Counter(entry["type"] for entry in entries)
    assert kinds["refused"] == kinds["gateway_started"] == kinds["configuration"] == kinds["audit_ended"] == 1
    started = [entry for entry in entries if entry["type"] == "backend_client_initialized"]
    assert {entry["workload"] for entry in started} == {"counter"}
    if era == "2025":
        assert kinds["session_began"] == kinds["session_ended"] == 1
        assert [entry["session"] for entry in started if entry["session"]] == [calls[0]["session"]]
    text = path.read_text()
    for secret in (SECRET, token, "hft_wrong", session or "no session", *http.sessions.sessions):
        assert secret not in text


@pytest.mark.promise("observe.audit")
@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_the_trail_can_be_kept_in_the_store_by_several_gateways(tmp_path: Path, store: str) -> None:
    url = f"sqlite:///{tmp_path}/g.db" if store == "sqlite" else store
    settings: dict[str, Any] = {"store": url, "observe": {"audit": {"to": "store", "max_bytes": 4096, "keep": 2}}}
    lines: list[tuple[str, bytes]] = []

    async def collect() -> None:
        for record in (await opened.scan(kind=KIND)).records:
            entries = await opened.log(KIND, record.id)
            lines.extend((f"{record.id}:{entry.seq}", str(entry.data).encode()) for entry in entries)

    async with FaultServer() as http:
        for _ in range(2):
            async with gateway(tmp_path, {"counter": {"url": http.url}}, **settings) as program:
                async with RawClient(program.url) as client:
                    await client.initialize()
                    for _ in range(30):
                        await client.call("counter__count")
                if store == "memory:":
                    assert program.gateway is not None
                    opened = program.gateway.store
                    async with asyncio.timeout(patience(10)):
                        while not any(b'"type":"call"' in line for _, line in lines):
                            lines.clear()
                            await collect()
    if store == "sqlite":
        async with open_store(url) as opened:
            await collect()
    report = verify(lines)
    assert report.holds, report.faults
    if store == "sqlite":
        assert len(report.chains) == 2
        assert all(chain.ended for chain in report.chains.values())
        assert all(chain.first > 0 for chain in report.chains.values())  # old records went: each keeps two
    assert not report.torn


@pytest.mark.promise("observe.audit")
async def test_a_killed_gateway_leaves_a_trail_that_holds_up_to_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with FaultServer() as http:
        process = Process(tmp_path, {"counter": {"url": http.url}}, observe={"audit": {"to": "audit.jsonl"}})
        for _ in range(2):
            url = await process.start(f"sqlite:///{tmp_path}/g.db")
            async with RawClient(url) as client:
                await client.initialize()
                for _ in range(20):
                    await client.call("counter__count")
                await until(lambda: path.exists() and b'"type":"call"' in path.read_bytes(), 20)
            await process.stop(signal.SIGKILL)
    lines = path.read_bytes().splitlines()
    report = verify((str(number), line) for number, line in enumerate(lines, 1))
    assert report.holds
    assert [chain.ended for chain in report.chains.values()] == [False, False]


@pytest.mark.promise("observe.audit")
async def test_where_each_call_must_be_written_calls_wait_for_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True

    def write(self: object, lines: bytes) -> None:
        if full:
            raise OSError(28, "No space left on device")
        written.append(lines)

    written: list[bytes] = []
    monkeypatch.setattr("holdfast.sinks.audit.files.AuditFile.write", write)
    monkeypatch.setattr("holdfast.sinks.audit.sink.RETRY_SECONDS", 0.02)
    monkeypatch.setattr("holdfast.sinks.audit.sink.QUEUED", 20)
    settings: dict[str, Any] = {"observe": {"audit": {"to": "a.jsonl", "when_full": "block"}}}
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}, **settings) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        assert program.gateway is not None
        audit = program.gateway.audit_room.__self__.audit  # type: ignore[union-attr]
        made = 0
        while not audit.is_crowded:  # there is room for their lines
            await client.call("counter__count")
            made += 1
        waiting = [asyncio.create_task(client.call("counter__count")) for _ in range(5)]
        done, _ = await asyncio.wait(waiting, timeout=0.5)
        assert not done
        full = False
        async with asyncio.timeout(patience(20)):
            await asyncio.gather(*waiting)
    text = b"".join(written)
    assert made > 0
    assert text.count(b'"type":"call"') == made + 5
    assert b"audit_gap" not in text
