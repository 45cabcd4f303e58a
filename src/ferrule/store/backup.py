"""Copies of a SQLite store, made while others use it, and whether a store is intact. Postgres has its own tools."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from ferrule.errors import StoreError
from ferrule.store.location import StoreLocation, make_directory

_DATABASE: Final = "store.db"
_ARTIFACTS: Final = "artifacts"
_JOURNAL: Final = "journal"
_POSTGRES_ADVICE: Final = "Use pg_dump and pg_restore for a store in Postgres, and copy the folder of artifacts."


def back_up_store(location: StoreLocation, folder: Path) -> Path:
    """Copy a store into a new folder. Calls that are recorded meanwhile are in the copy or not, but never in part."""
    if folder.exists() and any(folder.iterdir()):
        raise StoreError(f"{folder} is not empty. Name a new folder.")
    source = _find_file(location)
    make_directory(folder)
    # Before the database: a record that moves meanwhile is in both, which does no harm.
    if location.journal is not None and location.journal.is_dir():
        shutil.copytree(location.journal, folder / _JOURNAL, copy_function=_copy_if_there)
    with closing(sqlite3.connect(source)) as database, closing(sqlite3.connect(folder / _DATABASE)) as copy:
        database.backup(copy)
    if location.artifacts is not None and location.artifacts.is_dir():
        shutil.copytree(location.artifacts, folder / _ARTIFACTS)
    return folder


def restore_store(location: StoreLocation, folder: Path) -> None:
    """Copy a backup to a place without a store."""
    if location.kind != "sqlite":
        raise StoreError(_POSTGRES_ADVICE)
    backup, target = folder / _DATABASE, Path(location.database)
    if not backup.is_file():
        raise StoreError(f"{folder} is no backup: it has no {_DATABASE}.")
    if target.exists():
        raise StoreError(f"There is already a store at {target}. Stop its servers and move it away first.")
    problems = _find_damage(backup)
    if problems:
        raise StoreError(f"The backup is damaged: {problems[0]}")
    make_directory(target.parent)
    with closing(sqlite3.connect(backup)) as database, closing(sqlite3.connect(target)) as copy:
        database.backup(copy)
    target.chmod(0o600)
    for name, place in ((_ARTIFACTS, location.artifacts), (_JOURNAL, location.journal)):
        if place is not None and (folder / name).is_dir():
            shutil.copytree(folder / name, place, dirs_exist_ok=True)


def check_store(location: StoreLocation) -> list[str]:
    """Return what is wrong with the file of a store."""
    return _find_damage(_find_file(location))


def _copy_if_there(source: str, target: str) -> str:
    with suppress(FileNotFoundError):  # its records are in the database meanwhile
        shutil.copy2(source, target)
    return target


def _find_file(location: StoreLocation) -> Path:
    if location.kind != "sqlite":
        raise StoreError(_POSTGRES_ADVICE)
    if not Path(location.database).is_file():
        raise StoreError(f"There is no store at {location.display_name}.")
    return Path(location.database)


def _find_damage(path: Path) -> list[str]:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            rows = database.execute("PRAGMA integrity_check").fetchall()
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [str(row[0]) for row in rows if row[0] != "ok"]
