"""`file_processor`: reading and changing the files of a workspace."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from ferrule.errors import ExecutionFailed, Refuse, Retry
from ferrule.sources.tool_options import tool
from ferrule.spec import ToolCategory
from ferrule.tools.files.contents import as_text, encoded, encoded_as_more, encoding_of, kind_of_content, picture_of
from ferrule.tools.files.encodings import known_encoding
from ferrule.tools.files.listing import moment_of
from ferrule.tools.files.reading import count_lines, read_passage
from ferrule.tools.files.workspace import Parts, Workspace, kind_of, shown, told
from ferrule.tools.files.writing import move, new_file

LIMIT: Final = 30.0
"""Seconds an action may take."""
_MOST_LINES: Final = 10_000
_LARGEST_COPY: Final = 1_000_000_000
_COUNTED: Final = 20_000_000
"""Bytes up to which the lines of a file are counted."""


@tool(
    name="file_processor",
    category=ToolCategory.FILE_MANAGEMENT,
    tags=["files", "read", "write", "copy", "move", "delete", "workspace", "文件", "读取", "写入"],
    timeout=LIMIT,
    # A thread could not be stopped in the middle of reading from a network that does not answer.
    isolation="process",
    max_output=400_000,
)
class FileProcessor:
    """Read, write, append to, copy, move and delete the files of the workspace. 读写和管理工作区的文件。

    Paths start at the workspace: docs/notes.txt. No action takes the place of an existing file but overwrite.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    @tool(
        read_only=True,
        idempotent=True,
        examples=[{"path": "docs/notes.txt"}, {"path": "app.log", "start_line": -50}],
    )
    def read(
        self,
        path: str,
        start_line: int = 1,
        lines: int = 1_000,
        start_column: int = 1,
        encoding: str | None = None,
    ) -> Any:
        """Read a text file, or some lines of it, or a picture. 读取文件内容。

        Args:
            path: the file path, from the workspace down
            start_line: the first line to read; -20 begins twenty lines before the end
            lines: how many lines to read at most
            start_column: where to begin in the first line, if lines are very long
            encoding: such as utf-8 or gb18030; left out, it is found out
        """
        parts = self._workspace.file_parts(path)
        with self._workspace.open_file(parts) as opened, open(opened, "rb", closefd=False) as file:
            kind, size = kind_of_content(file, parts), os.fstat(opened).st_size
            if encoding is None and kind.encoding is None:
                return picture_of(file, parts, kind)
            written_in = known_encoding(encoding) if encoding else str(kind.encoding)
            first = start_line or 1
            if first < 0:
                with as_text(file, written_in) as text:
                    first = max(1, count_lines(text) + 1 + first)
            with as_text(file, written_in) as text:
                try:
                    passage = read_passage(text, first, max(start_column, 1), min(max(lines, 1), _MOST_LINES))
                except Retry as error:
                    raise Retry(f"{shown(parts)!r}: {error}") from None
        said: dict[str, Any] = {
            "path": shown(parts),
            "text": passage.text,
            "encoding": written_in,
            "first_line": passage.first_line,
            "last_line": passage.last_line,
            "size": size,
        }
        if passage.goes_on_at is not None:
            line, column = passage.goes_on_at
            said["next"] = {"start_line": line, **({"start_column": column} if column > 1 else {})}
        return said

    @tool(examples=[{"path": "docs/notes.txt", "content": "Buy milk.\n"}])
    def write(self, path: str, content: str, encoding: str = "utf-8") -> dict[str, Any]:
        """Write a new file; the folders above it are made. 写入新文件。

        Args:
            path: the file path, from the workspace down; there must be no such file yet
            content: all of its text
            encoding: such as utf-8 or gb18030
        """
        parts, data = self._changeable(path), encoded(content, encoding)
        with self._workspace.folder(parts[:-1], create=True) as folder, self._new(folder, parts) as file:
            file.write(data)
        return {"path": shown(parts), "size": len(data)}

    @tool(destructive=True, idempotent=True, examples=[{"path": "docs/notes.txt", "content": "Nothing to buy.\n"}])
    def overwrite(self, path: str, content: str, encoding: str | None = None) -> dict[str, Any]:
        """Replace all that stands in a file. 覆盖已有文件的全部内容。

        Args:
            path: the file path, from the workspace down
            content: all of its new text
            encoding: such as utf-8 or gb18030; left out, that of the file as it is
        """
        parts = self._changeable(path)
        with self._workspace.folder(parts[:-1]) as folder:
            found = self._workspace.require_file(folder, parts)
            _require_one_name(found, parts)
            data = encoded(content, encoding or self._encoding_of(parts))
            # Not that it runs as its owner: the system takes that away too from a file that is written to.
            mode = stat.S_IMODE(found.st_mode) & 0o777
            with told(parts), new_file(folder, parts[-1], replaces=True, mode=mode) as file:
                file.write(data)
        return {"path": shown(parts), "size": len(data), "size_before": found.st_size}

    @tool(examples=[{"path": "log/events.txt", "content": "It rained.\n"}])
    def append(self, path: str, content: str) -> dict[str, Any]:
        """Add text to the end of a file, in its own encoding; a file that is not there is made. 追加到文件末尾。

        Args:
            path: the file path, from the workspace down
            content: the text to add, with its line end
        """
        parts = self._changeable(path)
        with self._workspace.folder(parts[:-1], create=True) as folder:
            is_there = self._workspace.exists(folder, parts)
        if not is_there:
            return self.write(path, content)
        with self._workspace.open_file(parts, os.O_RDWR | os.O_APPEND) as opened:
            found = os.fstat(opened)
            _require_one_name(found, parts)
            with told(parts), open(opened, "r+b", closefd=False) as file:
                data = encoded_as_more(content, file, parts)
                file.write(data)
        return {"path": shown(parts), "size": found.st_size + len(data)}

    @tool(examples=[{"path": "docs/notes.txt", "to": "backup/notes.txt"}])
    def copy(self, path: str, to: str) -> dict[str, Any]:
        """Copy a file. 复制文件。

        Args:
            path: the file path of the original, from the workspace down
            to: the path of the copy; there must be nothing yet
        """
        source, target = self._workspace.file_parts(path), self._changeable(to)
        with self._workspace.open_file(source) as opened, open(opened, "rb", closefd=False) as original:
            found = os.fstat(opened)
            if found.st_size > _LARGEST_COPY:
                raise Refuse(
                    f"{shown(source)!r} has {found.st_size:,} bytes: more than {_LARGEST_COPY:,} are not copied."
                )
            mode = stat.S_IMODE(found.st_mode) & 0o777
            with self._workspace.folder(target[:-1], create=True) as folder, self._new(folder, target, mode) as file:
                shutil.copyfileobj(original, file, 1 << 20)
        return {"path": shown(source), "to": shown(target), "size": found.st_size}

    @tool(examples=[{"path": "draft.txt", "to": "docs/final.txt"}])
    def move(self, path: str, to: str) -> dict[str, Any]:
        """Move or rename a file or a folder. 移动或重命名文件。

        Args:
            path: the path it has now, from the workspace down
            to: the path it shall have; there must be nothing yet
        """
        source, target = self._changeable(path), self._changeable(to)
        if target[: len(source)] == source:
            raise Retry(f"{shown(source)!r} cannot be moved to {shown(target)!r}, which is itself or lies in it.")
        with self._workspace.folder(source[:-1]) as here:
            what = kind_of(self._workspace.status(here, source).st_mode)
            if what != "folder":
                self._workspace.require_file(here, source)
            with self._workspace.folder(target[:-1], create=True) as there:
                self._refuse_existing(there, target)
                try:
                    with told(source):
                        move(source=(here, source[-1]), target=(there, target[-1]), is_folder=what == "folder")
                except FileExistsError:
                    raise _taken(target) from None
        return {"path": shown(source), "to": shown(target)}

    @tool(destructive=True, examples=[{"path": "draft.txt"}])
    def delete(self, path: str) -> dict[str, Any]:
        """Delete a file, a link or an empty folder. 删除文件。

        Args:
            path: the path of what to delete, from the workspace down
        """
        parts = self._changeable(path)
        with self._workspace.folder(parts[:-1]) as folder:
            what = kind_of(self._workspace.status(folder, parts).st_mode)
            if what == "folder":
                self._delete_folder(folder, parts)
            else:
                with told(parts):
                    os.unlink(parts[-1], dir_fd=folder)
        return {"path": shown(parts), "deleted": what}

    @tool(read_only=True, idempotent=True, examples=[{"path": "docs/notes.txt"}])
    def info(self, path: str) -> dict[str, Any]:
        """Tell what a file or folder is: size, date, encoding, lines. 查看文件信息。

        Args:
            path: its path, from the workspace down
        """
        parts = self._workspace.parts(path)
        if not parts:
            with self._workspace.folder() as folder:
                return {"path": ".", "type": "folder", "entries": len(os.listdir(folder))}
        with self._workspace.folder(parts[:-1]) as folder:
            found = self._workspace.status(folder, parts)
        said: dict[str, Any] = {"path": shown(parts), "type": kind_of(found.st_mode), "modified": moment_of(found)}
        if said["type"] == "folder":
            with self._workspace.folder(parts) as folder:
                return {**said, "entries": len(os.listdir(folder))}
        if said["type"] != "file":
            return said
        return {**said, "size": found.st_size, **self._content_of(parts)}

    # Steps

    def _changeable(self, path: str) -> Parts:
        parts = self._workspace.file_parts(path)
        self._workspace.require_changeable(parts)
        return parts

    def _refuse_existing(self, folder: int, parts: Parts) -> None:
        if self._workspace.exists(folder, parts):
            raise _taken(parts)

    @contextmanager
    def _new(self, folder: int, parts: Parts, mode: int | None = None) -> Iterator[BinaryIO]:
        """A file that must not be there yet, however late somebody else makes one."""
        self._refuse_existing(folder, parts)
        try:
            with told(parts), new_file(folder, parts[-1], mode=mode) as file:
                yield file
        except FileExistsError:
            raise _taken(parts) from None

    def _encoding_of(self, parts: Parts) -> str:
        with self._workspace.open_file(parts) as opened, open(opened, "rb", closefd=False) as file:
            return encoding_of(file, parts)

    def _delete_folder(self, folder: int, parts: Parts) -> None:
        try:
            with told(parts):
                os.rmdir(parts[-1], dir_fd=folder)
        except ExecutionFailed:
            with self._workspace.folder(parts) as inner:
                count = len(os.listdir(inner))
            if not count:
                raise
            raise Retry(
                f"{shown(parts)!r} is not empty: there is something in it ({count:,} in all). Delete that first."
            ) from None

    def _content_of(self, parts: Parts) -> dict[str, Any]:
        with self._workspace.open_file(parts) as opened, open(opened, "rb", closefd=False) as file:
            kind, found = kind_of_content(file, parts), os.fstat(opened)
            said: dict[str, Any] = {"mime_type": kind.mime_type}
            if found.st_nlink > 1:
                said["names"] = found.st_nlink
            if kind.encoding is None:
                return said
            said["encoding"] = kind.encoding
            if found.st_size <= _COUNTED:
                with as_text(file, kind.encoding) as text:
                    said["lines"] = count_lines(text)
            return said


def _taken(parts: Parts) -> Retry:
    return Retry(
        f"{shown(parts)!r} exists already. Choose another name; call overwrite to replace what stands in it, append to "
        "add to it, or delete to be rid of it."
    )


def _require_one_name(found: os.stat_result, parts: Parts) -> None:
    """What is written under one name of a file stands under the others too, and these may be anywhere."""
    if found.st_nlink > 1:
        raise Refuse(
            f"{shown(parts)!r} has {found.st_nlink} names (hard links), and the others may be outside the workspace: "
            "it is not changed. Copy it, and change the copy."
        )
