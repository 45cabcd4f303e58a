"""Engines and libraries that have tools."""

from typing import Any

from ferrule import ToolEngine, ToolEngineConfig, UnifiedToolLibrary


def engine_with(*tools: Any, config: ToolEngineConfig | None = None, **options: Any) -> ToolEngine:
    engine = ToolEngine(config, **options)
    engine.register(*tools)
    return engine


def library_with(*tools: Any, **options: Any) -> UnifiedToolLibrary:
    library = UnifiedToolLibrary(**options)
    library.register(*tools)
    return library
