"""The folder that file tools may use, and nothing outside it.

A path is never passed to the system as a whole. Its names are opened one after the other, each relative to the folder
opened before and never through a link. So replacing a folder by a link meanwhile does not lead a call out of the
workspace: the folder that was checked is the folder that is used.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import BinaryIO, Final

from ferrule.core.names import similar_names
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry
from ferrule_tools.files.path_rules import PROTECTED, SECRET, Parts, PathRules

REPOSITORY_FOLDERS: Final = frozenset({".git", ".hg", ".svn"})
"""Folders that are not searched."""

MAX_NAMES_READ: Final = 300_000
"""Names that one call reads."""
_IGNORED_NAMES: Final = frozenset({"node_modules", "__pycache__"})
TEMPORARY_PREFIX: Final = ".ferrule-"
"""The prefix of the names of files that are being written."""

# Without O_NONBLOCK, opening a named pipe waits for a writer.
_SAFE_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_DEPTH: Final = 64
_MAX_PATH: Final = 4_000
_MAX_COMPARED: Final = 5_000
"""The number of names that are compared to find a similar one."""
_MAX_SHOWN_NAMES: Final = 8
"""In a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A folder, which paths in it are secret, and which can be read but not changed."""

    root: Path
    secret: PathRules = PathRules(SECRET)
    protected: PathRules = PathRules(PROTECTED)

    @classmethod
    def at(cls, path: str | Path, protected: Sequence[str] = PROTECTED, secret: Sequence[str] = SECRET) -> Workspace:
        """Return the workspace in a folder, with patterns of paths such as `.env*`, `docs/*.md` or `/tools`."""
        root = Path(os.path.realpath(path))
        return cls(root=root, secret=PathRules(tuple(secret)), protected=PathRules(tuple(protected)))

    def with_paths(self, *, secret: Iterable[Path] = (), protected: Iterable[Path] = ()) -> Workspace:
        """Return the workspace with more protected paths, and paths whose names begin a secret one.

        They may be anywhere: those outside the workspace do not matter.
        """
        return replace(
            self,
            secret=replace(self.secret, prefixes=(*self.secret.prefixes, *self._inner_paths(secret))),
            protected=replace(self.protected, paths=(*self.protected.paths, *self._inner_paths(protected))),
        )

    def _inner_paths(self, paths: Iterable[Path]) -> Iterator[Parts]:
        for path in map(Path, map(os.path.realpath, paths)):
            if path.is_relative_to(self.root):
                yield path.relative_to(self.root).parts
            elif self.root.is_relative_to(path):
                yield ()  # the workspace is a part of it

    def is_secret(self, parts: Parts) -> bool:
        """Return whether a path is out of reach: neither read nor changed nor listed."""
        return self.secret.covers(parts)

    def parts(self, path: str) -> Parts:
        """Return the names of a path. Raises an error if the path does not lead to something in the workspace."""
        if "\0" in path or len(path) > _MAX_PATH:
            raise Retry(f"{path[:40]!r}… is not a path: give one such as 'docs/notes.txt', relative to the workspace.")
        names: Sequence[str] = path.split("/")
        if path.startswith("/"):
            names, root = PurePosixPath(path).parts, self.root.parts
            if names[: len(root)] != root:
                raise Refuse(f"{path!r} is outside the workspace. {_PATH_ADVICE}")
            names = names[len(root) :]
        parts = tuple(name for name in names if name not in ("", "."))
        if ".." in parts:
            raise Refuse(f"{path!r} contains '..', which could lead out of the workspace. {_PATH_ADVICE}")
        if len(parts) > _MAX_DEPTH:
            raise Retry(f"{path[:40]!r}… is deeper than {_MAX_DEPTH} folders.")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise Retry(f"{path!r} has characters in it that no file name has.") from None
        self._require_visible(parts)
        return parts

    def file_parts(self, path: str) -> Parts:
        """Return the names of a path like `parts`. Raises Retry for the workspace itself."""
        parts = self.parts(path)
        if not parts:
            raise Retry(f"{path!r} is the workspace itself: name a file in it.")
        return parts

    def require_changeable(self, parts: Parts) -> None:
        """Refuse a path whose change would change or move something secret or protected."""
        self._require_visible(parts)
        if self.protected.covers(parts):
            raise Refuse(
                f"{display_path(parts)!r} can be read but not changed: it determines which code is run. "
                "Write somewhere else, or ask the user to do it."
            )
        if self.protected.covers_below(parts) or self.secret.covers_below(parts):
            raise Refuse(
                f"{display_path(parts)!r} cannot be changed: paths in it are protected. "
                "Write somewhere else, or ask the user to do it."
            )
        if parts and parts[-1].startswith(TEMPORARY_PREFIX):
            raise Refuse(
                f"{display_path(parts)!r}: names that begin with {TEMPORARY_PREFIX!r} are reserved "
                "for unfinished files."
            )

    def _require_visible(self, parts: Parts) -> None:
        if self.is_secret(parts):
            raise Refuse(
                f"{display_path(parts)!r} is out of reach: it may hold credentials or records. "
                "Do without it, or ask the user."
            )

    @contextmanager
    def open_folder(self, parts: Parts = (), *, create: bool = False) -> Iterator[int]:
        """Open a folder of the workspace; `create` makes it and its parents if they are missing."""
        self._require_visible(parts)
        try:
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ExecutionFailed(
                f"The workspace {str(self.root)!r} cannot be opened: {error.strerror}. Set another one."
            ) from error
        try:
            for depth in range(len(parts)):
                above, descriptor = descriptor, self._open_folder(descriptor, parts, depth, create=create)
                os.close(above)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def open_file(self, parts: Parts, *, appends: bool = False) -> Iterator[BinaryIO]:
        """Open a regular file of the workspace, to read it or to append to it."""
        self._require_visible(parts)
        flags = os.O_RDWR | os.O_APPEND if appends else os.O_RDONLY
        with self.open_folder(parts[:-1]) as folder:
            self.require_file(folder, parts)
            with convert_file_errors(parts):
                descriptor = os.open(parts[-1], flags | _SAFE_FLAGS, dir_fd=folder)
        try:
            # Checks what was opened, in case the path was replaced meanwhile.
            status = os.fstat(descriptor)
            _require_regular(status, parts)
            if status.st_nlink > 1 and (status.st_dev, status.st_ino) in self._secret_files():
                raise Refuse(f"{display_path(parts)!r} is out of reach: it is another name of a secret file.")
            with open(descriptor, "r+b" if appends else "rb", closefd=False) as file:
                yield file
        finally:
            os.close(descriptor)

    def _secret_files(self) -> set[tuple[int, int]]:
        """Return device and inode of the named secret paths, and of the secret paths at the top of the workspace."""
        paths = [self.root.joinpath(*parts) for parts in (*self.secret.paths, *self.secret.prefixes)]
        with os.scandir(self.root) as entries:
            paths += [self.root / entry.name for entry in entries if self.is_secret((entry.name,))]
        identities = set()
        for path in paths:
            with suppress(OSError):
                status = os.stat(path, follow_symlinks=False)
                identities.add((status.st_dev, status.st_ino))
        return identities

    @contextmanager
    def create_file(self, parts: Parts, *, mode: int | None = None, advice: str = "") -> Iterator[BinaryIO]:
        """Create a file and its folders. Raises Retry if the file exists or another process creates it meanwhile."""
        with self.open_folder(parts[:-1], create=True) as folder:
            try:
                if self.exists(folder, parts):
                    raise FileExistsError
                with convert_file_errors(parts), open_new_file(folder, parts[-1], mode=mode) as file:
                    yield file
            except FileExistsError:
                raise exists_error(parts, advice) from None

    def require_file(self, folder: int, parts: Parts) -> os.stat_result:
        """Return the status of a regular file in an open folder."""
        status = self.status(folder, parts)
        _require_regular(status, parts)
        return status

    def status(self, folder: int, parts: Parts) -> os.stat_result:
        """Return the status of an entry in an open folder; of a link, not of its target."""
        with convert_file_errors(parts):
            try:
                return os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                raise self._missing_error(folder, parts, len(parts) - 1) from None

    def exists(self, folder: int, parts: Parts) -> bool:
        with convert_file_errors(parts):
            try:
                os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return True

    def _open_folder(self, above: int, parts: Parts, depth: int, *, create: bool) -> int:
        here = parts[: depth + 1]
        with convert_file_errors(here):
            if create:
                with suppress(FileExistsError):
                    os.mkdir(here[-1], dir_fd=above)
            try:
                return os.open(here[-1], os.O_DIRECTORY | _SAFE_FLAGS, dir_fd=above)
            except FileNotFoundError:
                raise self._missing_error(above, parts, depth) from None
            except NotADirectoryError:
                status = os.stat(here[-1], dir_fd=above, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    raise Refuse(f"{display_path(here)!r} is a link.{_LINK_ADVICE}") from None
                raise Retry(f"{display_path(here)!r} is a file, not a folder.") from None

    def _missing_error(self, folder: int, parts: Parts, depth: int) -> ExecutionFailed:
        """Return the error for a missing path: what exists in its place, and where else that name exists."""
        path, name = display_path(parts), parts[depth]
        with os.scandir(folder) as entries:
            is_secret = self.secret.name_matcher(parts[:depth])
            visible = (each.name for each in islice(entries, _MAX_COMPARED) if not is_secret(each.name))
            names = sorted(to_valid_utf8(each) for each in visible if not each.startswith(TEMPORARY_PREFIX))
        near = [display_path((*parts[:depth], each, *parts[depth + 1 :])) for each in similar_names(name, names)]
        if not near:
            walk = FolderWalk(self, hidden=parts[-1].startswith("."), recursive=True, max_names=_MAX_COMPARED)
            near = [display_path(each.parts) for each in walk.entries(()) if each.parts[-1] == parts[-1]]
        suggestion = f" Did you mean {' or '.join(map(repr, near[:3]))}?" if near else ""
        where = f"the folder {display_path(parts[:depth])!r}" if depth else "the workspace"
        more = f" and {len(names) - _MAX_SHOWN_NAMES} more" if len(names) > _MAX_SHOWN_NAMES else ""
        holds = f"{', '.join(map(repr, names[:_MAX_SHOWN_NAMES]))}{more}" if names else "nothing"
        return ExecutionFailed(f"{path!r} does not exist.{suggestion} In {where} there is {holds}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderEntry:
    """A file, folder, link or other entry of a folder."""

    parts: Parts
    kind: str
    """`file`, `folder`, `link` or `special`."""


class FolderWalk:
    """Walks through a folder breadth-first, and remembers whether it saw everything."""

    def __init__(self, workspace: Workspace, *, hidden: bool, recursive: bool, max_names: int = MAX_NAMES_READ) -> None:
        self._workspace, self._hidden, self._recursive, self._remaining = workspace, hidden, recursive, max_names
        self.is_complete = True

    def entries(self, start: Parts) -> Iterator[FolderEntry]:
        folders = deque([start])
        while folders:
            here = folders.popleft()
            for entry in self._in_folder(here, is_start=here == start):
                yield entry
                if entry.kind == "folder" and self._recursive and entry.parts[-1] not in REPOSITORY_FOLDERS:
                    folders.append(entry.parts)

    def _in_folder(self, here: Parts, *, is_start: bool) -> list[FolderEntry]:
        """Return the entries of one folder, sorted. The folder is closed again: a deep tree keeps few folders open."""
        is_secret = self._workspace.secret.name_matcher(here)
        excluded, ignored = (TEMPORARY_PREFIX, frozenset[str]()) if self._hidden else (".", _IGNORED_NAMES)
        try:
            with self._workspace.open_folder(here) as folder, os.scandir(folder) as entries:
                included = [
                    FolderEntry(parts=(*here, entry.name), kind=_entry_kind(entry))
                    for entry in islice(entries, self._remaining)
                    if not (entry.name.startswith(excluded) or entry.name in ignored or is_secret(entry.name))
                ]
                self._remaining -= len(included)
                self.is_complete = self.is_complete and next(entries, None) is None
        except (CallError, OSError):
            if is_start:
                raise
            self.is_complete = False  # removed meanwhile, or not readable
            return []
        return sorted(included, key=lambda entry: entry.parts)


def _entry_kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "special"


def exists_error(parts: Parts, advice: str = "") -> Retry:
    return Retry(f"{display_path(parts)!r} exists already. Choose another name{advice}.")


def display_path(parts: Parts) -> str:
    return to_valid_utf8("/".join(parts)) or "."


def to_valid_utf8(name: str) -> str:
    """Return a name as valid UTF-8, with a replacement character for invalid bytes."""
    return os.fsencode(name).decode("utf-8", "replace")


@contextmanager
def convert_file_errors(parts: Parts) -> Iterator[None]:
    """Raise errors of the system about a path as our errors, except FileExistsError."""
    try:
        yield
    except FileExistsError:
        raise
    except FileNotFoundError as error:
        raise ExecutionFailed(
            f"{display_path(parts)!r} does not exist any more: another process has removed it."
        ) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refuse(f"{display_path(parts)!r} is a link.{_LINK_ADVICE}") from error
        if error.errno == errno.ENAMETOOLONG:
            raise Retry(f"{display_path(parts)[:60]!r}… has a name that is too long for a file.") from error
        kind = Refuse if isinstance(error, PermissionError) else ExecutionFailed
        raise kind(f"{display_path(parts)!r} cannot be used: {(error.strerror or str(error)).lower()}.") from error


def _require_regular(status: os.stat_result, parts: Parts) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = file_kind(status.st_mode)
        if what == "folder":
            raise Retry(f"{display_path(parts)!r} is a folder, not a file. Use list_workspace_files to list it.")
        raise Refuse(
            f"{display_path(parts)!r} is {_KIND_TEXTS[what]}, not a file.{_LINK_ADVICE if what == 'link' else ''}"
        )


def file_kind(mode: int) -> str:
    """Return `file`, `folder`, `link` or `special`."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "special"


