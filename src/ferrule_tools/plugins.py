"""The bundled tools, as the entry points of the group `ferrule.tools` name them.

Each function sets up the tools of one package, which is imported only then. All tools are always listed: one that
cannot be used yet says what it needs, and is not shown to models.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ferrule.core.spec import Tool
from ferrule.engine.plugins import PluginContext

if TYPE_CHECKING:
    from ferrule_tools.files import Workspace

NO_WORKSPACE: Final = 'a folder to work in: set [tools] workspace = "." in ferrule.toml'


def files(context: PluginContext) -> list[Tool]:
    """Return `file_processor`, `list_workspace_files` and `search_files`."""
    from ferrule_tools.files import workspace_tools

    return _with_workspace(context, workspace_tools(_make_workspace(context)))


def data_analyzer(context: PluginContext) -> list[Tool]:
    from ferrule_tools.data import DataAnalyzerConfig, data_analyzer_tools

    config = context.config("data_analyzer", DataAnalyzerConfig)
    return _with_workspace(context, data_analyzer_tools(config, root=_make_workspace(context)))


def database_query(context: PluginContext) -> list[Tool]:
    from ferrule_tools.database import DatabaseQueryConfig, database_query_tools

    config = context.config("database_query", DatabaseQueryConfig)
    return database_query_tools(config, root=context.root, environ=context.environ)


def search_web(context: PluginContext) -> list[Tool]:
    """Return `search_web` and `advanced_web_search`."""
    from ferrule_tools.web.search_web import SearchConfig, search_tools

    config = context.config("search_web", SearchConfig)
    return search_tools(config, guard=context.engine.address_guard, environ=context.environ)


def web_scraper(context: PluginContext) -> list[Tool]:
    from ferrule_tools.web.web_scraper import ScraperConfig, scraper_tools

    return scraper_tools(context.config("web_scraper", ScraperConfig), guard=context.engine.address_guard)


def api_caller(context: PluginContext) -> list[Tool]:
    from ferrule_tools.web.api_caller import ApiCallerConfig, api_tools

    config = context.config("api_caller", ApiCallerConfig)
    return api_tools(config, guard=context.engine.address_guard, environ=context.environ)


def browser_navigator(context: PluginContext) -> list[Tool]:
    from ferrule_tools.browser import BrowserConfig, browser_tools

    config = context.config("browser_navigator", BrowserConfig)
    return browser_tools(config, guard=context.engine.address_guard, environ=context.environ)


def python_executor(context: PluginContext) -> list[Tool]:
    from ferrule_tools.python import PythonExecutorConfig, python_executor_tools

    context.engine.load_plugins()  # its scripts may call any tool
    return python_executor_tools(context.config("python_executor", PythonExecutorConfig), engine=context.engine)


def notify(context: PluginContext) -> list[Tool]:
    from ferrule_tools.notify import NotifyConfig, notify_tools

    config = context.config("notify", NotifyConfig)
    return notify_tools(config, root=context.root, guard=context.engine.address_guard, environ=context.environ)


def models(context: PluginContext) -> list[Tool]:
    """Return `ask_model` and `summarize`."""
    from ferrule_tools.ai import AskModelConfig, SummarizeConfig, ai_tools

    ask_model = context.config("ask_model", AskModelConfig)
    if ask_model.model is None:
        ask_model = replace(ask_model, model=context.default_model)
    return ai_tools(ask_model, context.config("summarize", SummarizeConfig), environ=context.environ)


def _workspace_of(context: PluginContext) -> Path:
    return context.root / (context.workspace or "")


def _with_workspace(context: PluginContext, tools: list[Tool]) -> list[Tool]:
    if context.workspace is None:
        return [replace(tool, needs=NO_WORKSPACE) for tool in tools]
    if not _workspace_of(context).is_dir():
        needs = (
            f"the folder {context.workspace!r}, which is the [tools] workspace of ferrule.toml and does not exist. "
            "Make it"
        )
        return [replace(tool, needs=needs) for tool in tools]
    return tools


def _make_workspace(context: PluginContext) -> Workspace:
    """Create the workspace, from which the project's own files and its store are kept out."""
    from ferrule_tools.files import PROTECTED, SECRET, Workspace

    protected = PROTECTED if context.protected_paths is None else context.protected_paths
    secret = SECRET if context.secret_paths is None else context.secret_paths
    return Workspace.at(_workspace_of(context), protected, secret).with_paths(
        secret=[context.root / path for path in context.secret],
        protected=[context.root / path for path in context.protected],
    )
