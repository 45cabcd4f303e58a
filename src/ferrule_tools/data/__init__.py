"""Tables in the files of a workspace as a tool: `library.register(*data_analyzer_tools(root="data"))`."""

from ferrule_tools.data.analyzer import data_analyzer_tools
from ferrule_tools.data.limits import DataAnalyzerConfig

__all__ = ["DataAnalyzerConfig", "data_analyzer_tools"]