_PATH_ADVICE: Final = "Give a path relative to the workspace, such as 'docs/notes.txt'."
_LINK_ADVICE: Final = " Links are not followed, because they may lead out of the workspace: use the path it points to."
_KIND_TEXTS: Final = {"link": "a link", "special": "a pipe, a socket or a device"}


# Atomic writing: a file is written without a name and linked into place when it is complete. It replaces an existing
# file only if it is meant to. A concurrent reader sees the old content, and a killed call leaves
# nothing behind.

_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_O_TMPFILE: Final = getattr(os, "O_TMPFILE", 0)
_DESCRIPTORS: Final = "/proc/self/fd"
_LINK_UNSUPPORTED: Final = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV}
)


@contextmanager
def open_new_file(folder: int, name: str, *, replaces: bool = False, mode: int | None = None) -> Iterator[BinaryIO]:
    """Open a file to write to, which gets its name at the end.

    Raises FileExistsError if the name exists, unless the file `replaces` the existing one.
    """
    descriptor, temporary = _open_unnamed_file(folder)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            yield file
        os.fsync(descriptor)
        if mode is not None:
            os.fchmod(descriptor, mode)
        if replaces:
            if temporary is None:
                temporary = _temporary_name()
                os.link(f"{_DESCRIPTORS}/{descriptor}", temporary, dst_dir_fd=folder, follow_symlinks=True)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            temporary = None
        else:
            if temporary is None:
                os.link(f"{_DESCRIPTORS}/{descriptor}", name, dst_dir_fd=folder, follow_symlinks=True)
            else:
                move(source=(folder, temporary), target=(folder, name))
    finally:
        os.close(descriptor)
        if temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)


