"""Text on a terminal: escapes, widths, styles; and nothing of that where the output goes elsewhere."""

import asyncio
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.cli.terminal import GREEN, Stream, Styled, columns, cut, inline, padded
from holdfast.sinks.shown import printable
from holdfast.stores import Record
from tests.deadlines import patience

HOLDFAST = str(Path(sys.executable).parent / "holdfast")
COMMANDS = "\x1b\x9b\x07\x00\x7f\r\t\u202e\u2066\u200b\u200f\u2028\u2029\ufeff\ud800\U000e0041"


@pytest.mark.promise("cli.hostile")
@pytest.mark.parametrize("character", COMMANDS)
def test_a_character_that_commands_a_terminal_is_shown_as_its_escape(character: str) -> None:
    for shown in (printable(f"a{character}b"), inline(f"a{character}b")):
        assert character not in shown
        assert shown.startswith("a\\")
        assert shown.endswith("b")
        assert shown.isascii()


@pytest.mark.promise("cli.hostile")
def test_names_of_all_scripts_stay_as_they_are() -> None:
    for name in ("Łódź", "東京", "किताब", "می‌خواهم", "👩‍🚀", "שלום"):
        assert inline(name) == name
    assert (printable("a\nb"), inline("a\nb")) == ("a\nb", "a\\nb")


@pytest.mark.promise("cli.hostile")
@given(st.text(), st.integers(1, 30))
def test_a_cut_text_fits_and_is_one_line(text: str, width: int) -> None:
    shown = cut(inline(text), width)
    assert columns(shown) <= width
    assert len(shown.splitlines()) <= 1
    assert columns(padded(shown, width)) == width


@pytest.mark.promise("cli.terminal")
@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("東京都庁", 7, "東京都…"),
        ("東京都庁", 6, "東京…"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…"),
        ("ab\\u001bcd", 6, "ab…"),
        ("ab\\u001bcd", 9, "ab\\u001b…"),
    ],
)
def test_a_cut_counts_columns_and_leaves_no_half_of_an_escape(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown


class Screen(io.StringIO):
    """A stream in memory that says it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.mark.promise("cli.terminal")
def test_a_style_is_shown_on_a_terminal_unless_it_is_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(screen: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stdout", screen)
        Stream("stdout").print(Styled("ok\x1b[31m", GREEN), "it\x1b[2J")
        return screen.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert printed(Screen()) == "\x1b[32mok\\u001b[31m\x1b[0m it\\u001b[2J\n"
    assert printed(io.StringIO()) == "ok\\u001b[31m it\\u001b[2J\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(Screen()) == "ok\\u001b[31m it\\u001b[2J\n"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert printed(Screen()) == "ok\\u001b[31m it\\u001b[2J\n"


@pytest.mark.promise("cli.terminal")
def test_text_that_the_streams_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        Stream("stdout").print("naïve …")
        assert raw.getvalue() == b"na\\xefve \\u2026\n"
        monkeypatch.undo()


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What the command writes to a terminal of 60 columns."""
    ours, theirs = pty.openpty()
    try:
        settings = {**os.environ, "TERM": "xterm", "COLUMNS": "60", **environment}
        settings = {name: value for name, value in settings.items() if value}
        done = subprocess.Popen([HOLDFAST, *arguments], stdout=theirs, stderr=theirs, stdin=theirs, env=settings)
        os.close(theirs)
        theirs = -1
        text = b""
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not read:
                break
            text += read
        assert done.wait(patience(30)) == 0, text
        return text.decode()
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


@pytest.mark.promise("cli.terminal")
def test_on_a_real_terminal_tables_fit_and_styles_show(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    checked = on_a_terminal("store", "check", url, "--create", NO_COLOR="")
    assert checked.count("\x1b[32mok  \x1b[0m") == 11
    assert "\x1b" not in on_a_terminal("store", "check", url, NO_COLOR="1")

    async def fill(url: str, id: str) -> None:
        async with holdfast.open_store(url) as store:
            await store.commit(Record("draft", id, holdfast.Principal("alice" * 9)), expect=0)

    asyncio.run(fill(url, "d1"))
    listed = on_a_terminal("store", "ls", url, NO_COLOR="1").splitlines()
    assert "alicealic" in listed[1]
    assert "…" in listed[1]
    assert max(columns(line) for line in listed) == 60
    wide = f"sqlite:///{tmp_path}/wide.db"
    asyncio.run(fill(wide, "東" * 40))  # an id is what the next command needs: it is never cut
    assert "東" * 40 in on_a_terminal("store", "ls", wide, NO_COLOR="1")
