"""The page that Prometheus reads, of a real gateway: what it counts, and who may read it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.errors import ConfigError
from holdfast.gateway.auth import check_bind, new_token
from holdfast.gateway.config.file import load_config
from holdfast.testing import Fault, FaultServer, Refusal
from tests.deadlines import patience, until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway

SERVED = "mcp_server_operation_duration_seconds_count"


async def page(url: str, token: str | None = None, **headers: str) -> tuple[int, str]:
    sent = {**headers, **({"authorization": f"Bearer {token}"} if token else {})}
    async with aiohttp.ClientSession() as http, http.get(url, headers=sent) as answer:
        return answer.status, await answer.text()


def counts(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in labels)
                found[key] = found.get(key, 0.0) + sample.value
    return found


@pytest.mark.promise("observe.metrics")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_what_clients_got_is_counted(tmp_path: Path, era: str) -> None:
    settings: dict[str, Any] = {"observe": {"metrics": {}}, "sessions": {"steer": False}}
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}, **settings) as program,
        RawClient(program.url) as client,
    ):
        gate = program.gateway
        assert gate is not None
        await until(lambda: gate.table.tools, 20)
        if era == "2025":
            await client.initialize()
        call = client.call if era == "2025" else client.call_2026
        for _ in range(3):
            await call("counter__count")
        http.plan(Fault.STATUS, method="tools/call", refusal=Refusal("odd", 500, b"", {}))
        await call("counter__count")
        await call("ghost__tool")
        status, text = await page(program.url.replace("/mcp", "/metrics"))
        session = client.session or "none"
    assert status == 200
    found = counts(text, SERVED, "mcp_method_name", "outcome")
    calls = {outcome: value for (method, outcome), value in found.items() if method == "tools/call"}
    assert calls == {"ok": 3.0, "unknown": 1.0, "refused": 1.0}
    assert counts(text, SERVED, "gen_ai_tool_name")["counter__count",] == 4.0
    assert counts(text, "holdfast_backend_up", "backend") == {("counter",): 1.0}
    assert counts(text, "holdfast_circuit_open", "backend") == {("counter",): 0.0}
    assert counts(text, "holdfast_links", "backend")["counter",] >= 1
    assert counts(text, "holdfast_sessions", "era")[era,] == (1.0 if era == "2025" else 0.0)
    assert counts(text, "holdfast_backend_starts_total", "backend")["counter",] >= 1
    assert counts(text, "holdfast_store_seconds_count", "operation")["commit",] >= 1
    assert "process_resident_memory_bytes" in text
    assert session not in text


@pytest.mark.promise("observe.metrics")
async def test_a_port_of_its_own_and_a_token_guard_the_page(tmp_path: Path) -> None:
    token, hashed = new_token()
    settings: dict[str, Any] = {"observe": {"metrics": {"port": 0, "token": hashed, "path": "/m"}}}
    async with FaultServer() as http, gateway(tmp_path, {"counter": {"url": http.url}}, **settings) as program:
        url = f"http://127.0.0.1:{program.metrics_port}/m"
        assert (await page(url, token))[0] == 200
        assert (await page(url))[0] == 401
        assert (await page(url, "hft_other"))[0] == 401
        assert (await page(url, token, host="evil.example"))[0] == 421
        assert (await page(url.replace("/m", "/other"), token))[0] == 404
        assert (await page(program.url.replace("/mcp", "/m"), token))[0] == 404


@pytest.mark.promise("observe.metrics")
@pytest.mark.parametrize(
    ("observe", "listen", "names"),
    [
        ({"metrics": {"port": 9464, "host": "0.0.0.0"}}, {}, "observe.metrics.host"),
        ({"metrics": {"path": "/mcp"}}, {}, "/mcp is served already"),
        ({"metrics": {"token": "secret"}}, {}, "is not a hash"),
    ],
)
def test_a_page_that_everyone_could_read_or_nobody_could_find_is_refused(
    tmp_path: Path, observe: dict[str, Any], listen: dict[str, Any], names: str
) -> None:
    file = tmp_path / "gateway.json"
    file.write_text(json.dumps({"mcpServers": {}, "observe": observe, "listen": listen}))
    with pytest.raises(ConfigError, match=names):
        check_bind(load_config(file).settings, insecure=False)


@pytest.mark.promise("observe.dropped")
async def test_events_that_the_audit_trail_could_not_take_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: object, lines: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.sinks.audit.files.AuditFile.write", write)
    settings: dict[str, Any] = {"observe": {"metrics": {}, "audit": {"to": str(tmp_path / "a.jsonl")}}}
    async with (
        FaultServer() as http,
        gateway(tmp_path, {"counter": {"url": http.url}}, **settings) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        for _ in range(5):
            await client.call("counter__count")

        async def dropped() -> float:
            _, text = await page(program.url.replace("/mcp", "/metrics"))
            return counts(text, "holdfast_events_dropped_total", "sink").get(("audit",), 0.0)

        async with asyncio.timeout(patience(10)):
            while (before := await dropped()) < 5:
                await asyncio.sleep(0.01)
        assert before == await dropped() < 100  # counted once, however often the page is read
