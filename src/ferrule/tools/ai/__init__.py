"""Models as tools: `library.register(*ai_tools())`."""

from ferrule.tools.ai.box import ai_tools
from ferrule.tools.ai.config import AskModelConfig, SummarizeConfig

__all__ = ["AskModelConfig", "SummarizeConfig", "ai_tools"]
