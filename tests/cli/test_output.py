"""Tables, trees, progress and JSON, without a terminal and on one of a known width."""

import io
import json
import sys

import pytest

from holdfast.cli import output
from holdfast.cli.output import Branch, ProgressLine, print_json, table, tree
from holdfast.cli.terminal import columns

HOSTILE = "x\x1b[31m\x9b\u202e\nok  all is well\ty"


class Screen(io.StringIO):
    """A stream in memory that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def on_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal of 40 columns. No fixture: pytest's capture replaces the streams between set-up and test."""
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    return screen


@pytest.mark.promise("cli.terminal")
def test_columns_are_aligned_whatever_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    table(("name", "what"), [("東京", "a"), ("Łódź", "b"), ("e\u0301a", "c"), ("plain", "d")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name   what"
    assert {columns(line[: line.rindex(last)]) for line, last in zip(lines[1:], "abcd", strict=True)} == {7}
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.promise("cli.terminal")
def test_a_table_is_cut_on_a_terminal_where_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_screen(monkeypatch)
    table(("id", "what", "why"), [("i" * 10, "a" * 50, "b" * 9), ("j", "c", "d")], whole=("why",))
    head, first, second = screen.getvalue().splitlines()
    assert first == f"{'i' * 10}  {'a' * 16}…  {'b' * 9}"
    assert columns(first) == 40
    assert head.index("why") == second.index("d") == first.index("b")


@pytest.mark.promise("cli.terminal")
def test_a_table_that_can_not_fit_keeps_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_screen(monkeypatch)
    table(("id", "what", "why"), [("i" * 60, "a" * 50, "short")])
    assert screen.getvalue().splitlines()[1] == f"{'i' * 60}  {'a' * 7}…  short"


@pytest.mark.promise("cli.terminal")
def test_elsewhere_nothing_is_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table(("id", "what"), [("i" * 300, "a" * 500)])
    tree(Branch("t" * 500))
    assert capsys.readouterr().out.splitlines()[1:] == [f"{'i' * 300}  {'a' * 500}", "t" * 500]


@pytest.mark.promise("cli.terminal")
def test_a_tree_has_guides_and_any_depth(capsys: pytest.CaptureFixture[str]) -> None:
    root = Branch("root")
    first = root.add("first")
    first.add("below")
    first.add("last below")
    root.add("second").add("under it")
    tree(root)
    assert capsys.readouterr().out.splitlines() == [
        "root",
        "├── first",
        "│   ├── below",
        "│   └── last below",
        "└── second",
        "    └── under it",
    ]
    deep = root = Branch("0")
    for number in range(1, 2000):
        deep = deep.add(str(number))
    tree(root)
    assert len(capsys.readouterr().out.splitlines()) == 2000


@pytest.mark.promise("cli.hostile")
def test_foreign_text_takes_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    table(("name", "what"), [(HOSTILE, HOSTILE)])
    root = Branch(HOSTILE)
    root.add(HOSTILE)
    tree(root)
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 4
    assert not {"\x1b", "\x9b", "\u202e", "\t"} & set(text)


@pytest.mark.promise("cli.hostile")
def test_json_is_escaped_and_still_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    value = {HOSTILE: [HOSTILE, "\ud800", "\U000e0041", "ä東"]}
    print_json(value)
    print_json(value, lines=False)
    text = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\u202e", "\ud800", "\U000e0041"} & set(text)
    assert "ä東" in text
    *many, one = text.splitlines()
    assert json.loads("\n".join(many)) == json.loads(one) == value


@pytest.mark.promise("cli.terminal")
def test_progress_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_screen(monkeypatch)
    monkeypatch.setattr(output, "_REDRAW_SECONDS", 0.0)
    with ProgressLine("copying", 4) as progress:
        progress.show(2)
        progress.show(1, None, HOSTILE * 10)
        for done, total in ((5, 4), (float("nan"), 4), (-1, 4), (1, float("inf")), (1, 0), (1, -3)):
            progress.show(done, total)
    drawn = screen.getvalue().split("\r")[1:]
    assert all(line.endswith("\x1b[K") for line in drawn)
    lines = [line.removesuffix("\x1b[K") for line in drawn]
    assert lines[-1] == ""
    assert "\n" not in screen.getvalue()
    assert all(columns(line) < 60 and "\x1b" not in line for line in lines)
    assert "━" * 15 in lines[1]
    assert lines[1].endswith(" 2/4")
    assert [line.split()[-1] for line in lines[3:-1]] == ["5/4", "nan", "-1", "1", "1", "1"]


@pytest.mark.promise("cli.terminal")
def test_progress_is_silent_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("copying", 4) as progress:
        progress.show(2)
    with ProgressLine("copying", 4, quiet=True) as progress:
        progress.show(2)
    assert capsys.readouterr() == ("", "")
