"""`data_analyzer` as a project sets it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ferrule.sources.function import tool_of
from ferrule.spec import Tool
from ferrule.tools.data_analyzer.analyzer import DataAnalyzer
from ferrule.tools.data_analyzer.config import DataAnalyzerConfig
from ferrule.tools.files.workspace import PROTECTED, Workspace
from ferrule.tools.sent_object import SentObject


def data_analyzer_tools(
    config: DataAnalyzerConfig | None = None,
    *,
    root: str | Path = ".",
    protected: Sequence[str] = PROTECTED,
) -> list[Tool]:
    """`data_analyzer` for the files of a folder, its workspace; `protected` as in `workspace_tools`."""
    config = config or DataAnalyzerConfig()
    analyzer = DataAnalyzer(Workspace.at(root, tuple(protected)), config)
    needs = "" if find_spec("duckdb") else "the package duckdb: pip install 'ferrule[data]'"
    # It stops by itself, and says what to do, before the engine ends it.
    made = tool_of(analyzer, timeout=config.timeout + 5.0)
    return [replace(made, target=SentObject(analyzer), needs=needs)]
