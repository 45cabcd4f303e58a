"""Tools for one job: each notes what it does, so that a test sees what really happened."""

import asyncio
from dataclasses import replace
from typing import Any

from ferrule import Tool, ToolEngine, ToolEngineConfig
from ferrule.kinds.function.tools import tool_of

FOREVER = 3600.0


class CallRecorder:
    """What tools did and when."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.began: list[float] = []
        self.at: dict[str, float] = {}
        self.ended: list[str] = []
        self.stopped: list[str] = []
        self.max_concurrent = 0

    def search(
        self, name: str, answer: Any = "found", *, seconds: float = 0.0, source: str = "tools", **options: Any
    ) -> Tool:
        """A tool that waits and then answers, or raises its answer if that is an exception."""

        async def search(query: str = "") -> Any:
            """Look something up."""
            self.started.append(name)
            self.began.append(asyncio.get_running_loop().time())  # virtual, in nearly all tests
            self.at[name] = self.began[-1]
            self.max_concurrent = max(self.max_concurrent, len(self.started) - len(self.ended) - len(self.stopped))
            try:
                await asyncio.sleep(seconds)  # virtual too
            except asyncio.CancelledError:
                self.stopped.append(name)
                raise
            self.ended.append(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return make_tool(search, name=name, source=source, **{"read_only": True, **options})


def make_tool(thing: Any, *, source: str = "tools", **options: Any) -> Tool:
    return replace(tool_of(thing, **options), source=source)


def engine_with(*tools: Tool, **config: Any) -> ToolEngine:
    engine = ToolEngine(ToolEngineConfig(auto_reload=False, builtin_tools=False, **config))
    engine.register(*tools)
    return engine


BEST: dict[str, Any] = {"metadata": {"strategy": "best"}, "tags": ["search"]}
"""For tools that are raced although they are search tools."""
