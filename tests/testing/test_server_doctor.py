"""The doctor finds our examples well, and names the illness of servers that are ill on purpose."""

import os
import re
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.state.storage.records import new_handle
from holdfast.testing import Expiry, Finding, Report, ServerUnderTest, UncheckedWarning, Verdict, server_doctor
from holdfast.testing.server_doctor import REMEDIES, like
from tests.deadlines import patience
from tests.state.replicas import FRAMEWORKS, ROOT

pytestmark = pytest.mark.anyio

TOKENS = ("alice-token", "bob-token")
ALL_BUT_ONE = set(REMEDIES) - {"one session"}


@pytest.mark.promise("state.doctor")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_example_is_well(framework: str, tmp_path: Path) -> None:
    server = ServerUnderTest(
        command=[sys.executable, "-m", "tests.state.replicas", framework, "{port}"],
        env={"BASKETS": f"sqlite:///{tmp_path}/baskets.db", "TOKENS": "1"},
        cwd=ROOT,
        create=("create_basket", {"note": "weekend"}),
        argument="basket_id",
        end="end_basket",
        write=lambda n: ("add", {"article": f"article {n}"}),
        slow=lambda n: ("slow", {"article": f"article {n}"}),
        read="resume_basket",
        count=lambda basket: sum(basket["state"]["items"].values()),
        credentials=TOKENS,
        expiry=Expiry(env={"IDLE": "1"}, seconds=1.5),
    )
    report = await server_doctor(server)
    report.raise_if_ill()
    assert report.skipped == ()
    assert {each.check for each in report.findings} == set(REMEDIES)
    assert {each.era for each in report.findings} == {"2025", "2026", "2025+2026"}
    assert "has expired" in " ".join(str(report).split())  # wherever the line breaks


def sick(illness: str, folder: Path, **declared: Any) -> ServerUnderTest:
    def whole(items: list[str]) -> int:
        wrapped = [item for item in items if item.startswith("wrapping")]
        if wrapped and len(wrapped) * 2 != len(items):
            raise ValueError("half a write")
        return len(items) - len(wrapped)

    settings: dict[str, Any] = {
        "command": [sys.executable, "-m", "tests.testing.sick_servers", illness, "{port}"],
        "env": {"STATE": str(folder), **({"TOKENS": "1"} if "credentials" in declared else {})},
        "cwd": ROOT,
        "create": "create",
        "end": "end",
        "write": lambda n: ("add", {"article": f"article {n}"}),
        "slow": lambda n: ("slow", {"article": f"article {n}"}),
        "read": "look",
        "count": whole,
        "recovery_seconds": 1.0,
    }
    return ServerUnderTest(**{**settings, **declared})


async def examined(server: ServerUnderTest, *names: str) -> dict[str, str]:
    """What was seen of each check that is ill: those named, in every era, and no other."""
    report = await server_doctor(server)
    assert {(each.check, each.era) for each in report.ill} == {(name, era) for name in names for era in server.eras}, (
        f"\n{report}"
    )
    with pytest.raises(AssertionError, match=f"the server failed checks: {', '.join(names)}\n") as told:
        report.raise_if_ill()
    assert str(told.value).endswith(str(report))
    assert all(each.remedy == REMEDIES[each.check] for each in report.ill)
    return {each.check: each.seen for each in (*report.ill, *report.skipped)}


@pytest.mark.promise("state.doctor")
async def test_state_in_the_process_is_named_and_so_is_what_could_not_be_checked(tmp_path: Path) -> None:
    seen = await examined(sick("process dict", tmp_path), "two replicas", "restart in mid-turn")
    assert "the second replica, read: refused: no such session" in seen["two replicas"]
    assert "after the restart, read: refused" in seen["restart in mid-turn"]
    assert "not the same on two replicas" in seen["parallel calls on two replicas"]
    assert "credentials=" in seen["foreign handle"]
    assert "expiry=" in seen["expired handle"]


@pytest.mark.promise("state.doctor")
async def test_sessions_that_lose_parallel_writes_are_named(tmp_path: Path) -> None:
    server = sick("fastmcp sessions", tmp_path, create="create_session", end="end_session")
    seen = await examined(server, "parallel calls", "parallel calls on two replicas")
    assert "of 20 writes at once" in seen["parallel calls"]


@pytest.mark.promise("state.doctor")
async def test_a_server_that_ignores_the_principal_is_named(tmp_path: Path) -> None:
    seen = await examined(sick("ignores principals", tmp_path, credentials=TOKENS), "foreign handle")
    assert "read of another principal's session was done" in seen["foreign handle"]


@pytest.mark.promise("state.doctor")
async def test_a_server_that_says_ok_to_unknown_handles_is_named(tmp_path: Path) -> None:
    seen = await examined(sick("says ok", tmp_path), "unknown handle", "odd handles")
    assert "write was done: ok" in seen["unknown handle"]
    assert "with control characters was done" in seen["odd handles"]


