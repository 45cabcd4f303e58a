"""The files of one skill, read on request and never from outside its folder.

A path is opened component by component, each relative to the one before and never through a symbolic link: even when
files are moved or linked meanwhile, nothing outside is reached. Hidden files are not part of a skill: they often hold
secrets.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from os import X_OK, access
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ferrule.core.names import did_you_mean
from ferrule.errors import CallError, ExecutionFailed, PermissionDenied, Retry
from ferrule.kinds.command import is_encodable
from ferrule.kinds.source import digest

FENCE = "---"


class SkillText(NamedTuple):
    front_matter: str
    """The text between the fences; it begins in line 2 of the file."""
    body: str


def split_front_matter(text: str) -> SkillText:
    """Split a `SKILL.md` into front matter and body. Raises ValueError when it has no front matter."""
    first, *lines = text.splitlines(keepends=True) or [""]
    if first.rstrip() != FENCE:
        raise ValueError(f"the file does not begin with a line {FENCE!r}: its front matter is missing")
    for index, line in enumerate(lines):
        if line.rstrip() == FENCE:
            return SkillText("".join(lines[:index]), "".join(lines[index + 1 :]).strip())
    raise ValueError(f"the front matter does not end: there is no second line {FENCE!r}")


MAX_FILE_SIZE = 5_000_000
MAX_LISTED = 200
MAX_COMPARED = 2_000
"""Files of a skill whose versions can be told apart; models are shown fewer."""
MAX_DEPTH = 8
SCRIPTS_FOLDER = "scripts"

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK opening a named pipe would wait for its writer.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledFile:
    path: str
    """Relative to the skill's folder."""
    size: int


