"""`holdfast audit verify`."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import app
from holdfast.core.models import Record
from holdfast.sinks.audit.chain import Chain
from holdfast.sinks.audit.verify import END
from holdfast.sinks.audit.writers import KIND, OWNER
from holdfast.stores import open_store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def trail(count: int = 3) -> list[bytes]:
    chain = Chain()
    calls = [chain.line({"at": "2026-01-01T00:00:00.000Z", "type": "call", "n": number}) for number in range(count)]
    return [*calls, chain.line({"at": "2026-01-01T00:00:01.000Z", "type": END})]


@pytest.mark.promise("observe.audit-chain")
def test_a_trail_over_two_files_holds_and_an_altered_one_does_not(tmp_path: Path) -> None:
    older, newer = tmp_path / "audit.jsonl.1", tmp_path / "audit.jsonl"
    lines = trail()
    older.write_bytes(b"".join(lines[:2]))
    newer.write_bytes(b"".join(lines[2:]))
    whole = run("audit", "verify", str(older), str(newer))
    assert whole.exit_code == 0
    assert "4 lines: the trail holds" in whole.output
    newer.write_bytes(lines[2].replace(b'"n":2', b'"n":3') + lines[3])
    altered = run("audit", "verify", str(older), str(newer), "--json")
    assert altered.exit_code == 1
    found = json.loads(altered.output)
    assert (found["holds"], len(found["faults"])) == (False, 2)
    assert f"{newer}:1" in found["faults"][0]


@pytest.mark.promise("observe.audit-chain")
def test_a_trail_in_a_store_is_verified(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"

    async def write() -> None:
        async with open_store(url) as store:
            entries = [line.decode().rstrip() for line in trail()]
            await store.commit(Record(KIND, "p-000000", OWNER, {}), expect=0, entries=entries)

    asyncio.run(write())
    found = run("audit", "verify", "--store", url, "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.output)["lines"] == 4


@pytest.mark.promise("observe.audit-chain")
def test_files_or_a_store_are_named(tmp_path: Path) -> None:
    nothing = run("audit", "verify")
    assert nothing.exit_code == 2
    assert "name files, or a store with --store" in nothing.output
