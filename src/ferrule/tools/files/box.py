"""The tools that work on one workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ferrule.executors.function.reference import OnObject
from ferrule.sources.function import tool_of
from ferrule.spec import Tool
from ferrule.tools.files.listing import list_workspace_files
from ferrule.tools.files.processor import FileProcessor
from ferrule.tools.files.search import search_files
from ferrule.tools.files.workspace import PROTECTED, Workspace


def workspace_tools(path: str | Path, *, protected: Sequence[str] = PROTECTED) -> list[Tool]:
    """`list_workspace_files`, `search_files` and `file_processor` for a folder.

    `protected` are the paths in it that can be read, and not be changed.
    """
    workspace = Workspace.at(path, tuple(protected))
    processor = FileProcessor(workspace)
    return [
        tool_of(_sent_with(list_workspace_files, workspace)),
        tool_of(_sent_with(search_files, workspace)),
        replace(tool_of(processor), target=_SentObject(processor)),
    ]


class _SentObject:
    """Finds the methods of an object that a worker process gets a copy of: it keeps nothing from call to call."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._found: dict[str, Callable[..., Any]] = {}

    def function(self, action: str, /) -> Callable[..., Any]:
        if action not in self._found:
            self._found[action] = _sent_with(getattr(type(self._thing), action), self._thing)
        return self._found[action]


def _sent_with(function: Callable[..., Any], thing: Any) -> OnObject:
    return OnObject(function, thing, made_from=None)
