"""`holdfast state …` on what servers wrote: sessions made by `Sessions` on a file, then looked at by the command."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result
from pydantic import Field

from holdfast import Principal, Sessions, SessionState, Store, open_store
from holdfast.cli import app
from holdfast.core.values import members
from holdfast.errors import NotFound
from holdfast.state import migrate
from holdfast.state.storage import records
from holdfast.state.storage.entries import KIND
from holdfast.stores import ManualClock, Record
from holdfast.stores.sealing import new_key
from holdfast.stores.sqlite.store import SqliteStore

run = CliRunner()
T = TypeVar("T")
ALICE, BOB = Principal("alice"), Principal("bob")
HOSTILE = "[red]\x1b[31m\x9b31m\u202e\nü"


class Basket(SessionState):
    items: list[str] = Field(default_factory=list)
    count: int = 0
    note: str | None = None


class Draft1(SessionState):
    text: str = ""
    notes: list[str] = Field(default_factory=list)


class Draft2(SessionState, version=2):
    text: str = ""
    critiques: list[str] = Field(default_factory=list)

    @migrate(from_version=1)
    def _v1(raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[misc]  # noqa: N805
        return {"text": raw["text"], "critiques": raw["notes"]}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/s.db"


def on(url: str, work: Callable[[Store], Awaitable[T]], **settings: Any) -> T:
    """What a server does, in an event loop of its own."""

    async def main() -> T:
        async with open_store(url, **settings) as store:
            return await work(store)

    return asyncio.run(main())


def state(url: str, *arguments: str) -> Result:
    return run.invoke(app, ["state", *arguments, "--store", url])


def state_json(url: str, *arguments: str) -> Any:
    result = state(url, *arguments, "--json")
    assert result.exit_code == 0, result.output + result.stderr
    return json.loads(result.output)


def refused(result: Result) -> str:
    """What it says when it could not be asked: few lines, no traceback, nothing for the terminal to obey."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) <= 3
    assert not {"\x1b", "\x9b", "\u202e"} & set(result.stderr)
    return result.stderr


def refused_json(result: Result) -> dict[str, Any]:
    """The error as a program reads it: an object on stdout, and nothing beside it."""
    assert (result.exit_code, result.stderr) == (2, "")
    assert not {"\x1b", "\x9b", "\u202e"} & set(result.stdout)
    return json.loads(result.stdout)["error"]


def sql(tmp_path: Path, statement: str, *given: object) -> None:
    with sqlite3.connect(tmp_path / "s.db") as db:
        assert db.execute(statement, given).rowcount == 1
    db.close()


async def filled(store: Store) -> str:
    """A basket of Alice's with five revisions, and one of Bob's."""
    sessions = Sessions(Basket, store)
    basket = await sessions.begin(ALICE, title="Sunday")
    for item in ("apple", "pear"):
        async with basket.edit(f"add {item}") as draft:
            draft.items.append(item)
            draft.count += 1
    await basket.log.add("told", {"by": "mail"})
    async with basket.edit("note") as draft:
        draft.note = "soon"
    await sessions.begin(BOB)
    return basket.handle


@pytest.mark.promise("cli.state")
def test_ls_shows_the_living_by_principal_and_type(url: str) -> None:
    async def fill(store: Store) -> str:
        handle = await filled(store)
        await Sessions(Draft1, store, name="draft", idle=90, max_age=None).begin(ALICE)
        await (await Sessions(Basket, store).begin(ALICE)).end()
        await store.commit(Record("other", "x", ALICE), expect=0)
        return handle

    handle = on(url, fill)
    listed = state(url, "ls")
    assert listed.exit_code == 0, listed.output
    head, *lines = listed.output.splitlines()
    assert head.split() == ["handle", "type", "title", "principal", "rev", "created", "expires", "idle"]
    assert len(lines) == 3
    [mine] = [line.split() for line in lines if line.startswith(handle)]
    assert mine[:5] == [handle, "Basket", "Sunday", "alice", "5"]
    assert mine[-2:] == ["1", "d"]
    assert {each["principal"] for each in state_json(url, "ls", "--principal", "bob")["sessions"]} == {"bob"}
    [draft] = state_json(url, "ls", "--type", "draft")["sessions"]
    assert (draft["type"], draft["version"], draft["idle"], draft["max_age"]) == ("draft", 1, 90.0, None)
    assert state_json(url, "ls", "--type", "draft", "--principal", "bob") == {
        "sessions": [],
        "more": False,
        "corrupt": [],
    }
    assert state(url, "ls", "--type", "nothing").output == "no sessions\n"
    assert state(url, "ls", "--limit", "0").exit_code == 2


