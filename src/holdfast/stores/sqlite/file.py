"""The file of an SQLite store: what is checked before it is opened, its settings, and what SQLite's errors mean."""

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.clock import Clock
from holdfast.errors import ConfigError, CorruptRecord, HoldfastError, StoreDown
from holdfast.stores.sqlite.thread import FileReplaced


class AnswerLost(StoreDown):
    """The disk failed in the middle; what became of the write is not known yet."""


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A path, and how it is opened."""

    path: Path
    create: bool = True
    timeout: float = 5.0
    synchronous: str = "FULL"

    @property
    def url(self) -> str:
        """The URL of its store."""
        return f"sqlite:///{self.path}"

    def check(self) -> None:
        """Refuse a path that can't hold a store, with what is wrong with it."""
        path, folder = self.path, self.path.parent
        if path.is_dir():
            raise ConfigError(f"{path} is a folder", store=self.url, remedy="name a file in it")
        if not folder.is_dir():
            absolute = not path.is_absolute() and Path("/", folder).is_dir()
            raise ConfigError(
                f"the folder {folder} of the store {path.name} does not exist",
                store=self.url,
                remedy=f"for an absolute path write four slashes: sqlite:////{path}"
                if absolute
                else f"create it: mkdir -p {folder}",
            )
        if not self.create and not path.exists():
            raise ConfigError(f"there is no store at {path}", store=self.url, remedy="check the path")

    def make_private(self) -> None:
        """A new file is its owner's alone: it holds ids of sessions. SQLite's own files beside it take its mode."""
        if not self.create:
            return
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError:
            return  # it exists, with the mode that its owner chose; or SQLite says what is wrong

    def prepare(self, db: sqlite3.Connection, clock: Clock) -> None:
        """Settings of a new connection: a journal that readers and writers of all processes share."""
        if not self.create:
            known = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'holdfast_meta'").fetchone()[0]
            if not known:
                raise ConfigError(f"{self.path} is not a Holdfast store", store=self.url, remedy="check the path")
        deadline = clock.monotonic() + self.timeout
        while (mode := self._journal_mode(db, clock, deadline)) != "wal":
            if mode is not None:
                raise ConfigError(
                    f"SQLite can't share {self.path} between processes: its journal mode stays {mode!r}",
                    store=self.url,
                    remedy="use a file on a local disk",
                )
        db.execute(f"PRAGMA synchronous = {self.synchronous}")

    def _journal_mode(self, db: sqlite3.Connection, clock: Clock, deadline: float) -> str | None:
        """The mode after asking for WAL; None if another connection was busy, so that asking again may help."""
        if db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            return "wal"
        try:
            return db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clock.monotonic() > deadline:
                raise
            # SQLite does not wait by itself for a change of mode, but it does for the write lock.
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")
            return None

    def translate(self, error: Exception) -> HoldfastError:
        """The one place where SQLite's errors become ours."""
        path = self.path
        if isinstance(error, FileReplaced):
            return StoreDown(
                f"{path} was removed or replaced while it was open", store=self.url, remedy="open the store again"
            )
        if isinstance(error, UnicodeDecodeError):  # SQLite's own message quotes the damaged place
            return self._damaged("its schema can't be read")
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreDown(
                    f"{path} is locked by another process since {self.timeout:g} s or more",
                    store=self.url,
                    remedy="end the process that holds a transaction open, or raise ?timeout=",
                )
            case sqlite3.SQLITE_FULL:
                return StoreDown(f"the disk of {path} is full", store=self.url, remedy="free some space and retry")
            case sqlite3.SQLITE_IOERR:
                return AnswerLost(f"the disk of {path} failed: {error}", store=self.url)
            case sqlite3.SQLITE_NOTADB:
                return ConfigError(
                    f"{path} is not an SQLite database", store=self.url, remedy="name another file, or a new one"
                )
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return ConfigError(
                    f"{path} can't be opened for writing: {error}",
                    store=self.url,
                    remedy="give this user the right to write the file and its folder",
                )
            case sqlite3.SQLITE_CORRUPT:
                return self._damaged(str(error))
            case _:
                return StoreDown(f"{path}: {error}", store=self.url)

    def _damaged(self, why: str) -> CorruptRecord:
        return CorruptRecord(f"{self.path} is damaged: {why}", store=self.url, remedy="restore it from a backup")
