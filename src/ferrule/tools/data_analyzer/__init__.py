"""Tables in the files of a workspace as a tool: `library.register(*data_analyzer_tools(root="data"))`."""

from ferrule.tools.data_analyzer.box import data_analyzer_tools
from ferrule.tools.data_analyzer.config import DataAnalyzerConfig

__all__ = ["DataAnalyzerConfig", "data_analyzer_tools"]
