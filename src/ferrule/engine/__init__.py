"""Running calls properly."""

from ferrule.engine.config import ToolEngineConfig
from ferrule.engine.engine import ToolEngine

__all__ = ["ToolEngine", "ToolEngineConfig"]
