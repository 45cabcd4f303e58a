"""The tools that work on one workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ferrule.executors.function.reference import OnObject
from ferrule.sources.function import tool_of
from ferrule.spec import Tool
from ferrule.tools.files.listing import list_workspace_files
from ferrule.tools.files.processor import FileProcessor
from ferrule.tools.files.search import search_files
from ferrule.tools.files.workspace import PROTECTED, Workspace
from ferrule.tools.sent_object import SentObject


def workspace_tools(path: str | Path, *, protected: Sequence[str] = PROTECTED) -> list[Tool]:
    """`list_workspace_files`, `search_files` and `file_processor` for a folder.

    `protected` are the paths in it that can be read, and not be changed.
    """
    workspace = Workspace.at(path, tuple(protected))
    processor = FileProcessor(workspace)
    return [
        tool_of(OnObject(list_workspace_files, workspace, made_from=None)),
        tool_of(OnObject(search_files, workspace, made_from=None)),
        replace(tool_of(processor), target=SentObject(processor)),
    ]
