"""The command of a program: what can't run, its environment, and what is shown of it."""

import stat
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.links import CommandTarget, Limits
from holdfast.links.wires.stdio.command import masked
from tests.links.quick_links import link_to
from tests.links.wires.stdio.children import QUICK

pytestmark = pytest.mark.anyio


@pytest.mark.promise("stdio.bad-command")
async def test_a_command_that_can_not_run_says_what_where_and_why(tmp_path: Path) -> None:
    script, plain = tmp_path / "script", tmp_path / "plain"
    script.write_text("#!/no/such/interpreter --flag\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    plain.write_text("hello")
    usage = ["-c", "import sys; print('usage: server --key KEY', file=sys.stderr); sys.exit(2)", "--api-key", "s3cret"]
    cases: list[tuple[CommandTarget, str]] = [
        (CommandTarget("no-such-program-anywhere"), "not found in PATH: "),
        (CommandTarget(str(tmp_path)), "is a folder"),
        (CommandTarget(str(plain)), "is not executable"),
        (CommandTarget(str(tmp_path / "missing")), "does not exist"),
        (CommandTarget(str(script)), "interpreter /no/such/interpreter --flag is missing"),
        (CommandTarget(sys.executable, usage), "exit code 2"),
        (CommandTarget(sys.executable, cwd=str(tmp_path / "nowhere")), "is not a folder"),
    ]
    for target, says in cases:
        async with link_to(target, limits=QUICK) as link:
            with pytest.raises(holdfast.errors.ConnectFailed) as caught:
                await link.request("tools/list")
            text = str(caught.value)
            assert says in text, text
            assert "ran: " in text
            assert caught.value.remedy
            assert "s3cret" not in text
            assert caught.value.server == "it"
    assert "usage: server --key KEY" in text or "not a folder" in text


@pytest.mark.promise("stdio.env")
async def test_a_child_gets_a_safe_environment_and_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_OWN_SECRET", "s3cret")
    asked = 0

    async def fresh() -> str:
        nonlocal asked
        asked += 1
        return f"token-{asked}"

    code = (
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    r = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'serverInfo': {'name': 'x', 'version': '1'}}\n"
        "    if m['method'] != 'initialize': r = {'env': dict(os.environ), 'cwd': os.getcwd()}\n"
        "    if 'id' in m: print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': r}), flush=True)\n"
    )
    target = CommandTarget(sys.executable, ["-c", code], env={"TOKEN": fresh, "PLAIN": "x"}, cwd="/")
    async with link_to(target, era="2025", limits=QUICK) as link:
        assert asked == 0
        seen = await link.request("tools/list")
        assert (seen["env"]["TOKEN"], seen["env"]["PLAIN"], seen["cwd"]) == ("token-1", "x", "/")
        assert "MY_OWN_SECRET" not in seen["env"]
        assert "PATH" in seen["env"]
        await link.close()
        assert (await link.request("tools/list"))["env"]["TOKEN"] == "token-2"
        assert "token" not in repr(target)
    for env in ({"A=B": "x"}, {"A": 7}, {"": "x"}, {"A": "x\0"}):
        async with link_to(CommandTarget("true", env=env), limits=QUICK) as link:  # type: ignore[arg-type]
            with pytest.raises(holdfast.errors.ConfigError):
                await link.request("tools/list")


@pytest.mark.promise("stdio.env")
def test_secrets_are_masked_in_what_is_shown() -> None:
    shown = masked(
        "npx", ["server", "--token", "abc", "--api-key=def", "-v", "--name", "x", "ghi", "a b"], {"T": "ghijk"}
    )
    assert shown == "npx server --token ••• --api-key=••• -v --name x ghi 'a b'"
    assert masked("x", ["ghijk", "--as=ghijk"], {"T": "ghijk"}) == "x ••• --as=•••"


@pytest.mark.promise("stdio.env")
@pytest.mark.parametrize("word", ["x", "key-", "http://a", "a://b@", "a://b?", "token", ":"])
def test_a_long_argument_is_masked_in_one_pass(word: str) -> None:
    """Quadratic, 20,000 letters held up the event loop for seconds; these are ten times as many."""
    long = word * (200_000 // len(word))
    start = time.process_time()
    shown = masked("x", [f"a={long}", long, f"{long}://user:hunter2@host"], {})
    assert time.process_time() - start < 5
    assert len(shown) < 310
    assert "hunter2" not in shown


@pytest.mark.promise("stdio.bad-command")
def test_nonsense_is_refused_at_once() -> None:
    for command, args in (("", ()), ("x\0", ()), ("x", "--flag"), ("x", [7]), ("x", ["\ud800"]), ("\ud800", ())):
        with pytest.raises(holdfast.errors.ConfigError):
            CommandTarget(command, args)  # type: ignore[arg-type]


@pytest.mark.promise("stdio.bad-command")
async def test_a_relative_path_is_this_programs_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, code in ((tmp_path, 4), (tmp_path / "sub", 6), (tmp_path / "path", 5)):
        folder.mkdir(exist_ok=True)
        (folder / "prog").write_text(f"#!/bin/sh\nexit {code}\n")
        (folder / "prog").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    limits = Limits(replays=0, close=1, exit=0.3)
    for target, code in (
        (CommandTarget("./prog"), 4),
        (CommandTarget("./prog", cwd="sub"), 6),
        (CommandTarget("prog"), 5),
    ):
        async with link_to(target, limits=limits) as link:
            with pytest.raises(holdfast.errors.ConnectFailed) as caught:
                await link.request("tools/list")
            assert caught.value.exit_code == code


@pytest.mark.promise("stdio.env")
def test_secrets_inside_arguments_are_masked_too() -> None:
    shown = masked(
        "npx",
        ["postgresql://user:hunter2@db/x", "--header", "Authorization: Bearer SEKRIT", "--url=https://h/?token=SEKRIT2",
         "pg://u:ENVSECRET@h", "-e", "x-ENVSECRET-y"],
        {"T": "ENVSECRET"},
    )  # fmt: skip
    for secret in ("hunter2", "SEKRIT", "ENVSECRET"):
        assert secret not in shown, shown
    assert "abc" not in repr(CommandTarget("x", ["--token", "abc"]))
