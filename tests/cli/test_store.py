"""`holdfast store …` as a person and a program use it: through the installed command's entry point."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast
from holdfast import Principal
from holdfast.cli import app
from holdfast.stores import Record

run = CliRunner()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/s.db"


@pytest.fixture
def filled(url: str) -> str:
    async def fill() -> None:
        async with holdfast.open_store(url) as store:
            made = await store.commit(Record("draft", "d1", Principal("alice"), {"text": "[bold]hi"}), expect=0)
            await store.commit(made.with_data({"text": "ä"}), expect=1, entries=[{"did": "edit"}, {"did": "more"}])
            await store.commit(Record("draft", "d2", Principal("bob"), idle=60), expect=0)
            await store.commit(Record("basket", "b1", Principal("alice"), idle=0.001), expect=0)
            await store.commit(Record("basket", "b2"), expect=0)
            await store.end("basket", "b2")
            await store.claim("draft", "d1", owner="worker 7", ttl=600)

    asyncio.run(fill())
    return url


@pytest.mark.promise("cli.version")
def test_version() -> None:
    result = run.invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"holdfast {holdfast.__version__}\n")


@pytest.mark.promise("cli.store")
def test_check_prints_a_line_for_each_proof_and_leaves_nothing_behind(filled: str) -> None:
    before = json.loads(run.invoke(app, ["store", "ls", filled, "--state", "all", "--json"]).output)
    result = run.invoke(app, ["store", "check", filled])
    assert result.exit_code == 0, result.output
    assert result.output.count("ok ") == 11
    assert result.output.splitlines()[-1] == "11 of 11 checks passed"
    after = json.loads(run.invoke(app, ["store", "ls", filled, "--state", "all", "--json"]).output)
    assert [(r["kind"], r["id"]) for r in after["records"]] == [(r["kind"], r["id"]) for r in before["records"]]


@pytest.mark.promise("cli.store")
def test_check_fails_with_the_reason_when_the_store_does(url: str, tmp_path: Path) -> None:
    assert run.invoke(app, ["store", "check", url]).exit_code == 2
    assert not (tmp_path / "s.db").exists()
    assert run.invoke(app, ["store", "check", url, "--create"]).exit_code == 0
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute("CREATE TRIGGER forget AFTER INSERT ON holdfast_log BEGIN DELETE FROM holdfast_log; END")
    db.close()
    result = run.invoke(app, ["store", "check", url, "--json"])
    report = json.loads(result.output)
    assert (result.exit_code, report["ok"]) == (1, False)
    assert [c["name"] for c in report["checks"] if not c["ok"]] == ["append to a log in order"]
    assert "10 of 11 checks passed" in run.invoke(app, ["store", "check", url]).output


@pytest.mark.promise("cli.store")
def test_ls_filters_and_says_what_it_left_out(filled: str) -> None:
    result = run.invoke(app, ["store", "ls", filled])
    assert result.exit_code == 0
    assert [line.split()[:5] for line in result.output.splitlines()[1:]] == [
        ["draft", "d1", "alice", "2", "live"],
        ["draft", "d2", "bob", "1", "live"],
    ]
    assert "… 1 of 2" in run.invoke(app, ["store", "ls", filled, "--limit", "1"]).output
    found = json.loads(
        run.invoke(app, ["store", "ls", filled, "--json", "--principal", "alice", "--state", "all"]).output
    )
    assert [(r["id"], r["state"]) for r in found["records"]] == [("b1", "expired"), ("d1", "live")]
    assert run.invoke(app, ["store", "ls", filled, "--kind", "none"]).output == "no records\n"
    assert run.invoke(app, ["store", "ls", filled, "--state", "asleep"]).exit_code == 2


@pytest.mark.promise("cli.store")
def test_ls_names_corrupt_rows_and_fails(filled: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute("UPDATE holdfast_records SET body = x'00' WHERE id = 'd2'")
    db.close()
    result = run.invoke(app, ["store", "ls", filled])
    assert result.exit_code == 1
    assert "d1" in result.output
    assert "corrupt: draft/d2 is not a record" in result.stderr
    checked = run.invoke(app, ["store", "check", str(filled)])
    assert (checked.exit_code, checked.output.splitlines()[-1]) == (1, "10 of 11 checks passed")
    assert "1 rows can't be read: draft/d2 is not a record" in checked.output


@pytest.mark.promise("cli.store")
def test_show_prints_the_record_its_log_and_its_claim(filled: str) -> None:
    text = run.invoke(app, ["store", "show", filled, "draft", "d1"]).output
    for part in ("principal  alice", "rev        2", '"text": "ä"', "#2 rev 2", '"did": "more"', "claimed by worker 7"):
        assert part in text
    found = json.loads(run.invoke(app, ["store", "show", filled, "draft", "d1", "--json"]).output)
    assert found["record"]["data"] == {"text": "ä"}
    assert [e["data"]["did"] for e in found["log"]] == ["edit", "more"]
    assert found["claim"]["owner"] == "worker 7"
    gone = run.invoke(app, ["store", "show", filled, "draft", "nobody"])
    assert (gone.exit_code, gone.stderr) == (1, "draft/nobody does not exist\n")
    assert "ended" in run.invoke(app, ["store", "show", filled, "basket", "b2"]).output


@pytest.mark.promise("cli.store")
def test_odd_names_and_far_dates_are_shown_as_they_are(url: str) -> None:
    odd = ["[/x]", "run:a:1", "[red]x", "x" * 300]

    async def fill() -> None:
        async with holdfast.open_store(url) as store:
            for id in odd:
                data = {"text": "\x1b[31m\x9b31m\u202e", "n": "ä"}
                await store.commit(Record("[b]", id, Principal("[red]alice"), data, max_age=9e10), expect=0)

    asyncio.run(fill())
    listed = run.invoke(app, ["store", "ls", url])
    assert listed.exit_code == 0, listed.output
    for id in [*odd, "[red]alice", "[b]", "Z"]:
        assert id in listed.output
    for id in odd:
        for extra in ([], ["--json"]):
            shown = run.invoke(app, ["store", "show", url, "[b]", id, *extra])
            assert shown.exit_code == 0, shown.output
            assert id in shown.output
            assert not {"\x1b", "\x9b", "\u202e"} & set(shown.output)
            assert '"\\u001b[31m\\u009b31m\\u202e"' in shown.output


@pytest.mark.promise("cli.store")
def test_a_reading_command_changes_nothing_in_somebody_elses_database(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = path.read_bytes()
    for command in (["ls"], ["reap"], ["check"]):
        result = run.invoke(app, ["store", *command, f"sqlite:///{path}"])
        assert (result.exit_code, "is not a Holdfast store" in result.stderr) == (2, True)
    assert path.read_bytes() == before


@pytest.mark.promise("cli.store")
def test_reap_says_how_many(filled: str) -> None:
    result = run.invoke(app, ["store", "reap", filled])
    assert result.output == "removed 1 expired records and 0 old tombstones\n"
    assert json.loads(run.invoke(app, ["store", "reap", filled, "--json"]).output) == {"expired": 0, "tombstones": 0}


@pytest.mark.promise("cli.seal")
def test_a_store_is_sealed_copied_and_read_with_its_keys(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, newer = (run.invoke(app, ["store", "key"]).output.strip() for _ in range(2))
    assert key != newer
    assert run.invoke(app, ["store", "reseal", filled]).exit_code == 2
    monkeypatch.setenv("HOLDFAST_KEYS", key)
    refused = run.invoke(app, ["store", "reseal", filled])
    assert (refused.exit_code, "not sealed" in refused.stderr) == (2, True)
    sealed = run.invoke(app, ["store", "reseal", filled, "--plaintext"])
    assert sealed.output == "3 of 4 records resealed\n"  # a tombstone has nothing to seal
    assert run.invoke(app, ["store", "show", filled, "draft", "d1"]).exit_code == 0

    copy = f"sqlite:///{tmp_path}/copy.db"
    monkeypatch.delenv("HOLDFAST_KEYS")  # sealed bytes are copied as they are
    assert run.invoke(app, ["store", "copy", filled, copy]).output == "4 records copied, 0 existed already\n"
    again = json.loads(run.invoke(app, ["store", "copy", filled, copy, "--json"]).output)
    assert again == {"copied": 0, "present": 4, "damaged": 0}
    locked = run.invoke(app, ["store", "show", copy, "draft", "d1"])
    assert (locked.exit_code, "opened without keys" in locked.stderr) == (2, True)

    file = tmp_path / "keys"
    file.write_text(f"{newer}\n{key}\n")
    for command in (["reseal", copy], ["show", copy, "draft", "d1"], ["ls", copy], ["check", copy]):
        result = run.invoke(app, ["store", *command, "--keys-file", str(file)])
        assert result.exit_code == 0, result.output + result.stderr
    file.write_text(newer)
    shown = json.loads(
        run.invoke(app, ["store", "show", copy, "draft", "d1", "--keys-file", str(file), "--json"]).output
    )
    assert shown["record"]["data"] == {"text": "ä"}
    assert [entry["data"]["did"] for entry in shown["log"]] == ["edit", "more"]


@pytest.mark.promise("cli.seal")
def test_bad_keys_are_explained_and_never_shown(filled: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("s3cret-but-short")
    (tmp_path / "empty").write_text("\n")
    for given, says in (
        (tmp_path / "empty", "is empty"),
        (file, "sealing key 1 is not 32 bytes"),
        (tmp_path / "none", "can't be read"),
    ):
        result = run.invoke(app, ["store", "ls", filled, "--keys-file", str(given)])
        assert (result.exit_code, says in result.stderr) == (2, True)
        assert "s3cret" not in result.stderr


@pytest.mark.promise("cli.errors")
@pytest.mark.parametrize("command", [["ls"], ["show"], ["reap"], ["check"]])
def test_an_error_is_one_line_and_a_remedy(command: list[str], tmp_path: Path) -> None:
    rest = ["draft", "d1"] if command == ["show"] else []
    result = run.invoke(app, ["store", *command, f"sqlite:///{tmp_path}/no/such.db", *rest])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the folder")
    assert "try: create it: mkdir -p" in result.stderr
    assert "Traceback" not in result.output
    if command != ["check"]:
        absent = run.invoke(app, ["store", *command, f"sqlite:///{tmp_path}/absent.db", *rest])
        assert (absent.exit_code, "there is no store" in absent.stderr) == (2, True)
        assert not (tmp_path / "absent.db").exists()


@pytest.mark.promise("cli.help")
@pytest.mark.parametrize(
    "command",
    [
        [],
        ["store"],
        *(["store", name] for name in ("check", "ls", "show", "reap", "key", "reseal", "copy")),
        ["tools"],
        ["call"],
        ["doctor"],
        ["runs"],
        *(["runs", name] for name in ("ls", "show", "end")),
    ],
)
def test_help_everywhere(command: list[str]) -> None:
    result = run.invoke(app, [*command, "--help"])
    assert (result.exit_code, "Usage" in result.output) == (0, True)
    if len(command) == 2:
        assert "--json" in result.output
