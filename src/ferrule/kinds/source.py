"""Where tools come from: the `Source` protocol, the report of a load, and which files of a folder describe tools.

A source reads files of one kind (a folder of YAML and Python files, OpenAPI documents, skills, an `mcp.json`) and
returns a whole new list of tools each time. `ferrule.kinds.loading` compares the list with the one before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from ferrule.core.spec import Tool
from ferrule.errors import LoadError, error_text

logger = logging.getLogger("ferrule.kinds")

YAML_SUFFIXES: Final = frozenset({".yaml", ".yml"})
PYTHON_SUFFIXES: Final = frozenset({".py"})
TOOL_SUFFIXES: Final = YAML_SUFFIXES | PYTHON_SUFFIXES


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The tools that can be used, and everything that is wrong with the files."""

    tools: tuple[Tool, ...] = ()
    errors: tuple[LoadError, ...] = ()
    files: tuple[Path, ...] = ()
    """All files that were read, valid or not."""


class Source(Protocol):
    """Reads tools, and reads them again whenever `load` is called."""

    def load(self) -> LoadReport:
        """Load all tools as they are now, in a thread. Problems are reported, not raised."""
        ...

    def watched_folders(self) -> Sequence[WatchedFolder]:
        """Return the files after whose change the source must be loaded again."""
        ...


@runtime_checkable
class LiveSource(Source, Protocol):
    """A source with something that runs, such as MCP servers, and that follows what was loaded."""

    async def after_load(self, removed: Sequence[Tool]) -> None:
        """Follow a load. `removed` are tools of the load before that are gone."""
        ...

    async def aclose(self) -> None: ...


# One file


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """The tools of one file. A file with any error has none: it loads completely or not at all."""

    tools: tuple[Tool, ...] = ()
    errors: tuple[LoadError, ...] = ()
    digests: Mapping[Path, str] = field(default_factory=dict)
    """Every file that took part (the file itself, modules it uses) with the digest of its content; "" if missing."""
    unused: tuple[LoadError, ...] = ()
    """What is wrong with a file without tools, unless the tools of another file use it."""

    @property
    def is_current(self) -> bool:
        """Return whether the files are unchanged; False after an error, which may have had other reasons."""
        return not self.errors and all(digest_file(path) == digest for path, digest in self.digests.items())


def load_or_report(read: Callable[[Path], LoadedFile], path: Path) -> LoadedFile:
    """Read a file. An unexpected exception becomes an error of the file: it must not stop the others."""
    try:
        return read(path)
    except Exception as error:
        logger.exception("file=<%s> | unexpected error while reading the file", path)
        reason = f"{type(error).__name__}: {error_text(error)}"
        return LoadedFile(errors=(LoadError(f"the file cannot be loaded: {reason}", path=path),))


def combine_into_report(files: Iterable[tuple[Path, LoadedFile]]) -> LoadReport:
    """Combine files into one report, in their order. Of two tools with the same name the first is used."""
    paths: list[Path] = []
    errors: list[LoadError] = []
    tools: dict[str, Tool] = {}
    files = list(files)
    uses = {used for path, loaded in files for used in loaded.digests if used != path}
    for path, loaded in files:
        paths.append(path)
        errors += loaded.errors or (() if path in uses else loaded.unused)
        for tool in loaded.tools:
            if tool.id in tools:
                errors.append(make_duplicate_error(tool, tools[tool.id]))
            else:
                tools[tool.id] = tool
    return LoadReport(tools=tuple(tools.values()), errors=tuple(errors), files=tuple(paths))


def make_duplicate_error(tool: Tool, owner: Tool) -> LoadError:
    message = f"there is a tool {tool.id!r} already, at {owner.origin}; this one is ignored"
    return make_error_at_origin(tool.origin, message, hint="rename one of them")


def make_error_at_origin(origin: str, message: str, hint: str | None = None) -> LoadError:
    """Make an error about the tool with this origin, which is a file and line, or a URL."""
    path, _, line = origin.rpartition(":")
    if line.isdecimal() and "://" not in path:
        return LoadError(message, path=Path(path), line=int(line), hint=hint)
    return LoadError(f"{origin}: {message}" if origin else message, hint=hint)


def read_limited_file(path: Path, max_size: int, hint: str | None = None, *, may_be_pipe: bool = False) -> bytes:
    """Read the bytes of a file. Raises LoadError for one that is too large, or may never end (a pipe, a device)."""
    try:
        if not may_be_pipe and path.exists() and not path.is_file():
            raise LoadError("the file cannot be read: it is a folder, a pipe or a device", path=path)
        with path.open("rb") as file:
            content = file.read(max_size + 1)
    except OSError as error:
        raise LoadError(f"the file cannot be read: {error.strerror or error}", path=path) from None
    if len(content) > max_size:
        raise LoadError(f"the file is larger than {max_size:,} bytes", path=path, hint=hint)
    return content


def digest_file(path: Path) -> str:
    try:
        return digest(path.read_bytes()) if path.is_file() else ""  # reading a named pipe would block
    except OSError:
        return ""


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


# Folders: the files of the folder itself and of the folders in it, one level deep. Names that start with `.` or `_`
# are skipped: editors' own files, and helper modules that only get imported. So are Python packages (folders with an
# `__init__.py`).


def tool_files(directory: Path, suffixes: Collection[str] = TOOL_SUFFIXES) -> list[Path]:
    return [path for path in watched_files(directory, suffixes) if not path.name.startswith("_")]


def watched_files(directory: Path, suffixes: Collection[str] = TOOL_SUFFIXES) -> list[Path]:
    """Return the files that describe tools and the helper modules they may import, in order of their paths."""
    entries = [entry for folder in tool_folders(directory) for entry in visible_entries(folder)]
    paths = [Path(entry.path) for entry in entries if check_or_false(entry.is_file)]
    return sorted(path for path in paths if path.suffix.lower() in suffixes)


def tool_folders(directory: Path) -> list[Path]:
    """Return the folder, whether it exists or not, and the folders in it that may have files of tools."""
    entries = visible_entries(directory)
    inner = [Path(e.path) for e in entries if check_or_false(e.is_dir) and not e.name.startswith("_")]
    return [directory, *(path for path in sorted(inner) if not (path / "__init__.py").exists())]


def check_or_false(check: Callable[[], bool]) -> bool:
    """Return the result of a check such as `entry.is_file`. If it raises OSError (a link to itself), return False."""
    try:
        return check()
    except OSError:
        return False


def visible_entries(folder: Path, limit: int | None = None) -> list[os.DirEntry[str]]:
    """Return the entries of a folder that are not hidden, of the first `limit`. A missing folder has none."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in islice(entries, limit) if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


@dataclass(frozen=True, slots=True)
class WatchedFolder:
    """A folder, and which of its files are watched for changes."""

    path: Path
    files: Callable[[Path], list[Path]] = watched_files
    """The files that count. May raise OSError when the folder cannot be read."""

    @classmethod
    def of_file(cls, file: Path) -> WatchedFolder:
        """Watch the folder of a single file. Only changes of that file count."""
        return cls(file.parent, lambda _: [file] if file.exists() else [])
