"""`file_processor`: reading and changing the files of a workspace."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ferrule.core.spec import Tool, ToolCategory
from ferrule.errors import ExecutionFailed, Refuse, Retry
from ferrule.kinds.function.decorator import tool
from ferrule.kinds.function.tools import tool_of
from ferrule.process.function_reference import ObjectFunction
from ferrule_tools._tool_setup import WorkerMethods
from ferrule_tools.files.content import (
    count_lines_and_words,
    encode_for_append,
    encode_text,
    normalize_encoding,
    read_content_kind,
    read_image,
    read_passage,
    require_text_encoding,
    wrap_as_text,
)
from ferrule_tools.files.path_rules import PROTECTED, SECRET, Parts
from ferrule_tools.files.search import format_modified_time, list_workspace_files, search_files
from ferrule_tools.files.workspace import (
    Workspace,
    convert_file_errors,
    display_path,
    exists_error,
    file_kind,
    move,
    open_new_file,
)

ACTION_TIMEOUT: Final = 30.0
"""Seconds an action may take."""
_MAX_LINES: Final = 10_000
_MAX_COPY: Final = 1_000_000_000
_EXISTS_ADVICE: Final = "; call overwrite to replace its content, append to add to it, or delete to remove it"
_MAX_COUNTED: Final = 20_000_000
"""Bytes up to which the lines of a file are counted."""


@tool(
    name="file_processor",
    category=ToolCategory.FILE_MANAGEMENT,
    tags=["files", "read", "write", "copy", "move", "delete", "workspace", "文件", "读取", "写入"],
    timeout=ACTION_TIMEOUT,
    # A thread could not be stopped while it reads from a network file system that does not respond.
    isolation="process",
    max_output=400_000,
)
class FileProcessor:
    """Read, write, append to, copy, move and delete the files of the workspace. 读写和管理工作区的文件。

    Paths are relative to the workspace: docs/notes.txt. Only overwrite replaces an existing file.
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
            path: the file path, relative to the workspace
            start_line: the first line to read; -20 begins twenty lines before the end
            lines: how many lines to read at most
            start_column: where to begin in the first line, if lines are very long
            encoding: such as utf-8 or gb18030; left out, it is detected
        """
        parts = self._workspace.file_parts(path)
        with self._workspace.open_file(parts) as file:
            kind, size = read_content_kind(file, parts), os.fstat(file.fileno()).st_size
            if encoding is None and kind.encoding is None:
                return read_image(file, parts, kind)
            file_encoding = normalize_encoding(encoding) if encoding else str(kind.encoding)
            first = start_line or 1
            if first < 0:
                with wrap_as_text(file, file_encoding) as text:
                    first = max(1, count_lines_and_words(text)[0] + 1 + first)
            with wrap_as_text(file, file_encoding) as text:
                try:
                    max_lines = min(max(lines, 1), _MAX_LINES)
                    passage, last, next_position = read_passage(text, first, max(start_column, 1), max_lines)
                except Retry as error:
                    raise Retry(f"{display_path(parts)!r}: {error}") from None
        output: dict[str, Any] = {
            "path": display_path(parts),
            "text": passage,
            "encoding": file_encoding,
            "first_line": first,
            "last_line": last,
            "size": size,
        }
        if next_position is not None:
            line, column = next_position
            output["next"] = {"start_line": line, **({"start_column": column} if column > 1 else {})}
        return output

    @tool(examples=[{"path": "docs/notes.txt", "content": "Buy milk.\n"}])
    def write(self, path: str, content: str, encoding: str = "utf-8") -> dict[str, Any]:
        """Write a new file; missing parent folders are created. 写入新文件。

        Args:
            path: the file path, relative to the workspace; it must not exist
            content: all of its text
            encoding: such as utf-8 or gb18030
        """
        parts, data = self._changeable_parts(path), encode_text(content, encoding)
        with self._workspace.create_file(parts, advice=_EXISTS_ADVICE) as file:
            file.write(data)
        return {"path": display_path(parts), "size": len(data)}

    @tool(destructive=True, idempotent=True, examples=[{"path": "docs/notes.txt", "content": "Nothing to buy.\n"}])
    def overwrite(self, path: str, content: str, encoding: str | None = None) -> dict[str, Any]:
        """Replace the whole content of a file. 覆盖已有文件的全部内容。

        Args:
            path: the file path, relative to the workspace
            content: all of its new text
            encoding: such as utf-8 or gb18030; left out, that of the existing file
        """
        parts = self._changeable_parts(path)
        with self._workspace.open_folder(parts[:-1]) as folder:
            status = self._workspace.require_file(folder, parts)
            _require_no_hard_links(status, parts)
            if encoding is None:
                with self._workspace.open_file(parts) as existing:
                    encoding = require_text_encoding(existing, parts)
            data = encode_text(content, encoding)
            # Without the set-uid bits, which the system removes from a file that is written to as well.
            mode = stat.S_IMODE(status.st_mode) & 0o777
            with convert_file_errors(parts), open_new_file(folder, parts[-1], replaces=True, mode=mode) as file:
                file.write(data)
        return {"path": display_path(parts), "size": len(data), "size_before": status.st_size}

    @tool(examples=[{"path": "log/events.txt", "content": "It rained.\n"}])
    def append(self, path: str, content: str, as_line: bool = False) -> dict[str, Any]:
        """Add text to the end of a file, in its encoding; a missing file is created. 追加到文件末尾。

        Args:
            path: the file path, relative to the workspace
            content: the text to add, with its line end
            as_line: begin a new line, and end it
        """
        parts = self._changeable_parts(path)
        content += "\n" if as_line and not content.endswith("\n") else ""
        with self._workspace.open_folder(parts[:-1], create=True) as folder:
            exists = self._workspace.exists(folder, parts)
        if not exists:
            return self.write(path, content)
        with convert_file_errors(parts), self._workspace.open_file(parts, appends=True) as file:
            status = os.fstat(file.fileno())
            _require_no_hard_links(status, parts)
            file.seek(max(0, status.st_size - 2))
            end = file.read().rstrip(b"\0")  # the second byte of a character in UTF-16
            content = f"\n{content}" if as_line and end and not end.endswith(b"\n") else content
            data = encode_for_append(content, file, parts)
            file.write(data)
        return {"path": display_path(parts), "size": status.st_size + len(data)}

    @tool(examples=[{"path": "docs/notes.txt", "to": "backup/notes.txt"}])
    def copy(self, path: str, to: str) -> dict[str, Any]:
        """Copy a file. 复制文件。

        Args:
            path: the file path of the original, relative to the workspace
            to: the path of the copy, which must not exist
        """
        source, target = self._workspace.file_parts(path), self._changeable_parts(to)
        with self._workspace.open_file(source) as original:
            status = os.fstat(original.fileno())
            if status.st_size > _MAX_COPY:
                raise Refuse(f"{display_path(source)!r} has {status.st_size:,} bytes: the limit is {_MAX_COPY:,}.")
            mode = stat.S_IMODE(status.st_mode) & 0o777
            with self._workspace.create_file(target, mode=mode, advice=_EXISTS_ADVICE) as file:
                shutil.copyfileobj(original, file, 1 << 20)
        return {"path": display_path(source), "to": display_path(target), "size": status.st_size}

    @tool(examples=[{"path": "draft.txt", "to": "docs/final.txt"}])
    def move(self, path: str, to: str) -> dict[str, Any]:
        """Move or rename a file or a folder. 移动或重命名文件。

        Args:
            path: the current path, relative to the workspace
            to: the new path, which must not exist
        """
        source, target = self._changeable_parts(path), self._changeable_parts(to)
        if target[: len(source)] == source:
            raise Retry(
                f"{display_path(source)!r} cannot be moved to {display_path(target)!r}, which is itself or lies in it."
            )
        with self._workspace.open_folder(source[:-1]) as source_folder:
            what = file_kind(self._workspace.status(source_folder, source).st_mode)
            if what != "folder":
                self._workspace.require_file(source_folder, source)
            with self._workspace.open_folder(target[:-1], create=True) as target_folder:
                try:
                    if self._workspace.exists(target_folder, target):
                        raise FileExistsError
                    with convert_file_errors(source):
                        move(
                            source=(source_folder, source[-1]),
                            target=(target_folder, target[-1]),
                            is_folder=what == "folder",
                        )
                except FileExistsError:
                    raise exists_error(target, _EXISTS_ADVICE) from None
        return {"path": display_path(source), "to": display_path(target)}

    @tool(destructive=True, examples=[{"path": "draft.txt"}])
    def delete(self, path: str) -> dict[str, Any]:
        """Delete a file, a link or an empty folder. 删除文件。

        Args:
            path: the path to delete, relative to the workspace
        """
        parts = self._changeable_parts(path)
        with self._workspace.open_folder(parts[:-1]) as folder:
            what = file_kind(self._workspace.status(folder, parts).st_mode)
            if what == "folder":
                self._delete_folder(folder, parts)
            else:
                with convert_file_errors(parts):
                    os.unlink(parts[-1], dir_fd=folder)
        return {"path": display_path(parts), "deleted": what}

    @tool(read_only=True, idempotent=True, examples=[{"path": "docs/notes.txt"}])
    def info(self, path: str) -> dict[str, Any]:
        """Describe a file or folder: size, date, encoding, lines, words. 查看文件信息。

        Args:
            path: its path, relative to the workspace
        """
        parts = self._workspace.parts(path)
        if not parts:
            with self._workspace.open_folder() as folder:
                return {"path": ".", "type": "folder", "entries": len(os.listdir(folder))}
        with self._workspace.open_folder(parts[:-1]) as folder:
            status = self._workspace.status(folder, parts)
        output: dict[str, Any] = {
            "path": display_path(parts),
            "type": file_kind(status.st_mode),
            "modified": format_modified_time(status),
        }
        if output["type"] == "folder":
            with self._workspace.open_folder(parts) as folder:
                return {**output, "entries": len(os.listdir(folder))}
        if output["type"] != "file":
            return output
        with self._workspace.open_file(parts) as file:
            kind, status = read_content_kind(file, parts), os.fstat(file.fileno())
            output |= {"size": status.st_size, "mime_type": kind.mime_type}
            if status.st_nlink > 1:
                output["names"] = status.st_nlink
            if kind.encoding is not None:
                output["encoding"] = kind.encoding
                if status.st_size <= _MAX_COUNTED:
                    with wrap_as_text(file, kind.encoding) as text:
                        output["lines"], output["words"] = count_lines_and_words(text)
        return output

    # Steps

    def _changeable_parts(self, path: str) -> Parts:
        parts = self._workspace.file_parts(path)
        self._workspace.require_changeable(parts)
        return parts

    def _delete_folder(self, folder: int, parts: Parts) -> None:
        try:
            with convert_file_errors(parts):
                os.rmdir(parts[-1], dir_fd=folder)
        except ExecutionFailed:
            with self._workspace.open_folder(parts) as inner:
                count = len(os.listdir(inner))
            if not count:
                raise
            raise Retry(
                f"{display_path(parts)!r} is not empty: there is something in it ({count:,} in all). Delete that first."
            ) from None


def _require_no_hard_links(status: os.stat_result, parts: Parts) -> None:
    """Refuse a file with several names: a change under one name changes the others, which may be anywhere."""
    if status.st_nlink > 1:
        raise Refuse(
            f"{display_path(parts)!r} has {status.st_nlink} names (hard links), and the others may be outside the "
            "workspace: it is not changed. Copy it, and change the copy."
        )


def workspace_tools(
    path: str | Path | Workspace, *, protected: Sequence[str] = PROTECTED, secret: Sequence[str] = SECRET
) -> list[Tool]:
    """Return `list_workspace_files`, `search_files` and `file_processor` for a folder.

    `protected` are patterns of paths in it that can be read but not changed; `secret`, of those that cannot be read
    either. A `Workspace` has its own.
    """
    workspace = path if isinstance(path, Workspace) else Workspace.at(path, protected, secret)
    processor = FileProcessor(workspace)
    return [
        tool_of(ObjectFunction(list_workspace_files, workspace, source_function=None)),
        tool_of(ObjectFunction(search_files, workspace, source_function=None)),
        replace(tool_of(processor), target=WorkerMethods(processor)),
    ]