@pytest.mark.promise("cli.state")
def test_ls_goes_through_pages_and_no_further_than_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill(store: Store) -> list[str]:
        baskets, drafts = Sessions(Basket, store), Sessions(Draft1, store, name="draft")
        made = [await (drafts if number % 5 == 0 else baskets).begin(ALICE) for number in range(250)]
        return sorted(each.handle for each in made)

    handles = on(url, fill)
    scans: list[object] = []
    original = SqliteStore.scan

    async def scan(self: SqliteStore, **given: Any) -> Any:
        scans.append(given)
        return await original(self, **given)

    monkeypatch.setattr(SqliteStore, "scan", scan)
    assert sorted(each["handle"] for each in state_json(url, "ls")["sessions"]) == handles
    assert len(scans) == 3
    scans.clear()
    found = state_json(url, "ls", "--limit", "7")
    assert (len(found["sessions"]), found["more"], len(scans)) == (7, True, 1)
    assert state(url, "ls", "--limit", "7").output.splitlines()[-1] == "… 7 shown; see more with --limit"
    assert [state_json(url, "ls", "--limit", str(n))["more"] for n in (249, 250, 251)] == [True, False, False]
    drafts = state_json(url, "ls", "--type", "draft", "--limit", "50")  # spread over all pages
    assert (len(drafts["sessions"]), drafts["more"]) == (50, False)
    assert {each["type"] for each in drafts["sessions"]} == {"draft"}


@pytest.mark.promise("cli.state")
def test_show_tells_everything_now_and_at_each_revision(url: str) -> None:
    handle = on(url, filled)
    text = state(url, "show", handle).output
    for part in (f"handle     {handle}", "type       Basket, version 1", "title      Sunday", "principal  alice"):
        assert part in text
    for part in ("rev        5", "created    20", "touched    20", "(idle 1 d, maximum age 30 d)", '"note": "soon"'):
        assert part in text
    assert "parent" not in text
    states = [state_json(url, "show", handle, "--rev", str(rev))["state"] for rev in range(1, 6)]
    empty: dict[str, Any] = {"items": [], "count": 0, "note": None}
    apple = {"items": ["apple"], "count": 1, "note": None}
    both = {"items": ["apple", "pear"], "count": 2, "note": None}
    assert states == [empty, apple, both, both, {**both, "note": "soon"}]
    shown = state_json(url, "show", handle)
    assert (shown["rev"], shown["at"], shown["state"]) == (5, 5, states[-1])
    assert "state at revision 2" in state(url, "show", handle, "--rev", "2").output
    for rev in ("6", "9" * 30):
        assert "ask for one from 1 to 5" in refused(state(url, "show", handle, "--rev", rev))
    for rev in ("0", "-1", "two"):
        assert state(url, "show", handle, "--rev", rev).exit_code == 2


