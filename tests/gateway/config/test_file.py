"""Configuration: every mistake is told with its line and a remedy; good files are read as they are."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.models import ANONYMOUS, Record
from holdfast.gateway.auth import hash_of, new_token
from holdfast.gateway.config.file import load_config, read_config
from holdfast.gateway.config.reading import Mistake
from holdfast.gateway.config.settings import Settings
from holdfast.stores import open_store
from tests.gateway.gateways import HOLDFAST, holdfast_cli, written


@pytest.mark.promise("gateway.config")
def test_an_mcp_json_is_read_as_it_is(tmp_path: Path) -> None:
    plain = {"mcpServers": {"a": {"command": "npx", "args": ["x"]}, "b": {"url": "https://example.com/mcp"}}}
    config = load_config(written(tmp_path, json.dumps(plain), "mcp.json"))
    assert list(config.entries) == ["a", "b"]
    assert config.settings == Settings()
    assert config.store_url.startswith("sqlite:///")
    assert config.store_url.endswith(".db")
    commented = '{\n  // mine\n  "mcpServers": {\n\t"a": {"command": "npx",},\n  },\n}'
    assert list(load_config(written(tmp_path, commented, "vs.json")).entries) == ["a"]
    off = {"mcpServers": {"a": {"command": "npx", "disabled": True}}}
    assert not load_config(written(tmp_path, json.dumps(off), "off.json")).entries


@pytest.mark.promise("gateway.config")
def test_yaml_adds_policy(tmp_path: Path) -> None:
    config = load_config(
        written(
            tmp_path,
            """
listen: {port: 9000, origins: ["https://app.example"]}
store: "memory:"
sessions: {idle: 60, handles: true}
naming: {mode: priority, rename: {a.x: better}}
mcpServers:
  a:
    url: http://127.0.0.1:1/mcp
    reuse: principal
    on_replaced: continue
    allow: ["read_*"]
    pass_headers: [X-Tenant]
  b: {command: prog, start: lazy, warm: 2, stateful: false}