@pytest.mark.promise("state.doctor")
async def test_five_illnesses_at_once_are_told_apart(tmp_path: Path) -> None:
    async def forget(handle: str) -> None:
        with closing(sqlite3.connect(tmp_path / "rows.db", timeout=20)) as database, database:
            database.execute("DELETE FROM sessions WHERE id = ?", (handle,))

    illnesses = "tells strangers,revives,half turns,dies of odd handles"
    seen = await examined(
        sick(illnesses, tmp_path, credentials=TOKENS, expiry=forget),
        *("restart in mid-turn", "foreign handle", "ended handle", "expired handle", "odd handles"),
    )
    assert "half a write" in seen["restart in mid-turn"]
    assert "another user's session" in seen["foreign handle"]
    assert "write on the first replica was done" in seen["ended handle"]
    assert "the same answer as for an unknown handle" in seen["expired handle"]
    assert "write with 10 KB was no answer" in seen["odd handles"]


@pytest.mark.promise("state.doctor")
async def test_a_server_without_sessions_is_ill_once_and_the_rest_is_skipped(tmp_path: Path) -> None:
    server = sick("process dict", tmp_path, create="look", eras=["2026"])
    report = await server_doctor(server)
    [finding] = report.ill
    assert finding.check == "one session"
    assert "could not be begun" in finding.seen
    assert {each.check for each in report.skipped} == ALL_BUT_ONE


@pytest.mark.promise("state.doctor")
async def test_a_server_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    ends = [sys.executable, "-c", "import sys; sys.exit('no such database')", "{port}"]
    with pytest.raises(holdfast.errors.StartTimeout, match="ended with 1") as told:
        await server_doctor(sick("", tmp_path, command=ends))
    assert "no such database" in str(told.value)
    with pytest.raises(holdfast.errors.ConfigError, match="can't be started"):
        await server_doctor(sick("", tmp_path, command=["no-such-program", "{port}"]))
    silent = [sys.executable, "-c", "import signal; signal.pause()", "{port}"]
    with pytest.raises(holdfast.errors.StartTimeout, match="accepted no connection in time"):
        await server_doctor(sick("", tmp_path, command=silent, start_seconds=0.3))


@pytest.mark.promise("state.doctor")
@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({"command": "python server.py {port}"}, "not a list"),
        ({"command": []}, "not a list"),
        ({"command": ["python", "server.py", "8000"]}, "place for the port"),
        ({"eras": []}, "eras="),
        ({"eras": ["2024"]}, "eras="),
    ],
)
async def test_a_declaration_that_can_not_work_is_refused(declared: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(holdfast.errors.ConfigError, match=match):
        sick("", tmp_path, **declared)


@pytest.mark.promise("state.doctor")
async def test_the_report_is_a_table() -> None:
    long = "what was seen is long " * 8
    report = Report(
        (
            Finding("one session", "2025", Verdict.WELL, "all there"),
            Finding("two replicas", "2026", Verdict.ILL, long, "share a store"),
            Finding("foreign handle", "2026", Verdict.SKIPPED, "no credentials"),
        )
    )
    lines = str(report).splitlines()
    assert lines[0].split() == ["check", "era", "verdict", "observation,", "→", "what", "to", "do"]
    assert lines[2].split() == ["one", "session", "2025", "well", "all", "there"]
    assert lines[3].startswith("two replicas    2026  ILL      what was seen")
    column = lines[3].index("what was")
    assert all(line[:column].strip() == "" for line in lines[4:-1])
    assert lines[-2][column:] == "→ share a store"
    assert max(map(len, lines)) <= 120
    with pytest.warns(UncheckedWarning, match="not checked: foreign handle: no credentials"):
        Report(report.findings[::2]).raise_if_ill()


@pytest.mark.promise("state.doctor")
async def test_an_unknown_handle_has_the_shape_of_a_known_one() -> None:
    for handle in (str(uuid.uuid4()), uuid.uuid4().hex.upper(), new_handle(), "basket-00000000000017"):
        other = like(handle)
        assert other != handle
        assert len(other) == len(handle)
        assert other[: len(handle) // 2] == handle[: len(handle) // 2]
        assert [c.isdigit() or c.isalpha() for c in other] == [c.isdigit() or c.isalpha() for c in handle]
    uuid.UUID(like(str(uuid.uuid4())))
    assert like("7") not in map(str, range(1000))
    assert like("---") != "---"


@pytest.mark.promise("state.doctor")
def test_the_documented_test_runs_with_pytest_alone_and_says_what_it_did_not_check(tmp_path: Path) -> None:
    """The snippet of the guide as it stands, without anything that `holdfast[testing]` does not bring."""
    guide = (ROOT / "docs" / "servers.md").read_text()
    [snippet] = re.findall(r"```text\n(import asyncio, sys\n.*?)```", guide, re.DOTALL)
    missing = ("fastmcp", "aiohttp", "asyncpg", "redis", "langchain_core", "uncalled_for", "anyio.pytest_plugin")
    (tmp_path / "conftest.py").write_text(f"import sys\nfor name in {missing!r}: sys.modules[name] = None\n")
    (tmp_path / "test_mine.py").write_text(snippet)
    example = (ROOT / "examples" / "basket_mcpserver.py").read_text()
    blocked = "import sys\nsys.modules['fastmcp'] = None\n"
    served = "\nserver.run('streamable-http', port=int(sys.argv[1]))\n"
    (tmp_path / "server.py").write_text(blocked + example.partition("if __name__")[0] + served)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:anyio", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=patience(120), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "UncheckedWarning: not checked: " in done.stdout
    assert "no credentials of two principals were given" in done.stdout
    assert "no way to make a session expire was given" in done.stdout