@pytest.mark.promise("cli.state")
def test_show_and_fork_go_back_across_a_new_version_and_many_pages(url: str) -> None:
    async def fill(store: Store) -> str:
        old = await Sessions(Draft1, store, name="draft").begin(ALICE)
        for number in range(2, 121):
            async with old.edit() as draft:
                draft.text, draft.notes = str(number), [f"note {number}"]
        new = await Sessions(Draft2, store, name="draft").find(old.handle, ALICE)
        for number in range(121, 241):
            async with new.edit() as later:
                later.text, later.critiques = str(number), [f"critique {number}"]
        assert new.rev == 240
        return new.handle

    handle = on(url, fill)
    for rev in (1, 2, 119, 120, 121, 139, 140, 141, 239, 240):
        shown = state_json(url, "show", handle, "--rev", str(rev))
        word = "note" if rev <= 120 else "critique"
        assert (shown["at"], shown["version"]) == (rev, 1 if rev <= 120 else 2)
        assert shown["state"] == {
            "text": str(rev) if rev > 1 else "",
            f"{word}s": [f"{word} {rev}"] if rev > 1 else [],
        }
    assert "all of it, from version 1" in state(url, "log", handle, "--last", "200").output
    child = state(url, "fork", handle, "--rev", "100").output.strip()
    assert state_json(url, "show", child)["version"] == 1

    async def read(store: Store) -> Draft2:
        return (await Sessions(Draft2, store, name="draft").find(child, ALICE)).state

    assert on(url, read) == Draft2(text="100", critiques=["note 100"])  # the server's own code takes it up


@pytest.mark.promise("cli.state")
def test_log_tells_what_changed(url: str) -> None:
    handle = on(url, filled)
    lines = [line.split(maxsplit=4) for line in state(url, "log", handle).output.splitlines()[1:]]
    assert [(seq, rev) for seq, rev, *_ in lines] == [("1", "2"), ("2", "3"), ("3", "4"), ("4", "5")]
    assert [rest.strip() for *_, rest in lines] == [
        "add apple  items was []; count was 0",
        'add pear   items was ["apple"]; count was 1',
        'told       noted {"by": "mail"}',
        "note       note was null",
    ]
    last = state(url, "log", handle, "--last", "1").output.splitlines()
    assert (len(last), last[-1]) == (3, "… 3 older ones; see more with --last")
    found = state_json(url, "log", handle, "--last", "2")
    assert found["older"] == 2
    assert [(e["seq"], e["label"], e["was"], e["data"]) for e in found["entries"]] == [
        (3, "told", {}, {"by": "mail"}),
        (4, "note", {"set": {"note": None}, "new": []}, None),
    ]
    [other] = state_json(url, "ls", "--principal", "bob")["sessions"]
    assert state(url, "log", other["handle"]).output == "no entries yet\n"
    assert state_json(url, "log", other["handle"])["entries"] == []


@pytest.mark.promise("cli.state")
def test_a_fork_is_a_session_of_the_same_owner_that_the_server_goes_on_with(url: str) -> None:
    handle = on(url, filled)
    before = state_json(url, "show", handle)
    now = state(url, "fork", handle).output.strip()
    then = state_json(url, "fork", handle, "--rev", "2", "--title", "Monday")
    assert len({handle, now, then["handle"]}) == 3
    assert (then["title"], then["parent"], then["rev"]) == ("Monday", {"handle": handle, "rev": 2}, 1)
    assert f"parent     {handle} at revision 5" in state(url, "show", now).output

    async def go_on(store: Store) -> None:
        sessions = Sessions(Basket, store)
        one, other = await sessions.find(now, ALICE), await sessions.find(then["handle"], ALICE)
        assert one.state.items == ["apple", "pear"]
        assert (one.title, one.parent) == ("Sunday", (handle, 5))
        assert (other.state.items, other.state.note, other.parent) == (["apple"], None, (handle, 2))
        async with other.edit() as draft:
            draft.items.append("fig")
        with pytest.raises(NotFound):
            await sessions.find(now, BOB)
        record = await store.get(KIND, now)
        assert record is not None
        assert (record.idle, record.max_age) == (before["idle"], before["max_age"])
        assert set(members(record.data)) == {"t", "v", "state", "title", "parent"}

    on(url, go_on)
    assert state_json(url, "show", handle) == before
    assert "there is no revision 6" in refused(state(url, "fork", handle, "--rev", "6"))
    assert len(state_json(url, "ls", "--principal", "alice")["sessions"]) == 3


