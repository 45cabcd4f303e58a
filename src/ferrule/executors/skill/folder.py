"""The files of one skill, read when they are asked for and never from outside its folder.

A path is walked part by part, each opened inside the one before and none through a link: whatever is moved or linked
meanwhile, nothing outside is reached. Hidden files are not part of a skill: that is where secrets lie.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from ferrule.errors import ExecutionFailed, PermissionDenied, Retry
from ferrule.executors.skill.text import split_skill
from ferrule.names import did_you_mean

MAX_FILE_SIZE = 5_000_000
MAX_LISTED = 200
MAX_DEPTH = 8
SCRIPTS = "scripts"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK opening a named pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledFile:
    path: str
    """Seen from the skill's folder."""
    size: int


class SkillFolder:
    """One skill on disk."""

    def __init__(self, path: Path, document: str) -> None:
        self.path, self.document = Path(os.path.abspath(path)), document

    def instructions(self) -> str:
        """The body of the skill's document as it is now."""
        text = self.read(self.document).decode("utf-8-sig", "replace")
        try:
            return split_skill(text).body
        except ValueError as error:
            raise ExecutionFailed(f"{self.path / self.document} was changed and is broken: {error}.") from None

    def files(self) -> list[BundledFile]:
        """What lies beside the document, in order; of very many only the first."""
        root = self._open_root()
        try:
            listed = (file for file in _walk(root, "", MAX_DEPTH) if file.path != self.document)
            return list(islice(listed, MAX_LISTED))
        finally:
            os.close(root)

    def read(self, path: str) -> bytes:
        with self.open(path) as file:
            content = file.read(MAX_FILE_SIZE + 1)
        if len(content) > MAX_FILE_SIZE:
            raise ExecutionFailed(f"{path!r} is larger than {MAX_FILE_SIZE:,} bytes. Read it with a script instead.")
        return content

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """A file of the skill, opened. What is wrong with the path is said so that a model can mend it."""
        *folders, name = parts_of(path)
        inside = self._open_root()
        try:
            for folder in folders:
                outer = inside
                try:
                    inside = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
                except OSError as error:
                    raise self._refusal(path, folder, outer, error) from None
                finally:
                    if inside != outer:
                        os.close(outer)
            try:
                descriptor = os.open(name, _FILE, dir_fd=inside)
            except OSError as error:
                raise self._refusal(path, name, inside, error) from None
        finally:
            os.close(inside)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Retry(f"{path!r} is not a file.{self._hint(path)}")
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def _open_root(self) -> int:
        try:
            return os.open(self.path, _FOLDER)
        except OSError as error:
            raise ExecutionFailed(f"the folder {str(self.path)!r} of the skill cannot be read: {error}") from None

    def _refusal(self, path: str, part: str, folder: int, error: OSError) -> Exception:
        with suppress(OSError):
            if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                return PermissionDenied(f"{path!r} leads through a link ({part!r}), which is not followed.")
        if isinstance(error, PermissionError):
            return ExecutionFailed(f"{path!r} cannot be read: {error.strerror}.")
        return Retry(f"the skill has no file {path!r}.{self._hint(path)}")

    def _hint(self, path: str) -> str:
        paths = [file.path for file in self.files()]
        return did_you_mean(path, paths) or f" Its files are: {', '.join(paths) or 'none'}."


def _walk(folder: int, inside: str, depth: int) -> Iterator[BundledFile]:
    """The files of an opened folder and of those in it."""
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: (entry.is_dir(follow_symlinks=False), entry.name))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        path = f"{inside}{entry.name}"
        if entry.is_file(follow_symlinks=False):
            with suppress(OSError):  # gone meanwhile
                yield BundledFile(path=path, size=entry.stat(follow_symlinks=False).st_size)
        elif depth and entry.is_dir(follow_symlinks=False):
            with suppress(OSError):  # gone meanwhile, or a link now
                inner = os.open(entry.name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                try:
                    yield from _walk(inner, f"{path}/", depth - 1)
                finally:
                    os.close(inner)


def parts_of(path: str) -> list[str]:
    """The parts of a path inside a skill."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith(("/", "~")) or ".." in parts:
        raise PermissionDenied(
            f"{path!r} leads out of the skill's folder. Use a path inside it, such as 'references/guide.md'."
        )
    if any(part.startswith(".") for part in parts):
        raise PermissionDenied(f"{path!r} is hidden: it is not part of the skill.")
    if not parts or not _can_be_a_path(path):
        raise Retry(f"{path!r} names no file. Use a path inside the skill's folder, such as 'references/guide.md'.")
    return parts


def _can_be_a_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