""",
        )
    )
    assert config.settings.listen.port == 9000
    assert config.settings.sessions.idle == 60
    assert config.entries["a"].policy.reuse == "principal"
    assert config.entries["a"].policy.pass_headers == ("x-tenant",)
    assert config.entries["b"].policy.warm == 2
    assert config.entries["b"].server.stateful is False


@pytest.mark.promise("gateway.config")
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("listen:\n  prot: 80\nmcpServers: {}", 2, "did you mean 'port'"),
        ("listen:\n  port: 99999\nmcpServers: {}", 2, "less than or equal to 65535"),
        ("listen:\n  port: eighty\nmcpServers: {}", 2, "valid integer"),
        ("lisen: {}\nmcpServers: {}", 1, "did you mean 'listen'"),
        ("mcpServer: {}", 1, "mcpServers"),
        ("mcpServers: []", 1, "not a mapping"),
        ("mcpServers:\n  a: 7", 2, "not a mapping"),
        ("mcpServers:\n  a: {}", 2, "neither url, command nor app"),
        ("mcpServers:\n  a: {url: 'http://x/mcp', command: y}", 2, "url and command"),
        ("mcpServers:\n  a:\n    url: ftp://x/", 2, "does not begin with http"),
        ("mcpServers:\n  a:\n    urll: http://x/mcp", 3, "did you mean 'url'"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    reuse: sesion", 4, "session"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    start: soon", 4, "eager"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    warm: 2", 4, "programs"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    headers: {a: '${NOT_SET_ANYWHERE}'}", 2, "NOT_SET_ANYWHERE"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    headers: {a: 'file:/no/such'}", 2, "can't be read"),
        ("mcpServers:\n  a:\n    command: x\n    pass_headers: [a]", 4, "program takes no headers"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    pass_headers: ['a b']", 4, "not a header"),
        (
            "mcpServers:\n  a:\n    url: http://x/mcp\n    reuse: shared\n    pass_headers: [a]",
            5,
            "one session for all callers",
        ),
        ("mcpServers:\n  a: {command: x}\n  a: {command: y}", 3, "twice"),
        ("mcpServers:\n  a: {command: x}\n  a__b: {command: y}", 3, "named like those of"),
        ("auth: nobody\nmcpServers: {}", 1, "neither 'none'"),
        ("auth:\n  tokens:\n    - {hash: abc, principal: a}\nmcpServers: {}", 3, "holdfast token new"),
        ("sessions:\n  idle: -1\nmcpServers: {}", 2, "greater than 0"),
        ("sessions:\n  idel: 1\nmcpServers: {}", 2, "did you mean 'idle'"),
        ("naming:\n  rename: {b.x: y}\nmcpServers:\n  a: {command: x}", 2, "no server 'b'"),
        ("naming:\n  rename: {a.x: 'no good'}\nmcpServers:\n  a: {command: x}", 2, "not a tool's name"),
        ("mcpServers: {\n  a: [", 2, "not YAML"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    pass_headers: [X-A, Authorization]", 4, "own credential"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    pass_headers: [transfer-encoding]", 4, "set anew"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    tls: {verify: false}", 4, "SSL_CERT_FILE"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    auth: {token: x}", 4, "give headers"),
        ("mcpServers:\n  a:\n    url: http://x/mcp\n    limits: {answer: 5}", 4, "use timeout"),
        ("tls: {cert: x}\nmcpServers: {}", 1, "proxy in front"),
        ("listen:\n  hosts: ['*']\nmcpServers: {}", 2, "leave `hosts` out"),
        ("listen:\n  hosts: ['https://mcp.example']\nmcpServers: {}", 2, "mcp.example:8808"),
        ("listen:\n  origins: ['*']\nmcpServers: {}", 2, "not a web origin"),
        ("listen:\n  origins: [app.example]\nmcpServers: {}", 2, "not a web origin"),
        ("listen:\n  path: Mcp\nmcpServers: {}", 2, "write it like /mcp"),
        ("listen: 8808\nmcpServers: {}", 1, "is not a mapping; it has host"),
        ("listen: {port: '8808'}\nmcpServers: {}", 1, "without quotes"),
        ("sessions: {idle: 30m}\nmcpServers: {}", 1, "times are seconds"),
        ("sessions: {header: Mcp-Session-Id}\nmcpServers: {}", 1, "like X-Conversation"),
        ("sessions: {children: 0}\nmcpServers:\n  a: {command: x}", 3, "no program may run"),
        ("mcpServers:\n  a: {command: x}\nservers: {}", 3, "keep one of them"),
        ("mcpServers:\n  a:\n    command: x\n    allow: read_*", 4, "is not a list; write [one]"),
        ("mcpServers:\n  a: {url: 'http://x/mcp', proxy: nonsense}", 2, "http://proxy.example:3128"),
        ("mcpServers:\n  a: {url: 'http://x/mcp', headers: {a: 'Bearer file:/x'}}", 2, "never a part of it"),
        ("listen: {}", None, "write mcpServers"),
        ("just text", None, "not a mapping"),
        ("", None, "not a mapping"),
    ],
)
def test_every_mistake_has_its_line_and_words(tmp_path: Path, text: str, line: int | None, words: str) -> None:
    config, mistakes = read_config(written(tmp_path, text))
    assert config is None
    assert mistakes, text
    told = "\n".join(str(mistake) for mistake in mistakes)
    assert words in told, told
    if line is not None:
        assert line in [mistake.line for mistake in mistakes], told
    with pytest.raises(holdfast.errors.ConfigError, match="can't be used"):
        load_config(tmp_path / "gateway.yaml")


@pytest.mark.promise("gateway.config")
def test_all_mistakes_are_told_at_once_and_no_secret(tmp_path: Path) -> None:
    text = "listen: {prot: 1}\nsessions: {idle: 0}\nmcpServers:\n  a: {url: 'http://x/mcp', headers: {k: 7}}\n  b: {}\n"
    file = written(tmp_path, text)
    _, mistakes = read_config(file)
    assert len(mistakes) >= 4
    checked = subprocess.run([HOLDFAST, "check", str(file)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 1
    assert "line 1" in checked.stderr
    as_json = subprocess.run([HOLDFAST, "check", str(file), "--json"], capture_output=True, text=True, timeout=60)
    assert not json.loads(as_json.stdout)["good"]
    token, digest = new_token()
    good = written(tmp_path, f"auth: {{tokens: [{{hash: '{digest}', principal: a}}]}}\nmcpServers: {{}}\n", "g.yaml")
    config = load_config(good)
    assert digest not in repr(config)
    assert token not in repr(config)
    assert subprocess.run([HOLDFAST, "check", str(good)], capture_output=True, timeout=60).returncode == 0


@pytest.mark.promise("gateway.config")
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("mcpServers:\n  a:\n    command: no-such-program", 3, "not found in PATH"),
        ("mcpServers:\n  a:\n    command: ./no/such\n", 3, "does not exist"),
        (f"mcpServers:\n  a:\n    command: {sys.executable}\n    cwd: /no/such/folder", 4, "not a folder"),
        ("listen:\n  host: 0.0.0.0\nmcpServers: {}", 2, "not loopback"),
    ],
)
def test_check_refuses_what_serve_refuses_and_what_cannot_start(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    file = written(tmp_path, text)
    config, mistakes = read_config(file, here=True)
    assert config is None
    assert [mistake.line for mistake in mistakes] == [line]
    assert words in str(mistakes[0])
    load_config(file)  # one that can't start does not keep the others from being served


@pytest.mark.promise("gateway.config")
@pytest.mark.parametrize("line", ["#!/no/such/interpreter -x", "#!/usr/bin/env no-such-interpreter", "#!/bin/sh"])
def test_check_refuses_a_script_whose_interpreter_is_missing(tmp_path: Path, line: str) -> None:
    script = written(tmp_path, f"{line}\nexit 0\n", "server")
    script.chmod(0o755)
    for text in (f"command: {script}", f"command: server, env: {{PATH: '{tmp_path}:/usr/bin:/bin'}}"):
        config, mistakes = read_config(written(tmp_path, f"mcpServers:\n  a: {{{text}}}\n"), here=True)
        assert (config is None) == ("no" in line)
        assert all("interpreter" in str(mistake) for mistake in mistakes)


@pytest.mark.promise("gateway.config")
def test_check_refuses_tokens_that_have_all_expired(tmp_path: Path) -> None:
    def checked(*expires: int) -> list[Mistake]:
        tokens = [
            f"{{hash: '{hash_of(str(n))}', principal: a, expires: {year}-01-01T00:00:00Z}}"
            for n, year in enumerate(expires)
        ]
        return read_config(written(tmp_path, f"auth: {{tokens: [{', '.join(tokens)}]}}\nmcpServers: {{}}"), here=True)[
            1
        ]

    assert "every token in auth.tokens has expired" in str(checked(2020, 2021)[0])
    assert checked(2020, 9000) == []


@pytest.mark.promise("gateway.config")
def test_check_takes_what_serve_takes(tmp_path: Path) -> None:
    file = written(tmp_path, f"listen: {{host: 0.0.0.0}}\nmcpServers:\n  a: {{command: {sys.executable}}}\n")
    assert read_config(file, here=True, insecure=True)[0] is not None
    assert read_config(file, here=True)[0] is None
    off = written(tmp_path, "mcpServers:\n  a: {command: no-such-program, disabled: true}\n")
    assert read_config(off, here=True)[0] is not None


@pytest.mark.promise("gateway.config")
async def test_check_refuses_a_store_that_serve_refuses(tmp_path: Path) -> None:
    def checked(store: str, *args: str, **more: Any) -> str:
        text = json.dumps({"store": store, "mcpServers": {}, **more})
        done = holdfast_cli("check", str(written(tmp_path, text, "g.json")), *args)
        assert "Traceback" not in done.stderr
        return done.stderr if done.returncode else ""

    (tmp_path / "text.db").write_text("not a database, but longer than the sixteen bytes of its first line")
    assert "not an SQLite database" in checked(f"sqlite:///{tmp_path}/text.db")
    assert "sessions can't be kept in" in checked(f"sqlite:///{tmp_path}/text.db/deeper/s.db")
    assert "can't be reached" in checked("redis://127.0.0.1:1")
    keys = written(tmp_path, "short", "keys")
    assert "not 32 bytes" in checked(f"sqlite:///{tmp_path}/new.db", "--keys", str(keys))
    keys.write_text(base64.b64encode(bytes(32)).decode())
    url = f"sqlite:///{tmp_path}/plain.db"
    async with open_store(url) as store:
        await store.commit(Record("session", "x", ANONYMOUS, {}), expect=0)
    assert checked(url) == ""
    assert "not sealed" in checked(url, "--keys", str(keys))
    auth = {"tokens": [{"hash": hash_of("x"), "principal": "a"}]}
    assert "listen.host" in checked("memory:", listen={"host": "192.0.2.1"}, auth=auth)
    assert not (tmp_path / "new.db").exists()  # nothing is made


@pytest.mark.promise("errors.repr")
def test_no_secret_of_a_file_is_in_the_repr_of_what_was_read(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    servers = {
        "a": {"url": "https://h/mcp?api_key=hunter2", "headers": {"x": "hunter2"}},
        "b": {"command": "x", "args": ["--token", "hunter2"], "env": {"TOKEN": "hunter2"}},
    }
    file.write_text(json.dumps({"mcpServers": servers, "store": "postgresql://me:hunter2@h/db"}))
    config = load_config(file)
    for shown in (config, config.settings, *config.entries.values()):
        assert "hunter2" not in f"{shown!r} {shown}"


@pytest.mark.promise("gateway.config")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mcpServers: {a: {command: x, 8080: y, on: z}}", None),
        ("mcpServers: {a: {url: 'http://x/mcp', headers: {k: \"file:a\\0b\"}}}", "in its value"),
        ("store: bogus://x\nmcpServers: {}", "no store has the scheme"),
        ("listen: {path: /healthz}\nmcpServers: {}", "the gateway's own"),
        ("sessions: {idle: 100, max_age: 50}\nmcpServers: {}", "shorter than idle"),
        ("auth: {tokens: []}\nmcpServers: {}", "no tokens"),
        ("mcpServers: {a: {url: 'http://x/mcp', pass_headers: [mcp-session-id]}}", "set anew"),
        ("sessions: {handles: true}\nmcpServers: {holdfast: {command: x}}", "rename the server"),
    ],
)
def test_edges_of_a_configuration(tmp_path: Path, text: str, words: str | None) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(text)
    config, mistakes = read_config(file)
    if words is None:
        assert config is not None, mistakes
    else:
        assert config is None
        assert words in "\n".join(str(mistake) for mistake in mistakes)