@pytest.mark.promise("cli.state")
def test_end_ends_and_says_which_were_not_there(url: str) -> None:
    handle = on(url, filled)
    [other] = state_json(url, "ls", "--principal", "bob")["sessions"]
    first = state(url, "end", handle)
    assert (first.exit_code, first.output) == (0, f"ended session {handle}\n")
    again = state(url, "end", handle, "s_never", other["handle"], other["handle"])
    assert (again.exit_code, again.output.splitlines()) == (
        1,
        [
            f"there was no session {handle} to end: it was ended before",
            "there was no session s_never to end: it is unknown here",
            f"ended session {other['handle']}",
        ],
    )
    third = state(url, "end", handle, other["handle"], "s_never", "--json")
    assert third.exit_code == 1
    absent = {handle: "ended", other["handle"]: "ended", "s_never": "unknown"}
    assert json.loads(third.output) == {"ended": [], "absent": absent}
    assert state(url, "ls").output == "no sessions\n"
    assert run.invoke(app, ["state", "end", "--store", url]).exit_code == 2


@pytest.mark.promise("cli.errors")
def test_unknown_ended_and_expired_are_told_apart(url: str) -> None:
    async def fill(store: Store) -> tuple[str, str]:
        sessions = Sessions(Basket, store, idle=60)
        ended = await sessions.begin(ALICE)
        await ended.end()
        return (await sessions.begin(ALICE)).handle, ended.handle

    expired, ended = on(url, fill, clock=ManualClock(1_500_000_000.0))
    for command in ("show", "log", "fork"):
        for handle, says, kind in (
            ("s_never", "the session 's_never' does not exist", "NotFound"),
            (ended, f"the session {ended!r} was ended", "Ended"),
            (expired, f"the session {expired!r} has expired", "SessionExpired"),
        ):
            told = refused(state(url, command, handle))
            assert says in told
            assert "  try: " in told
            error = refused_json(state(url, command, handle, "--json"))
            assert (error["type"], error["family"], error["message"]) == (kind, "Rejected", says)
            assert error["remedy"] in told
    gone = state(url, "end", expired, ended, "--json")
    assert (gone.exit_code, json.loads(gone.output)) == (1, {"ended": [expired], "absent": {ended: "ended"}})
    assert state(url, "end", expired).output == f"there was no session {expired} to end: it was ended before\n"
    absent = url.replace("s.db", "absent.db")
    for command in (["ls"], ["show", "x"], ["log", "x"], ["fork", "x"], ["end", "x"]):
        assert "there is no store" in refused(state(absent, *command))


@pytest.mark.promise("cli.errors")
@pytest.mark.parametrize("odd", ["", "\x1b[31m", "a\nb", "\udcff", "x" * 600, "\x00", "\u202e\x9b"])
def test_an_odd_handle_is_an_error_and_ends_nothing(url: str, odd: str) -> None:
    handle = on(url, filled)
    for command in (["show", odd], ["log", odd], ["fork", odd], ["end", handle, odd]):
        assert "is not a handle" in refused(state(url, *command))
        assert "is not a handle" in refused_json(state(url, *command, "--json"))["message"]
    assert state(url, "show", handle).exit_code == 0
    assert "principal" in refused(state(url, "ls", "--principal", odd))
    assert state(url, "ls", "--type", odd).output == "no sessions\n"
    if odd == "\udcff":
        assert "data.title" in refused(state(url, "fork", handle, "--title", odd))


