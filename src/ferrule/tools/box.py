"""The tools in the box that need setting up: what `[tools]` in `ferrule.toml` says, and the tools it makes.

All of them are always there. One that cannot be used yet says what it needs, is shown to no model, and can be found
by whoever asks which tools there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ferrule.engine import ToolEngine
from ferrule.executors.http.header_secrets import HttpRequestConfig
from ferrule.spec import Tool
from ferrule.tools.ai import AskModelConfig, SummarizeConfig, ai_tools
from ferrule.tools.api_caller import ApiCallerConfig, api_tools
from ferrule.tools.browser.box import BrowserConfig, browser_tools
from ferrule.tools.conversation import conversation_tools
from ferrule.tools.data_analyzer import DataAnalyzerConfig, data_analyzer_tools
from ferrule.tools.database_query import DatabaseQueryConfig, database_query_tools
from ferrule.tools.files import PROTECTED, workspace_tools
from ferrule.tools.notify import NotifyConfig, notify_tools
from ferrule.tools.python_executor import PythonExecutorConfig, python_executor_tools
from ferrule.tools.search_web import SearchConfig, search_tools
from ferrule.tools.web_scraper import ScraperConfig, scraper_tools

NO_WORKSPACE: Final = 'a folder to work in: set [tools] workspace = "." in ferrule.toml'


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxConfig:
    """What the tools in the box may use."""

    workspace: str | None = None
    """The folder whose files tools may read and change."""
    http_request: HttpRequestConfig = field(default_factory=HttpRequestConfig)
    search_web: SearchConfig = field(default_factory=SearchConfig)
    web_scraper: ScraperConfig = field(default_factory=ScraperConfig)
    api_caller: ApiCallerConfig = field(default_factory=ApiCallerConfig)
    browser_navigator: BrowserConfig = field(default_factory=BrowserConfig)
    python_executor: PythonExecutorConfig = field(default_factory=PythonExecutorConfig)
    data_analyzer: DataAnalyzerConfig = field(default_factory=DataAnalyzerConfig)
    database_query: DatabaseQueryConfig = field(default_factory=DatabaseQueryConfig)
    notify: NotifyConfig = field(default_factory=NotifyConfig)
    ask_model: AskModelConfig = field(default_factory=AskModelConfig)
    summarize: SummarizeConfig = field(default_factory=SummarizeConfig)


def box_tools(
    config: BoxConfig | None = None,
    *,
    engine: ToolEngine,
    root: Path | None = None,
    protected: Sequence[str] = PROTECTED,
    environ: Mapping[str, str] = os.environ,
) -> list[Tool]:
    """All tools that can be set up, ready or not, for an engine. Relative paths start at `root`.

    `protected` are the paths that no tool may change, even in its workspace.
    """
    config, root, guard = config or BoxConfig(), root or Path(), engine.address_guard
    tools = [
        *_workspace_tools(config, root, protected),
        *search_tools(config.search_web, guard=guard, environ=environ),
        *scraper_tools(config.web_scraper, guard=guard),
        *api_tools(config.api_caller, guard=guard, environ=environ),
        *browser_tools(config.browser_navigator, guard=guard, environ=environ),
        *python_executor_tools(config.python_executor, engine=engine),
        *database_query_tools(config.database_query, root=root, environ=environ),
        *notify_tools(config.notify, root=root, guard=guard, environ=environ),
        *ai_tools(config.ask_model, config.summarize, environ=environ),
        *conversation_tools(engine.store, engine.on_elicit),
    ]
    # The providers of one tool tell themselves apart by their sources.
    return [replace(tool, source="builtin") if tool.source == "tools" else tool for tool in tools]


def _workspace_tools(config: BoxConfig, root: Path, protected: Sequence[str]) -> list[Tool]:
    folder = root / (config.workspace or "")
    within = _within(folder, root, protected)
    tools = [
        *workspace_tools(folder, protected=within),
        *data_analyzer_tools(config.data_analyzer, root=folder, protected=within),
    ]
    if config.workspace is None:
        return [replace(tool, needs=NO_WORKSPACE) for tool in tools]
    if not folder.is_dir():
        needs = (
            f"the folder {config.workspace!r}, which is the [tools] workspace of ferrule.toml and not there. Make it"
        )
        return [replace(tool, needs=needs) for tool in tools]
    return tools


def _within(folder: Path, root: Path, protected: Sequence[str]) -> list[str]:
    """The protected paths, which start at the root, as paths of the workspace; those outside it need no protection."""
    top = folder.resolve()
    found = [(root / path).resolve() for path in protected]
    return [str(path.relative_to(top)) for path in found if path.is_relative_to(top) and path != top]
