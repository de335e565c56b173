"""What tests do to a file: open a store on it once, read it and damage it behind the store's back."""

import sqlite3
from pathlib import Path

import holdfast


async def open_and_close(url: str, **settings: object) -> None:
    async with holdfast.open_store(url, **settings):  # type: ignore[arg-type]
        pass


def tamper(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(sql)
    db.close()


def ask(path: Path, sql: str) -> object:
    with sqlite3.connect(path) as db:
        found = db.execute(sql).fetchone()[0]
    db.close()
    return found