@pytest.mark.promise("cli.errors")
def test_names_of_others_are_no_commands_to_the_terminal(url: str) -> None:
    async def fill(store: Store) -> str:
        sessions = Sessions(Basket, store, name=HOSTILE)
        session = await sessions.begin(Principal("[/b]alice"), Basket(note=HOSTILE), title=HOSTILE * 20)
        async with session.edit(HOSTILE) as draft:
            draft.note = None
        await session.log.add(HOSTILE, HOSTILE)
        await store.commit(Record(KIND, "[b]:x: /", data={"t": HOSTILE, "v": 1, "state": {HOSTILE: 1}}), expect=0)
        return session.handle

    handle = on(url, fill)
    for command in (
        ["ls"],
        ["show", handle],
        ["show", handle, "--rev", "1"],
        ["log", handle],
        ["show", "[b]:x: /"],
        ["fork", "[b]:x: /", "--title", HOSTILE],
    ):
        for extra in ([], ["--json"]):
            result = state(url, *command, *extra)
            assert result.exit_code == 0, result.output + result.stderr
            assert not {"\x1b", "\x9b", "\u202e"} & set(result.output)
    lines = state(url, "ls").output.splitlines()
    assert len(lines) == 5  # two sessions, two forks: nobody's title takes a line of its own
    assert "[/b]alice" in "".join(lines)
    assert state_json(url, "show", handle)["title"] == HOSTILE * 20
    assert state_json(url, "ls", "--type", HOSTILE)["sessions"] == state_json(url, "ls")["sessions"]


@pytest.mark.promise("cli.errors")
def test_what_is_no_session_is_told_and_hides_no_other(url: str, tmp_path: Path) -> None:
    handle = on(url, filled)
    odd: list[Any] = [
        None,
        [1],
        {},
        {"t": "x", "v": 1},
        {"t": 1, "v": 1, "state": {}},
        {"t": "x", "v": True, "state": {}},
    ]

    async def fill(store: Store) -> None:
        for number, data in enumerate(odd):
            await store.commit(Record(KIND, f"odd-{number}", ALICE, data), expect=0)

    on(url, fill)
    assert state(url, "ls").exit_code == 0
    for number in range(len(odd)):
        for command in ("show", "fork"):
            assert "is not a session" in refused(state(url, command, f"odd-{number}"))
        assert state(url, "log", f"odd-{number}").output == "no entries yet\n"
        assert state(url, "end", f"odd-{number}").exit_code == 0

    [other] = state_json(url, "ls", "--principal", "bob")["sessions"]
    sql(tmp_path, "UPDATE holdfast_records SET body = x'00' WHERE id = ?", other["handle"])
    listed = state(url, "ls")
    assert (listed.exit_code, handle in listed.stdout) == (1, True)
    assert f"corrupt: state/{other['handle']} is not a record" in listed.stderr
    report = json.loads(run.invoke(app, ["state", "ls", "--store", url, "--json"]).stdout)
    assert ([each["handle"] for each in report["sessions"]], len(report["corrupt"])) == ([handle], 1)
    for command in ("show", "fork"):
        assert "is not a record" in refused(state(url, command, other["handle"]))
    assert state(url, "end", other["handle"]).exit_code == 0  # an operator can be rid of it
    assert state(url, "ls").exit_code == 0


@pytest.mark.promise("cli.errors")
@pytest.mark.parametrize(
    "entries",
    [
        [],
        [None],
        [{"label": "x"}],
        [{"label": 7, "was": [1]}],
        [{"was": {"set": [1], "new": []}}],
        [{"was": {"set": {}, "new": [["a"]]}}],
        [{"was": {"state": {}, "v": "1"}}],
        [{"was": {"state": None, "v": 1}}],
        [{"was": {}}, {"was": None}],
    ],
)
def test_a_log_that_does_not_lead_back_is_told_and_never_stepped_over(url: str, entries: list[Any]) -> None:
    handle = on(url, filled)

    async def write(store: Store) -> None:
        record = await store.get(KIND, handle)
        assert record is not None
        record = await store.commit(record, expect=5, entries=entries)
        await store.commit(record, expect=6, entries=[{"label": "fine", "was": {}}])

    on(url, write)
    assert state(url, "show", handle).exit_code == 0
    assert state(url, "log", handle).exit_code == 0
    assert len(state_json(url, "log", handle)["entries"]) == 5 + len(entries)
    assert state(url, "show", handle, "--rev", "6").exit_code == 0
    for command in ("show", "fork"):
        told = refused(state(url, command, handle, "--rev", "4"))
        assert "does not have the " in told
        assert "revision 6 and later ones are available" in told


