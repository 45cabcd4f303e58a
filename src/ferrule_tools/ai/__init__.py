"""Models as tools: `library.register(*ai_tools())`."""

from ferrule_tools.ai.ask_model import AskModelConfig, ai_tools
from ferrule_tools.ai.summarize import SummarizeConfig

__all__ = ["AskModelConfig", "SummarizeConfig", "ai_tools"]