class SkillFolder:
    """One skill on disk."""

    def __init__(self, path: Path, document: str) -> None:
        self.path, self.document = Path(os.path.abspath(path)), document

    def instructions(self) -> str:
        """Return the body of the skill's document as it is now."""
        text = self.read(self.document).decode("utf-8-sig", "replace")
        try:
            return split_front_matter(text).body
        except ValueError as error:
            raise ExecutionFailed(f"{self.path / self.document} was changed and is broken: {error}.") from None

    def files(self) -> list[BundledFile]:
        """Return the other files, sorted; at most `MAX_LISTED`."""
        return self._list_files(MAX_LISTED)

    def _list_files(self, limit: int) -> list[BundledFile]:
        root = self._open_root()
        try:
            listed = (file for file in _walk_files(root, "", MAX_DEPTH) if file.path != self.document)
            return list(islice(listed, limit))
        finally:
            os.close(root)

    @property
    def digest(self) -> str:
        """Return a digest of everything in the skill, as it is on disk now: a user trusts one version of a skill."""
        try:
            document = digest(self.read(self.document))
        except (CallError, OSError):
            return ""
        return digest(f"{document} {self.code_digest}".encode()) if self._list_files(1) else document

    @property
    def code_digest(self) -> str:
        """Return a digest of the skill's files: an approval of a script is for the files as they were."""
        try:
            files = self._list_files(MAX_COMPARED + 1)
            if len(files) > MAX_COMPARED:
                raise ExecutionFailed(f"the skill has more than {MAX_COMPARED:,} files")
            contents = [(file.path, sha256(self.read(file.path)).hexdigest()) for file in files]
        except (CallError, OSError) as error:  # no approval counts for files that cannot be compared
            return f"{type(error).__name__} {time.time_ns()}"
        return sha256(repr(contents).encode()).hexdigest()

    def read(self, path: str) -> bytes:
        with self.open(path) as file:
            content = file.read(MAX_FILE_SIZE + 1)
        if len(content) > MAX_FILE_SIZE:
            raise ExecutionFailed(f"{path!r} is larger than {MAX_FILE_SIZE:,} bytes. Read it with a script instead.")
        return content

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file of the skill. Errors about the path tell a model how to correct it."""
        *folders, name = split_skill_path(path)
        inside = self._open_root()
        try:
            for folder in folders:
                outer = inside
                try:
                    inside = os.open(folder, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=outer)
                except OSError as error:
                    raise self._make_open_error(path, folder, outer, error) from None
                finally:
                    if inside != outer:
                        os.close(outer)
            try:
                descriptor = os.open(name, _FILE_FLAGS, dir_fd=inside)
            except OSError as error:
                raise self._make_open_error(path, name, inside, error) from None
        finally:
            os.close(inside)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Retry(f"{path!r} is not a file.{self._missing_file_hint(path)}")
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def _open_root(self) -> int:
        try:
            return os.open(self.path, _FOLDER_FLAGS)
        except OSError as error:
            raise ExecutionFailed(f"the folder {str(self.path)!r} of the skill cannot be read: {error}") from None

    def _make_open_error(self, path: str, part: str, folder: int, error: OSError) -> Exception:
        with suppress(OSError):
            if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                return PermissionDenied(f"{path!r} leads through a symbolic link ({part!r}), which is not followed.")
        if isinstance(error, PermissionError):
            return ExecutionFailed(f"{path!r} cannot be read: {error.strerror}.")
        return Retry(f"the skill has no file {path!r}.{self._missing_file_hint(path)}")

    def _missing_file_hint(self, path: str) -> str:
        paths = [file.path for file in self.files()]
        return did_you_mean(path, paths) or f" Its files are: {', '.join(paths) or 'none'}."


def _walk_files(folder: int, inside: str, depth: int) -> Iterator[BundledFile]:
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
            with suppress(OSError):  # removed meanwhile
                yield BundledFile(path=path, size=entry.stat(follow_symlinks=False).st_size)
        elif depth and entry.is_dir(follow_symlinks=False):
            with suppress(OSError):  # removed meanwhile, or replaced by a link
                inner = os.open(entry.name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
                try:
                    yield from _walk_files(inner, f"{path}/", depth - 1)
                finally:
                    os.close(inner)


def split_skill_path(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith(("/", "~")) or ".." in parts:
        raise PermissionDenied(
            f"{path!r} leads out of the skill's folder. Use a path inside it, such as 'references/guide.md'."
        )
    if any(part.startswith(".") for part in parts):
        raise PermissionDenied(f"{path!r} is hidden: it is not part of the skill.")
    if not parts or not is_encodable(path):
        raise Retry(f"{path!r} names no file. Use a path inside the skill's folder, such as 'references/guide.md'.")
    return parts


def build_script_command(folder: SkillFolder, path: str, arguments: Sequence[str]) -> list[str]:
    """Return the program and its arguments that run a script of the skill."""
    parts = split_skill_path(path)
    if parts[0] != SCRIPTS_FOLDER or len(parts) == 1:
        scripts = [file.path for file in folder.files() if file.path.startswith(f"{SCRIPTS_FOLDER}/")]
        raise Retry(
            f"{path!r} is not a script: only files in {SCRIPTS_FOLDER}/ can be run. "
            f"They are: {', '.join(scripts) or 'none'}."
        )
    with folder.open(path) as file:
        first_line = file.readline(256)
    script = str(folder.path.joinpath(*parts))
    return [*_choose_interpreter(script, first_line), script, *arguments]


def _choose_interpreter(script: str, first_line: bytes) -> list[str]:
    """Return the command before the script's path; empty for a script that the system can run directly."""
    suffix = script.rpartition(".")[2].lower()
    if suffix == "py":
        return [sys.executable]
    if suffix == "sh":
        # Skills often lose their executable bits, and scripts written for bash fail in other shells.
        return ["bash" if b"bash" in first_line and shutil.which("bash") else "sh"]
    if not first_line.startswith(b"#!"):
        raise ExecutionFailed(
            f"{script!r} cannot be run: its interpreter is unknown. Name it .py or .sh, or begin it with a line such "
            "as '#!/usr/bin/env node'."
        )
    if not access(script, X_OK):
        raise ExecutionFailed(f"{script!r} is not executable. Run: chmod +x {script}")
    return []
