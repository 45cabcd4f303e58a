"""Where tools come from: Python code, other frameworks, YAML files, Python files, and folders of both."""

from ferrule.sources.box import tools_in
from ferrule.sources.config_file import ToolConfigLoader
from ferrule.sources.directory import DirectorySource
from ferrule.sources.function import tool, tool_of
from ferrule.sources.loaded import Changes, LoadReport, diff
from ferrule.sources.watch import FileWatcher

__all__ = [
    "Changes",
    "DirectorySource",
    "FileWatcher",
    "LoadReport",
    "ToolConfigLoader",
    "diff",
    "tool",
    "tool_of",
    "tools_in",
]
