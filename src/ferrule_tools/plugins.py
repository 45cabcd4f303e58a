"""The bundled tools, as the entry points of the group `ferrule.tools` name them.

Each function sets up the tools of one package, which is imported only then. All tools are always listed: one that
cannot be used yet says what it needs, and is not shown to models.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ferrule.core.spec import Tool
from ferrule.engine.plugins import ToolSetup

if TYPE_CHECKING:
    from ferrule_tools.files import Workspace

NO_WORKSPACE: Final = 'a folder to work in: set [tools] workspace = "." in ferrule.toml'


def files(setup: ToolSetup) -> list[Tool]:
    """`file_processor`, `list_workspace_files` and `search_files`."""
    from ferrule_tools.files import workspace_tools

    return _with_workspace(setup, workspace_tools(_make_workspace(setup)))


def data_analyzer(setup: ToolSetup) -> list[Tool]:
    from ferrule_tools.data import DataAnalyzerConfig, data_analyzer_tools

    config = setup.config("data_analyzer", DataAnalyzerConfig)
    return _with_workspace(setup, data_analyzer_tools(config, root=_make_workspace(setup)))


def database_query(setup: ToolSetup) -> list[Tool]:
    from ferrule_tools.database import DatabaseQueryConfig, database_query_tools

    config = setup.config("database_query", DatabaseQueryConfig)
    return database_query_tools(config, root=setup.root, environ=setup.environ)


def search_web(setup: ToolSetup) -> list[Tool]:
    """`search_web` and `advanced_web_search`."""
    from ferrule_tools.web.search_results import SearchConfig
    from ferrule_tools.web.search_web import search_tools

    config = setup.config("search_web", SearchConfig)
    return search_tools(config, guard=setup.engine.address_guard, environ=setup.environ)


def web_scraper(setup: ToolSetup) -> list[Tool]:
    from ferrule_tools.web.web_scraper import ScraperConfig, scraper_tools

    return scraper_tools(setup.config("web_scraper", ScraperConfig), guard=setup.engine.address_guard)


def api_caller(setup: ToolSetup) -> list[Tool]:
    from ferrule_tools.web.api_caller import ApiCallerConfig, api_tools

    config = setup.config("api_caller", ApiCallerConfig)
    return api_tools(config, guard=setup.engine.address_guard, environ=setup.environ)


def browser_navigator(setup: ToolSetup) -> list[Tool]:
    from ferrule_tools.browser import BrowserConfig, browser_tools

    config = setup.config("browser_navigator", BrowserConfig)
    return browser_tools(config, guard=setup.engine.address_guard, environ=setup.environ)


def python_executor(setup: ToolSetup) -> list[Tool]:
    from ferrule_tools.python import PythonExecutorConfig, python_executor_tools

    setup.engine.load_plugins()  # its scripts may call any tool
    return python_executor_tools(setup.config("python_executor", PythonExecutorConfig), engine=setup.engine)


def notify(setup: ToolSetup) -> list[Tool]:
    from ferrule_tools.notify import NotifyConfig, notify_tools

    config = setup.config("notify", NotifyConfig)
    return notify_tools(config, root=setup.root, guard=setup.engine.address_guard, environ=setup.environ)


def models(setup: ToolSetup) -> list[Tool]:
    """`ask_model` and `summarize`."""
    from ferrule_tools.ai import AskModelConfig, SummarizeConfig, ai_tools

    ask_model = setup.config("ask_model", AskModelConfig)
    if ask_model.model is None:
        ask_model = replace(ask_model, model=setup.default_model)
    return ai_tools(ask_model, setup.config("summarize", SummarizeConfig), environ=setup.environ)


def _workspace_of(setup: ToolSetup) -> Path:
    return setup.root / (setup.workspace or "")


def _with_workspace(setup: ToolSetup, tools: list[Tool]) -> list[Tool]:
    if setup.workspace is None:
        return [replace(tool, needs=NO_WORKSPACE) for tool in tools]
    if not _workspace_of(setup).is_dir():
        needs = (
            f"the folder {setup.workspace!r}, which is the [tools] workspace of ferrule.toml and does not exist. "
            "Make it"
        )
        return [replace(tool, needs=needs) for tool in tools]
    return tools


def _make_workspace(setup: ToolSetup) -> Workspace:
    """The workspace, from which the project's own files and its store are kept out."""
    from ferrule_tools.files import PROTECTED, SECRET, Workspace

    protected = PROTECTED if setup.protected_paths is None else setup.protected_paths
    secret = SECRET if setup.secret_paths is None else setup.secret_paths
    return Workspace.at(_workspace_of(setup), protected, secret).with_paths(
        secret=[setup.root / path for path in setup.secret], protected=[setup.root / path for path in setup.protected]
    )
