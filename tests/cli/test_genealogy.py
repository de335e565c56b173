"""`holdfast state tree` and `holdfast state stats` on what a server's helpers left in a file."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import app
from holdfast.core.models import Principal

run = CliRunner()
HOSTILE = 'x"];\n\x1b[31m</script> -->'


class Studio(holdfast.SessionState):
    topic: str = ""


class Draft(holdfast.SessionState):
    text: str = ""


class Plain(holdfast.state.CompanionOptions):
    pass


class Writer(holdfast.Companion[Draft, Plain]):
    phases = {"empty": ["drafted"], "drafted": ["revised"], "revised": ["drafted"]}


async def fill(url: str) -> tuple[str, str]:
    sessions = holdfast.Sessions(Studio, url)
    writers = holdfast.Companions(Writer, sessions)
    async with sessions.lifespan():
        session = await sessions.begin(Principal("alice"))
        writer = await writers.for_session(session)
        async with writer.step("draft", to="drafted") as turn:
            turn.state.text = "one"
        async with writer.step("revision", to="revised") as turn:
            turn.state.text = "two"
        await writer.undo()
        async with writer.step(HOSTILE) as turn:
            turn.state.text = "three"
        with pytest.raises(holdfast.errors.WrongPhase):
            async with writer.step("draft", to="empty"):
                pass
        forked = await writers.for_session(await session.fork())
        async with forked.step("revision", to="revised") as turn:
            turn.state.text = "four"
    return writer.handle, forked.handle


@pytest.mark.promise("companions.genealogy")
def test_a_tree_is_drawn_and_exported_whatever_labels_say(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    handle, forked = asyncio.run(fill(url))
    drawn = run.invoke(app, ["state", "tree", handle, "--store", url])
    assert drawn.exit_code == 0
    assert "2 draft → drafted" in drawn.stdout
    assert "4 undo → drafted (generation 1)" in drawn.stdout
    assert f"{forked}: 1 begin → drafted (generation 2)" in drawn.stdout
    assert "\x1b" not in drawn.stdout
    told = json.loads(run.invoke(app, ["state", "tree", handle, "--store", url, "--json"]).stdout)
    assert [(node["label"], node["parent"] and node["parent"]["rev"]) for node in told[:2]] == [
        ("begin", None),
        ("draft", 1),
    ]
    chart = run.invoke(app, ["state", "tree", handle, "--store", url, "--mermaid"]).stdout
    assert chart.startswith("flowchart TD\n")
    assert all(line.count('"') in (0, 2) for line in chart.splitlines())
    graph = run.invoke(app, ["state", "tree", handle, "--store", url, "--dot"]).stdout
    assert graph.startswith("digraph genealogy {\n")
    assert graph.rstrip().endswith("}")
    assert all(line.count('"') in (0, 2) for line in graph.splitlines())
    for wrong in ("s_never", "odd\x01", f"{handle}x"):
        refused = run.invoke(app, ["state", "tree", wrong, "--store", url])
        assert refused.exit_code == 2
        assert "error:" in refused.stderr


@pytest.mark.promise("companions.figures")
def test_stats_add_up_what_helpers_did(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    for _ in range(2):
        asyncio.run(fill(url))
    told = json.loads(run.invoke(app, ["state", "stats", "--store", url, "--json"]).stdout)
    assert set(told) == {"writer"}
    figures = told["writer"]
    assert (figures["steps"], figures["iterations"], figures["refusals"]) == (10, 4, {"drafted": 2})
    assert set(figures["seconds"]) == {"empty", "drafted", "revised"}
    shown = run.invoke(app, ["state", "stats", "--store", url]).stdout
    assert "writer: 10 steps, 4 iterations" in shown
    empty = f"sqlite:///{tmp_path}/empty.db"
    asyncio.run(_begin(empty))
    assert "no statistics" in run.invoke(app, ["state", "stats", "--store", empty]).stdout


async def _begin(url: str) -> None:
    async with holdfast.open_store(url):
        pass