@pytest.mark.promise("cli.errors")
def test_a_hole_in_a_log_is_told(url: str, tmp_path: Path) -> None:
    handle = on(url, filled)
    sql(tmp_path, "DELETE FROM holdfast_log WHERE id = ? AND last = 2", handle)
    for command in (["log"], ["show", "--rev", "1"], ["fork", "--rev", "1"]):
        assert "the log of" in refused(state(url, command[0], handle, *command[1:]))
    assert state(url, "show", handle).exit_code == 0


@pytest.mark.promise("cli.state")
def test_all_entries_of_one_revision_are_gone_back(url: str) -> None:
    handle = on(url, filled)

    async def write(store: Store) -> None:
        record = await store.get(KIND, handle)
        assert record is not None
        changes: list[Any] = [{"was": {"set": {"count": 2}, "new": ["extra"]}}, {"was": {"set": {"count": 7}}}]
        data = members(record.data)
        data["state"] = {**data["state"], "count": 8, "extra": True}
        await store.commit(record.with_data(data), expect=5, entries=changes)

    on(url, write)
    assert state_json(url, "show", handle, "--rev", "6")["state"]["extra"] is True
    for rev, count in ((5, 2), (3, 2), (2, 1)):
        before = state_json(url, "show", handle, "--rev", str(rev))["state"]
        assert (before["count"], "extra" in before) == (count, False)
    assert "extra is new" in state(url, "log", handle).output


@pytest.mark.promise("cli.state")
def test_a_session_that_goes_on_or_ends_while_it_is_read(url: str) -> None:
    handle = on(url, filled)

    async def work(store: Store) -> None:
        stale = await records.find(store, handle)
        session = await Sessions(Basket, store).find(handle, ALICE)
        async with session.edit("late") as draft:
            draft.items = []
        assert (await records.at(store, stale, 2))["state"]["items"] == ["apple"]
        assert (await records.at(store, stale, 5))["state"]["note"] == "soon"
        await session.end()
        with pytest.raises(NotFound, match="ended while it was read"):
            await records.at(store, stale, 2)

    on(url, work)


@pytest.mark.promise("cli.seal")
def test_a_sealed_store_is_read_forked_and_ended_with_its_keys(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key()
    handle = on(url, filled, keys=[key])
    file = tmp_path / "keys"
    file.write_text(key)
    for command in (["show", handle], ["log", handle], ["fork", handle]):
        assert "opened without keys" in refused(state(url, *command))
    assert "opened without keys" in refused(state(url, "ls"))
    keys = ("--keys-file", str(file))
    assert state_json(url, "show", handle, "--rev", "2", *keys)["state"]["items"] == ["apple"]
    assert len(state_json(url, "log", handle, *keys)["entries"]) == 4
    monkeypatch.setenv("HOLDFAST_KEYS", key)
    child = state(url, "fork", handle, "--rev", "2").output.strip()
    assert len(state_json(url, "ls")["sessions"]) == 3
    assert state(url, "end", handle).exit_code == 0
    assert b"apple" not in b"".join(path.read_bytes() for path in tmp_path.glob("s.db*"))  # the fork is sealed, too
    assert state_json(url, "show", child)["parent"] == {"handle": handle, "rev": 2}


@pytest.mark.promise("cli.help")
@pytest.mark.parametrize("command", [[], ["ls"], ["show"], ["log"], ["fork"], ["end"]])
def test_help_of_state(command: list[str]) -> None:
    result = run.invoke(app, ["state", *command, "--help"])
    assert (result.exit_code, "Usage" in result.output) == (0, True)
    if command:
        assert "--json" in result.output
        assert "--keys-file" in result.output


@pytest.mark.promise("cli.state")
def test_the_command_starts_without_the_sdk() -> None:
    code = "import sys, holdfast.cli; sys.exit(any(name in sys.modules for name in ('mcp', 'fastmcp')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.promise("cli.state")
def test_handles_are_long_and_never_the_same() -> None:
    made = {records.new_handle() for _ in range(1000)}
    assert len(made) == 1000
    assert {(len(each), each[:2]) for each in made} == {(34, "s_")}
