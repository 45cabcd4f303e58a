"""The folder that tools for files may use, and nothing outside it.

A path is never handed to the system as a whole. Its names are opened one after the other, each in the folder opened
before and none of them through a link, so that nobody who swaps a folder for a link meanwhile can lead a call out:
the folder that was checked is the folder that is used.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from ferrule.errors import ExecutionFailed, Refuse, Retry
from ferrule.names import near_names

Parts: TypeAlias = tuple[str, ...]
"""The names of a path, from the workspace down; none for the workspace itself."""

PROTECTED: Final = ("ferrule.toml", "mcp.json", "tools", "skills")
"""What decides which code Ferrule runs: it can be read, and not be changed."""

HISTORIES: Final = frozenset({".git", ".hg", ".svn"})
"""What these hold cannot be changed either, in whichever folder they are: their hooks are run by whoever commits."""

TEMPORARY: Final = ".ferrule-"
"""How the names of files begin that are being written."""

# Without O_NONBLOCK to open a named pipe is to wait for somebody who writes into it.
_CAREFULLY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEEPEST: Final = 64
_LONGEST: Final = 4_000
_LOOKED_AT: Final = 5_000
"""Names that are looked at to find what was meant."""
_NAMED: Final = 8
"""Names that a message tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A folder, and which paths in it cannot be changed."""

    root: Path
    protected: tuple[Parts, ...] = ()

    @classmethod
    def at(cls, path: str | Path, protected: tuple[str, ...] = PROTECTED) -> Workspace:
        root = Path(os.path.realpath(path))
        return cls(root=root, protected=tuple(_same_names(tuple(PurePosixPath(each).parts)) for each in protected))

    def parts(self, path: str) -> Parts:
        """The names of a path, which must lead to something in the workspace."""
        if "\0" in path or len(path) > _LONGEST:
            raise Retry(f"{path[:40]!r}… is no path: give one such as 'docs/notes.txt', from the workspace down.")
        names = _below(path, self.root) if path.startswith("/") else path.split("/")
        parts = tuple(name for name in names if name not in ("", "."))
        if ".." in parts:
            raise Refuse(f"{path!r} has '..' in it, which could lead out of the workspace. {_HOW}")
        if len(parts) > _DEEPEST:
            raise Retry(f"{path[:40]!r}… is deeper than {_DEEPEST} folders.")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise Retry(f"{path!r} has characters in it that no file name has.") from None
        return parts

    def file_parts(self, path: str) -> Parts:
        """The same for what cannot be the workspace itself."""
        parts = self.parts(path)
        if not parts:
            raise Retry(f"{path!r} is the workspace itself: name a file in it.")
        return parts

    def require_changeable(self, parts: Parts) -> None:
        """Refuse what would change something protected, or move it along."""
        wanted = _same_names(parts)
        histories = [(name,) for name in wanted if name in HISTORIES]
        for guarded in (*histories, *self.protected):
            if guarded in histories or wanted[: len(guarded)] == guarded or guarded[: len(wanted)] == wanted:
                raise Refuse(
                    f"{shown(parts)!r} cannot be changed: what stands in {'/'.join(guarded)!r} decides which code is "
                    "run. Write somewhere else, or ask the user to do it."
                )
        if parts and parts[-1].startswith(TEMPORARY):
            raise Refuse(
                f"{shown(parts)!r}: names that begin with {TEMPORARY!r} belong to files that are being written."
            )

    @contextmanager
    def folder(self, parts: Parts = (), *, create: bool = False) -> Iterator[int]:
        """A folder of the workspace, open; with `create` it and those above it are made where they are missing."""
        opened = self._open_root()
        try:
            for depth in range(len(parts)):
                above, opened = opened, self._open_folder(opened, parts, depth, create=create)
                os.close(above)
            yield opened
        finally:
            os.close(opened)

    @contextmanager
    def open_file(self, parts: Parts, flags: int = os.O_RDONLY) -> Iterator[int]:
        """A regular file of the workspace, open."""
        with self.folder(parts[:-1]) as folder:
            self.require_file(folder, parts)
            with told(parts):
                opened = os.open(parts[-1], flags | _CAREFULLY, dir_fd=folder)
        try:
            _require_regular(os.fstat(opened), parts)  # of what was opened, whatever stood there before
            yield opened
        finally:
            os.close(opened)

    def require_file(self, folder: int, parts: Parts) -> os.stat_result:
        """What the system says of a regular file in an open folder."""
        found = self.status(folder, parts)
        _require_regular(found, parts)
        return found

    def status(self, folder: int, parts: Parts) -> os.stat_result:
        """What the system says of something in an open folder, of a link and not of what it points to."""
        with told(parts):
            try:
                return os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                raise self._missing(folder, parts, len(parts) - 1) from None

    def exists(self, folder: int, parts: Parts) -> bool:
        with told(parts):
            try:
                os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return True

    def _open_root(self) -> int:
        try:
            return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ExecutionFailed(
                f"The workspace {str(self.root)!r} cannot be opened: {error.strerror}. Set another one."
            ) from error

    def _open_folder(self, above: int, parts: Parts, depth: int, *, create: bool) -> int:
        here = parts[: depth + 1]
        with told(here):
            if create:
                with suppress(FileExistsError):
                    os.mkdir(here[-1], dir_fd=above)
            try:
                return os.open(here[-1], os.O_DIRECTORY | _CAREFULLY, dir_fd=above)
            except FileNotFoundError:
                raise self._missing(above, parts, depth) from None
            except NotADirectoryError:
                found = os.stat(here[-1], dir_fd=above, follow_symlinks=False)
                if stat.S_ISLNK(found.st_mode):
                    raise Refuse(f"{shown(here)!r} is a link.{_LINKS}") from None
                raise Retry(f"{shown(here)!r} is a file, not a folder.") from None

    def _missing(self, folder: int, parts: Parts, depth: int) -> ExecutionFailed:
        """That something does not exist, what is there instead, and where else something of that name is."""
        path, name = shown(parts), parts[depth]
        with os.scandir(folder) as entries:
            names = sorted(sayable(each.name) for each in islice(entries, _LOOKED_AT))
        names = [each for each in names if not each.startswith(TEMPORARY)]
        near = [shown((*parts[:depth], each, *parts[depth + 1 :])) for each in near_names(name, names)]
        near = near or [shown(found) for found in self._elsewhere(parts[-1])]
        meant = f" Did you mean {' or '.join(map(repr, near[:3]))}?" if near else ""
        where = f"the folder {shown(parts[:depth])!r}" if depth else "the workspace"
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        holds = f"{', '.join(map(repr, names[:_NAMED]))}{more}" if names else "nothing"
        return ExecutionFailed(f"{path!r} does not exist.{meant} In {where} there is {holds}.")

    def _elsewhere(self, name: str) -> list[Parts]:
        """Where something of this name is, among the first few thousand names of the workspace."""
        found: list[Parts] = []
        waiting: list[Parts] = [()]
        looked_at = 0
        while waiting and looked_at < _LOOKED_AT and len(found) < 3:
            here = waiting.pop(0)
            try:
                with self.folder(here) as folder, os.scandir(folder) as entries:
                    for entry in islice(entries, _LOOKED_AT - looked_at):
                        looked_at += 1
                        if entry.name == name:
                            found.append((*here, entry.name))
                        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                            waiting.append((*here, entry.name))
            except (OSError, ExecutionFailed, Refuse):
                continue  # gone since, or not ours to read
        return found


def shown(parts: Parts) -> str:
    """A path as callers write it."""
    return sayable("/".join(parts)) or "."


def sayable(name: str) -> str:
    """A name that is no valid UTF-8, with a sign in the place of what cannot be said."""
    return os.fsencode(name).decode("utf-8", "replace")


@contextmanager
def told(parts: Parts) -> Iterator[None]:
    """Tell callers what the system says about a path; only that something exists already is for others to tell."""
    try:
        yield
    except FileExistsError:
        raise
    except FileNotFoundError as error:
        raise ExecutionFailed(f"{shown(parts)!r} does not exist any more: somebody else has removed it.") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refuse(f"{shown(parts)!r} is a link.{_LINKS}") from error
        if error.errno == errno.ENAMETOOLONG:
            raise Retry(f"{shown(parts)[:60]!r}… has a name that is too long for a file.") from error
        kind = Refuse if isinstance(error, PermissionError) else ExecutionFailed
        raise kind(f"{shown(parts)!r} cannot be used: {(error.strerror or str(error)).lower()}.") from error


def _below(path: str, root: Path) -> Parts:
    parts = PurePosixPath(path).parts
    if parts[: len(root.parts)] != root.parts:
        raise Refuse(f"{path!r} is outside the workspace. {_HOW}")
    return parts[len(root.parts) :]


def _require_regular(found: os.stat_result, parts: Parts) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = kind_of(found.st_mode)
        if what == "folder":
            raise Retry(f"{shown(parts)!r} is a folder, not a file. See what is in it with list_workspace_files.")
        raise Refuse(f"{shown(parts)!r} is {_SPECIAL[what]}, not a file.{_LINKS if what == 'link' else ''}")


def kind_of(mode: int) -> str:
    """`file`, `folder`, `link` or `special`."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "special"


def _same_names(parts: Parts) -> Parts:
    """Names that a file system without capital letters would take for the same."""
    return tuple(unicodedata.normalize("NFC", part).casefold() for part in parts)


_HOW: Final = "Give a path from the workspace down, such as 'docs/notes.txt'."
_LINKS: Final = " Links are not followed, as they may lead out of the workspace: use the path it points to."
_SPECIAL: Final = {"link": "a link", "special": "a pipe, a socket or a device"}
