"""Where a gateway keeps its sessions: the file, its owner, its keys."""

import errno
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.gateway.config.file import load_config
from holdfast.gateway.process.place import check_place
from holdfast.gateway.server import Program
from holdfast.stores.sealing import new_key
from holdfast.testing import FaultServer
from tests.gateway.clients import RawClient
from tests.gateway.gateways import HOLDFAST, config_of, gateway


@pytest.mark.promise("gateway.sealed")
async def test_keys_seal_what_a_gateway_keeps_and_a_mixed_store_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    keys = [new_key()]
    (tmp_path / "keys").write_text(keys[0])

    def holdfast(*args: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([HOLDFAST, *args], capture_output=True, text=True, timeout=60)

    async with FaultServer() as http:
        config = config_of(tmp_path, {"counter": {"url": http.url}}, store=url)
        async with Program(config).running() as program, RawClient(program.url) as client:
            await client.initialize()
            await client.call("counter__count")
        assert b"capabilities" in b"".join(path.read_bytes() for path in tmp_path.glob("s.db*"))
        with pytest.raises(ConfigError, match="not sealed") as refused:
            async with Program(config, keys=keys).running():
                pass
        assert "reseal" in (refused.value.remedy or "")
        listed = holdfast("sessions", "ls", "--store", url, "--keys", str(tmp_path / "keys"))
        assert listed.returncode == 1
        assert "not sealed" in listed.stderr
        assert holdfast("store", "reseal", url, "--plaintext", "--keys-file", str(tmp_path / "keys")).returncode == 0
        async with Program(config, keys=keys).running() as program, RawClient(program.url) as other:
            other.session = client.session
            assert (await other.call("counter__count")).text == "2"
        listed = holdfast("sessions", "ls", "--store", url, "--keys", str(tmp_path / "keys"), "--json")
        assert (listed.returncode, len(json.loads(listed.stdout))) == (0, 1)
        with pytest.raises(ConfigError, match="without keys"):
            async with Program(config).running():
                pass
        assert holdfast("sessions", "ls", "--store", url).returncode == 2


@pytest.mark.promise("gateway.private")
async def test_the_file_of_sessions_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "g.json"
    file.write_text(json.dumps({"listen": {"port": 0}, "mcpServers": {}}))
    config = load_config(file)

    def modes() -> set[int]:
        return {each.stat().st_mode & 0o777 for each in (tmp_path / "state" / "holdfast").iterdir()}

    async with Program(config).running():
        assert modes() == {0o600}
    for each in (tmp_path / "state" / "holdfast").iterdir():
        each.chmod(0o644)  # as versions before this one made it
    async with Program(config).running():
        assert modes() == {0o600}


@pytest.mark.promise("gateway.program")
async def test_where_nothing_can_be_kept_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("not a folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "g.json"
    file.write_text(json.dumps({"listen": {"port": 0}, "mcpServers": {}}))
    with pytest.raises(ConfigError, match="can't be kept") as refused:
        async with Program(load_config(file)).running():
            pass
    assert "--store memory:" in (refused.value.remedy or "")


@pytest.mark.promise("gateway.config")
async def test_check_tries_the_port_itself_and_lets_a_running_gateway_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, {}, listen={"port": 80})
    code = errno.EACCES

    class Socket(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(code if address[1] == 80 else 0, os.strerror(code))

    with monkeypatch.context() as patched:  # whether 80 is free and allowed depends on the machine
        patched.setattr(socket, "socket", Socket)
        with pytest.raises(ConfigError, match=r"can't listen on 127\.0\.0\.1:80: permission denied"):
            await check_place(config, None)
        code = errno.EADDRINUSE
        await check_place(config, None)
    async with gateway(tmp_path, {}) as program:
        await check_place(config_of(tmp_path, {}, listen={"port": program.port}), None)
