"""The tools that work on one workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ferrule.core.spec import Tool
from ferrule.kinds.function.tools import tool_of
from ferrule.process.function_reference import ObjectFunction
from ferrule_tools._worker_methods import WorkerMethods
from ferrule_tools.files.listing import list_workspace_files
from ferrule_tools.files.path_rules import PROTECTED, SECRET
from ferrule_tools.files.processor import FileProcessor
from ferrule_tools.files.search import search_files
from ferrule_tools.files.workspace import Workspace


def workspace_tools(
    path: str | Path | Workspace, *, protected: Sequence[str] = PROTECTED, secret: Sequence[str] = SECRET
) -> list[Tool]:
    """`list_workspace_files`, `search_files` and `file_processor` for a folder.

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
