"""Server files as the ecosystem writes them, and what is said about a wrong one."""

import json
from pathlib import Path

import pytest

import holdfast
from holdfast.links import CommandTarget, HttpTarget


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mcp.json"
    file.write_text(text)
    return file


@pytest.mark.promise("files.read")
def test_the_limits_of_a_call_and_what_a_server_is_like_are_read(tmp_path: Path) -> None:
    entry = {"timeout": 90, "silence": 12.5, "era": "2025", "reuse": "process", "stateful": False, "labels": {"a": "b"}}
    file = write(tmp_path, json.dumps({"mcpServers": {"web": {"url": "https://x.example/mcp", **entry}}}))
    server = holdfast.load_servers(file)["web"]
    assert {name: getattr(server, name) for name in entry} == entry
    for name in ("timeout", "silence"):
        wrong = write(tmp_path, json.dumps({"mcpServers": {"web": {"url": "https://x.example/mcp", name: "90"}}}))
        with pytest.raises(holdfast.errors.ConfigError, match=rf"'web': {name} is not a number of seconds"):
            holdfast.load_servers(wrong)


@pytest.mark.promise("files.read")
def test_the_flavours_of_the_ecosystem_are_read(tmp_path: Path) -> None:
    claude = write(
        tmp_path,
        """{"mcpServers": {
          "files": {"command": "npx", "args": ["-y", "server", "${HOME}/x"], "env": {"KEY": "${KEY}", "B": "${C:-d}"}},
          "web": {"type": "streamable-http", "url": "https://x.example/mcp",
                  "headers": {"Authorization": "Bearer ${env:KEY}"}},
          "off": {"url": "https://y.example/mcp", "disabled": true, "autoApprove": ["a"]}
        }}""",
    )
    servers = holdfast.load_servers(claude, env={"HOME": "/h", "KEY": "k"})
    assert list(servers) == ["files", "web", "off"]
    files, web = servers["files"].target, servers["web"].target
    assert isinstance(files, CommandTarget)
    assert (files.args, files.env) == (("-y", "server", "/h/x"), {"KEY": "k", "B": "d"})
    assert isinstance(web, HttpTarget)
    assert web.headers == {"Authorization": "Bearer k"}
    assert servers["off"].disabled
    code = write(
        tmp_path,
        """{ // VS Code
          "servers": {"a": {"type": "stdio", "command": "x", "args": ["// no comment", "a,]"], }, /* or */
                      "b": {"type": "http", "url": "http://localhost:1/mcp"}},
          "inputs": [],
        }""",
    )
    servers = holdfast.load_servers(code, env={})
    assert servers["a"].args == ["// no comment", "a,]"]


@pytest.mark.promise("files.wrong")
@pytest.mark.parametrize(
    ("text", "says", "remedy"),
    [
        ('{"mcpServers": {"a": {"comand": "x"}}}', "'comand' is not a known key", "did you mean 'command'?"),
        ('{"mcpServers": {"a": {"url": "http://h/", "header": {}}}}', "'header'", "'headers'"),
        ('{"mcpserver": {}}', "no 'mcpServers', but 'mcpserver'", "mcpServers"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"K": "${NO_SUCH}"}}}}', "NO_SUCH is not set", "default"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"K": "${HOEM}"}}}}', "env.K", "HOME"),
        ('{"mcpServers": {"a": {"type": "sse", "url": "http://h/sse"}}}', "SSE transport", "/mcp"),
        ('{"mcpServers": {"a": {"type": "http", "command": "x"}}}', "needs 'url'", ""),
        ('{"mcpServers": {"a": {"type": "carrier-pigeon", "url": "http://h/"}}}', "type", "stdio"),
        ('{"mcpServers": {"a": {}}}', "neither url, command nor app", "exactly one"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://h/"}}}', "url and command", "exactly one"),
        ('{"mcpServers": {"a": {"command": "x", "args": "--flag"}}}', "args is not a list", ""),
        ('{"mcpServers": {"a": {"url": "h"}}}', "http:// or https://", ""),
        ('{"mcpServers": {"a": 7}}', "is not an object", ""),
        ('{"mcpServers": {"a": {"command": "${input:key}"}}}', "defined only in an editor", "itself"),
        ('{"mcpServers": {\n"a": {"command": }}}', "line 2, column 18", "JSON"),
        ("[]", "not a JSON object", ""),
    ],
)
def test_a_wrong_file_is_told_with_place_and_remedy(tmp_path: Path, text: str, says: str, remedy: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(holdfast.errors.ConfigError) as caught:
        holdfast.load_servers(file, env={"HOME": "/h"})
    assert says in caught.value.what, caught.value.what
    assert "mcp.json" in caught.value.what
    assert remedy in str(caught.value.remedy or "")


@pytest.mark.promise("files.wrong")
def test_one_bad_entry_is_told_and_the_others_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = {"good": {"command": "x"}, "bad": {"comand": "x"}, "worse": 7, "off": {"url": "h", "disabled": True}}
    servers = holdfast.load_servers(write(tmp_path, json.dumps({"mcpServers": entries})), env={})
    assert list(servers) == ["good"]
    assert set(servers.wrong) == {"bad", "worse", "off"}
    assert "did you mean 'command'?" in caplog.text
    assert len(caplog.records) == 3
    with pytest.raises(holdfast.errors.ConfigError, match="comand"):
        servers["bad"]
    with pytest.raises(KeyError):
        servers["none"]
    del entries["good"]
    with pytest.raises(holdfast.errors.ConfigError, match=r"comand.*2 more entries are wrong"):
        holdfast.load_servers(write(tmp_path, json.dumps({"mcpServers": entries})), env={})


@pytest.mark.promise("files.wrong")
def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(holdfast.errors.ConfigError, match="no such file"):
        holdfast.load_servers(tmp_path / "none.json")


@pytest.mark.promise("files.wrong")
def test_values_that_are_none_are_refused_and_what_is_off_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    for entry in ('"era": "1999"', '"timeout": -1', '"proxy": 5', '"enabled": "false"'):
        file.write_text('{"mcpServers": {"a": {"url": "http://h/", ENTRY}}}'.replace("ENTRY", entry))
        with pytest.raises(holdfast.errors.ConfigError):
            holdfast.load_servers(file)
    text = (
        '{"mcpServers": {"a": {"command": "x", "env": {"P": 80, "K": "${NO}"}, "disabled": true, "disabledTools": []}}}'
    )
    file.write_text("\ufeff" + text)
    assert holdfast.load_servers(file, env={})["a"].disabled
    file.write_text("[" * 100_000)
    with pytest.raises(holdfast.errors.ConfigError):
        holdfast.load_servers(file)


@pytest.mark.promise("files.wrong")
def test_a_key_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"c": {"command": "x"}, "c": {"command": "y"}}}')
    with pytest.raises(holdfast.errors.ConfigError, match=r"mcp\.json: the key 'c' occurs twice"):
        holdfast.load_servers(file)
