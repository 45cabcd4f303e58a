"""What came of loading files of tools, and what changed between two loads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from ferrule.errors import LoadError, text_of
from ferrule.spec import Tool

logger = logging.getLogger("ferrule.sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The tools that can be used, and everything that is wrong with the files."""

    tools: tuple[Tool, ...] = ()
    errors: tuple[LoadError, ...] = ()
    files: tuple[Path, ...] = ()
    """All that were looked at, good or bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """The tools of one file. A file with any error brings none: it loads whole or not at all."""

    tools: tuple[Tool, ...] = ()
    errors: tuple[LoadError, ...] = ()
    made_from: Mapping[Path, str] = field(default_factory=dict)
    """Every file that took part (itself, modules it uses) with the digest of its content; "" for one not there."""

    @property
    def is_current(self) -> bool:
        """Whether loading again would give the same. A failure may have had other reasons than the files."""
        return not self.errors and all(digest_of(path) == digest for path, digest in self.made_from.items())


def load_or_report(read: Callable[[Path], LoadedFile], path: Path) -> LoadedFile:
    """What reading a file gives. Nothing that goes wrong with one file may stop the others."""
    try:
        return read(path)
    except Exception as error:
        logger.exception("file=<%s> | reading it failed in a way nobody has thought of", path)
        said = f"{type(error).__name__}: {text_of(error)}"
        return LoadedFile(errors=(LoadError(f"the file cannot be loaded: {said}", path=path),))


def report_of(files: Iterable[tuple[Path, LoadedFile]]) -> LoadReport:
    """One report of several files, in their order. Of two tools of one name the first is kept."""
    paths: list[Path] = []
    errors: list[LoadError] = []
    kept: dict[str, Tool] = {}
    for path, loaded in files:
        paths.append(path)
        errors += loaded.errors
        for tool in loaded.tools:
            if tool.id in kept:
                errors.append(_twice(tool, kept[tool.id]))
            else:
                kept[tool.id] = tool
    return LoadReport(tools=tuple(kept.values()), errors=tuple(errors), files=tuple(paths))


def digest_of(path: Path) -> str:
    try:
        return digest(path.read_bytes()) if path.is_file() else ""  # a named pipe would be waited for
    except OSError:
        return ""


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What must happen to the old tools to get the new ones."""

    added: tuple[Tool, ...] = ()
    updated: tuple[Tool, ...] = ()
    """As they are now."""
    removed: tuple[Tool, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.updated or self.removed)


def diff(old_tools: Iterable[Tool], new_tools: Iterable[Tool]) -> Changes:
    """Tools are the same by id, and unchanged when nothing a user of them could notice is different."""
    old = {tool.id: tool for tool in old_tools}
    new = {tool.id: tool for tool in new_tools}
    return Changes(
        added=tuple(tool for tool in new.values() if tool.id not in old),
        updated=tuple(tool for tool in new.values() if tool.id in old and _differs(old[tool.id], tool)),
        removed=tuple(tool for tool in old.values() if tool.id not in new),
    )


def _differs(old: Tool, new: Tool) -> bool:
    def noticeable(tool: Tool) -> tuple[object, ...]:
        return tool.spec.fingerprint, tool.spec.enabled, tool.spec.tags, tool.handler

    return old is not new and noticeable(old) != noticeable(new)


def _twice(second: Tool, first: Tool) -> LoadError:
    message = f"there is a tool {second.id!r} already, at {first.origin}; this one is left out"
    return error_at(second.origin, message, hint="rename one of them")


def error_at(origin: str, message: str, hint: str | None = None) -> LoadError:
    """What is wrong with the tool of an origin: a file and line, or a URL."""
    path, _, line = origin.rpartition(":")
    if line.isdecimal() and "://" not in path:
        return LoadError(message, path=Path(path), line=int(line), hint=hint)
    return LoadError(f"{origin}: {message}", hint=hint)
