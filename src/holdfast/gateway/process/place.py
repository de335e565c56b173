"""What a gateway needs on this machine, made or only checked: its port, and the folder and file of its sessions."""

import errno
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.gateway.backends.lists.known_lists import CATALOGUES
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.gateway.config.file import Config
from holdfast.gateway.sessions.record import KIND
from holdfast.links.memory.store import KIND as LINKS
from holdfast.stores import Store, open_store
from holdfast.stores.address import Address
from holdfast.stores.sealing import UNSEALED

log = logging.getLogger("holdfast.gateway")

BACKLOG = 1024


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, or `ConfigError`."""
    sock = _socket(host)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise _not_bound(host, port, error) from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted connections have what the listener has
    for option, value in (
        ("TCP_KEEPIDLE", 60),
        ("TCP_KEEPINTVL", 15),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 120_000),
    ):
        if hasattr(socket, option):  # a peer that vanished is found after two minutes
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def _socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms for an acknowledgement
    return sock


def _not_bound(host: str, port: int, error: OSError) -> ConfigError:
    remedy = {
        errno.EADDRINUSE: "stop the program that listens there, or give --port (0 takes a free one)",
        errno.EACCES: "take a port above 1023, or let the system allow this one",
    }.get(error.errno or 0, "give listen.host an address of this machine; 0.0.0.0 is all of them")
    return ConfigError(f"can't listen on {host}:{port}: {error.strerror or error}".lower(), remedy=remedy)


def make_room(config: Config) -> None:
    """Make the folder of a SQLite file, and let only its owner read the file: it gives access to sessions."""
    file, chosen = _file_of(config), config.settings.store is not None
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _no_room(file, error) from None
    for each in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        if each.is_file() and each.stat().st_mode & 0o077:
            if chosen:
                log.warning("other users of this machine may read the sessions in %s; chmod 600 prevents it", each)
            else:
                each.chmod(0o600)


async def check_place(config: Config, keys: Sequence[str] | None) -> None:
    """Raise what would keep `serve` from starting here, `ConfigError` or another error of ours. Nothing is made."""
    host, port = config.settings.listen.host, config.settings.listen.port
    with _socket(host) as sock:  # bound, but not listening: a gateway that starts now gets the port all the same
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # the gateway that is to reload may have it
                raise _not_bound(host, port, error) from None
    file = _file_of(config)
    if file is not None and not file.exists():
        open_store(config.store_url, keys=keys)  # constructed, not opened: it checks the keys
        folder = next(each for each in file.parents if each.exists())
        if not folder.is_dir():
            raise _no_room(file, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _no_room(file, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        return
    if config.store_url.startswith("sqlite:") and file is None:
        return  # a file that begins where `serve` is started
    async with open_store(config.store_url, keys=keys, create=False) as store:
        await check_sealing(store)


async def check_sealing(store: Store) -> None:
    """Refuse a store with records from before there were keys: its sessions could not be found."""
    for kind in (KIND, LINKS, CATALOGUES, PROCESSES):
        after: str | None = None
        while True:
            page = await store.scan(kind=kind, after=after)
            if any(error.phase == UNSEALED for error in page.corrupt):
                raise ConfigError(
                    f"{store.url} holds records that are not sealed ({kind}), and keys were given",
                    store=store.url,
                    remedy="seal them once with `holdfast store reseal URL --plaintext`, or serve without keys",
                )
            if page.next is None:
                break
            after = page.next


def _file_of(config: Config) -> Path | None:
    """The SQLite file, where its path is a whole one."""
    url = config.store_url
    return Address.parse(url).file() if url.startswith("sqlite:////") else None


def _no_room(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"sessions can't be kept in {file.parent}: {(error.strerror or str(error)).lower()}",
        remedy="name a store with `store` or --store, or another folder with the variable XDG_STATE_HOME; "
        "--store memory: keeps sessions in this process only",
    )
