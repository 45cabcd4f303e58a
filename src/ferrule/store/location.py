"""Where a store keeps its things: what the user wrote, read once.

None, sqlite://                    in memory
calls.db, sqlite:///calls.db       a SQLite file; the journal and the artifacts stand beside it
sqlite:////var/lib/calls.db        the same with an absolute path
postgresql://user@host/database    Postgres; the journal and the artifacts are in a local directory
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from ferrule.errors import MissingExtra, StoreError

_PASSWORD = re.compile(r"(?<=://)([^\s:/?#@]*):\S*@")
_PASSWORD_OPTION = re.compile(r"\b((?:ssl)?password=)(?:'[^']*'|[^\s&#'\"]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    kind: Literal["memory", "sqlite", "postgresql"]
    database: str = ""
    """The path of the SQLite file, or the URL of the Postgres database."""
    journal: Path | None = None
    artifacts: Path | None = None
    shown: str = "memory"
    """For messages: without the password."""


def locate(url: str | None, journal_directory: Path | str | None = None) -> Location:
    scheme, separator, rest = (url or "sqlite://").partition("://")
    if not separator:
        return _sqlite(scheme, journal_directory)
    if scheme == "sqlite":
        if rest in ("", "/:memory:"):
            return Location(kind="memory")
        if rest.startswith("/") and len(rest) > 1:
            return _sqlite(rest[1:], journal_directory)
    if scheme in ("postgresql", "postgres", "postgresql+psycopg") and _names_database(f"postgresql://{rest}"):
        return _postgres(rest, journal_directory)
    raise StoreError(
        f"{hide_password(url or '')!r} is not the address of a store. Write sqlite:///calls.db or a path for a file, "
        "sqlite:////absolute/calls.db for one anywhere, postgresql://user:password@host/database for Postgres, "
        "or nothing to keep records in memory."
    )


def hide_password(text: str) -> str:
    """An address, or an error that names one, for messages. A password may hold any character: better too much goes."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def _sqlite(path: str, journal_directory: Path | str | None) -> Location:
    if not path.strip() or path.endswith(("/", os.sep)) or os.path.isdir(path):
        raise StoreError(f"{path!r} is a directory. Name a file in it: sqlite:///{path.rstrip('/') or '.'}/calls.db")
    file = Path(path).expanduser().absolute()
    journal = file.with_name(f"{file.name}.journal")
    if journal_directory is not None:
        journal = _own_directory(Path(journal_directory), file.name, str(file)) / "journal"
    return Location(
        kind="sqlite",
        database=str(file),
        journal=journal,
        artifacts=file.with_name(f"{file.name}.artifacts"),
        shown=str(file),
    )


def _postgres(rest: str, journal_directory: Path | str | None) -> Location:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise MissingExtra("psycopg", "postgres") from None
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    rest = user.replace("@", "%40") + at + host + slash + path  # else SQLAlchemy takes the end of a password for a host
    parts = urlsplit(f"postgresql://{rest}")
    identity = f"{parts.hostname}:{parts.port}{parts.path}?{parts.query}"
    state = Path(journal_directory) if journal_directory is not None else _state_directory()
    own = _own_directory(state, parts.path.strip("/"), identity)
    return Location(
        kind="postgresql",
        database=f"postgresql+psycopg://{rest}",
        journal=own / "journal",
        artifacts=own / "artifacts",
        shown=hide_password(f"postgresql://{rest}"),
    )


def _names_database(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.path.strip("/")) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _own_directory(shared: Path, name: str, identity: str) -> Path:
    """A directory for one database: lines of another one must never be taken for its own."""
    readable = re.sub(r"[^\w.-]", "_", name)
    return shared.expanduser().absolute() / f"{readable}-{sha256(identity.encode()).hexdigest()[:12]}"


def _state_directory() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "ferrule"
