"""Where admin sockets are: private, short, and removed after a kill."""

import asyncio
import logging
import os
import socket
import stat
from pathlib import Path

import pytest

from holdfast.gateway.admin import place
from holdfast.gateway.admin.place import PATH_BYTES, listening


@pytest.mark.promise("observe.admin-socket")
def test_only_its_user_may_use_the_socket(runtime: Path) -> None:
    (runtime / "holdfast").mkdir(mode=0o755)
    found = listening("gateway-1")
    assert found is not None
    sock, path = found
    with sock:
        assert path == runtime / "holdfast" / "gateway-1.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [each.name for each in path.parent.iterdir()] == ["gateway-1.sock"]


@pytest.mark.promise("observe.admin-socket")
def test_sockets_of_killed_processes_are_removed_and_those_of_live_ones_stay(runtime: Path) -> None:
    one, two = listening("one"), listening("two")
    assert one is not None
    assert two is not None
    one[0].close()  # as a kill leaves it
    (runtime / "holdfast" / "old.sock.new").touch()
    os.utime(runtime / "holdfast" / "old.sock.new", (0, 0))
    (runtime / "holdfast" / "starting.sock.new").touch()
    three = listening("three")
    assert three is not None
    names = {each.name for each in (runtime / "holdfast").iterdir()}
    assert names == {"two.sock", "three.sock", "starting.sock.new"}
    for sock, _ in (two, three):
        sock.close()


@pytest.mark.promise("observe.admin-socket")
def test_a_folder_with_a_long_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * PATH_BYTES)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(long))
    found = listening(f"test-{os.getpid()}")
    assert found is not None
    sock, path = found
    with sock:
        assert path.parent == Path(f"/tmp/holdfast-{os.getuid()}")
        with socket.socket(socket.AF_UNIX) as reader:
            reader.connect(str(path))
    place.remove(path)
    assert not path.exists()


@pytest.mark.promise("observe.admin-socket")
def test_where_there_is_no_private_folder_there_is_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    monkeypatch.setattr(place, "_folders", lambda: iter([tmp_path / "link"]))
    assert listening("gateway-1") is None
    assert "there is no admin socket" in caplog.text


@pytest.mark.promise("observe.admin-socket")
def test_windows_has_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with caplog.at_level(logging.INFO):
        assert listening("gateway-1") is None
    assert "no admin socket on Windows" in caplog.text


@pytest.mark.promise("observe.admin-socket")
async def test_what_does_not_listen_yet_is_not_removed(runtime: Path) -> None:
    """Gateways that start at once remove none of each other's sockets."""
    found = await asyncio.gather(*(asyncio.to_thread(listening, f"g{number}") for number in range(8)))
    assert all(each is not None and each[1].exists() for each in found)
    for each in found:
        assert each is not None
        each[0].close()
