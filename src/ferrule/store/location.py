"""Where a store keeps its database, journal, artifacts and locks, read from the address the user wrote.

None, sqlite://                    in memory
calls.db, sqlite:///calls.db       a SQLite file; the journal and the artifacts are beside it
sqlite:////var/lib/calls.db        the same with an absolute path
postgresql://user@host/database    Postgres; the journal and the artifacts are in a local directory
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import MissingExtra, StoreError

_PASSWORD = lazy_pattern(r"(?<=://)([^\s:/?#@]*):\S*@")
_PASSWORD_OPTION = lazy_pattern(r"\b((?:ssl)?password=)(?:'[^']*'|[^\s&#'\"]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    kind: Literal["memory", "sqlite", "postgresql"]
    database: str = ""
    """The path of the SQLite file, or the URL of the Postgres database."""
    journal: Path | None = None
    artifacts: Path | None = None
    locks: Path | None = None
    display_name: str = "memory"
    """For messages: the address without its password."""

    @property
    def files(self) -> list[str]:
        """Return the files and folders of the store. Names of further files begin in the same way."""
        database = [self.database] if self.kind == "sqlite" else []
        return [*database, *(str(path) for path in (self.journal, self.artifacts, self.locks) if path is not None)]


def parse_location(url: str | None, journal_directory: Path | str | None = None) -> StoreLocation:
    scheme, separator, rest = (url or "sqlite://").partition("://")
    if not separator:
        return _locate_sqlite(scheme, journal_directory)
    if scheme == "sqlite":
        if rest in ("", "/:memory:"):
            return StoreLocation(kind="memory")
        if rest.startswith("/") and len(rest) > 1:
            return _locate_sqlite(rest[1:], journal_directory)
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        with suppress(ValueError):
            parts = urlsplit(f"postgresql://{rest}")
            if parts.path.strip("/") and (parts.port is None or parts.port > 0):
                return _locate_postgres(rest, journal_directory)
    raise StoreError(
        f"{hide_password(url or '')!r} is not the address of a store. Write sqlite:///calls.db or a path for a file, "
        "sqlite:////absolute/calls.db for an absolute path, postgresql://user:password@host/database for Postgres, "
        "or nothing to keep records in memory."
    )


def hide_password(text: str) -> str:
    """Hide passwords of addresses in a text. A password may hold any character, so rather too much is hidden."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def _locate_sqlite(path: str, journal_directory: Path | str | None) -> StoreLocation:
    if not path.strip() or path.endswith(("/", os.sep)) or os.path.isdir(path):
        raise StoreError(f"{path!r} is a directory. Name a file in it: sqlite:///{path.rstrip('/') or '.'}/calls.db")
    file = Path(path).expanduser().absolute()
    journal = file.with_name(f"{file.name}.journal")
    if journal_directory is not None:
        journal = _database_directory(Path(journal_directory), file.name, str(file)) / "journal"
    return StoreLocation(
        kind="sqlite",
        database=str(file),
        journal=journal,
        artifacts=file.with_name(f"{file.name}.artifacts"),
        locks=journal.with_name(f"{file.name}.locks"),
        display_name=str(file),
    )


def _locate_postgres(rest: str, journal_directory: Path | str | None) -> StoreLocation:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise MissingExtra("psycopg", "postgres") from None
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    # Without this, SQLAlchemy would read the end of a password that contains "@" as the host.
    rest = user.replace("@", "%40") + at + host + slash + path
    parts = urlsplit(f"postgresql://{rest}")
    identity = f"{parts.hostname}:{parts.port}{parts.path}?{parts.query}"
    state = Path(journal_directory) if journal_directory is not None else user_state_directory()
    own = _database_directory(state, parts.path.strip("/"), identity)
    return StoreLocation(
        kind="postgresql",
        database=f"postgresql+psycopg://{rest}",
        journal=own / "journal",
        artifacts=own / "artifacts",
        display_name=hide_password(f"postgresql://{rest}"),
    )


def _database_directory(shared: Path, name: str, identity: str) -> Path:
    """Return a directory for one database: its journal must never be inserted into another database."""
    safe_name = re.sub(r"[^\w.-]", "_", name)
    return shared.expanduser().absolute() / f"{safe_name}-{sha256(identity.encode()).hexdigest()[:12]}"


def settings_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for Ferrule's settings: `FERRULE_CONFIG_HOME`, or the system's place."""
    if named := environ.get("FERRULE_CONFIG_HOME"):
        return Path(named)
    home = Path.home()
    if sys.platform == "darwin":
        settings = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        settings = Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return settings / "ferrule"


def user_cache_directory(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for copies of one sort, which may be deleted at any time."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrule" / name


def user_state_directory() -> Path:
    """Return the user's folder for records without a project."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "ferrule"


# ---- files and directories that only their owner can read


def make_directory(path: Path) -> None:
    """Create the directory and its parents where they do not exist; existing ones keep their permissions."""
    if not path.is_dir():
        make_directory(path.parent)  # `mkdir(parents=True)` would create these with the default permissions
        path.mkdir(mode=0o700, exist_ok=True)


def make_file(path: Path) -> None:
    """Create an empty file if there is none. The files SQLite puts beside a database get the database's permissions.

    An existing one is not even opened: closing it would give up the locks that this process has on it for SQLite, and
    another process could then remove the log of a database that is in use here.
    """
    make_directory(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600))


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; after an OSError the old content is still there."""
    make_directory(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