def _open_unnamed_file(folder: int) -> tuple[int, str | None]:
    """Open a file without a name where the system supports it, else one with a temporary name."""
    if _O_TMPFILE and os.path.isdir(_DESCRIPTORS):
        with suppress(OSError):  # not every file system supports them
            return os.open(".", os.O_WRONLY | _O_TMPFILE | os.O_CLOEXEC, 0o666, dir_fd=folder), None
    name = _temporary_name()
    return os.open(name, _NEW_FILE_FLAGS, 0o666, dir_fd=folder), name


def move(*, source: tuple[int, str], target: tuple[int, str], is_folder: bool = False) -> None:
    """Rename a file or a folder. A folder may replace an empty folder.

    Raises FileExistsError if the name exists: linking, unlike renaming, never replaces another file.
    """
    (source_folder, old), (target_folder, new) = source, target
    if is_folder:
        os.rename(old, new, src_dir_fd=source_folder, dst_dir_fd=target_folder)
        return
    try:
        os.link(old, new, src_dir_fd=source_folder, dst_dir_fd=target_folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _LINK_UNSUPPORTED:
            raise
        # Without links, an empty file reserves the name.
        os.close(os.open(new, _NEW_FILE_FLAGS, 0o666, dir_fd=target_folder))
        try:
            os.rename(old, new, src_dir_fd=source_folder, dst_dir_fd=target_folder)
        except OSError:
            os.unlink(new, dir_fd=target_folder)
            raise
    else:
        os.unlink(old, dir_fd=source_folder)


def _temporary_name() -> str:
    return f"{TEMPORARY_PREFIX}{token_hex(8)}.tmp"
