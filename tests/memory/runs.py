"""A browser-like tool for tests: a page with elements, found by selectors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ferrule import Retry, Tool, ToolEngine, ToolExecutionContext, Transient, tool
from ferrule.memory import RunMemory
from tests.support.engines import engine_with


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@tool(name="browser")
class Browser:
    """A page."""

    def __init__(self) -> None:
        self.pages = {"https://a.test": {"a.stars": "28"}, "https://b.test": {"a.social-count": "7"}}
        self.url = "https://a.test"
        self.executed: list[tuple[str, Any]] = []

    @tool
    async def navigate(self, url: str) -> str:
        """Go to a page."""
        self.executed.append(("navigate", url))
        self.url = url
        return f"at {url}"

    @tool(read_only=True)
    async def extract(self, selector: str, attribute: str = "text", timeout: float = 5, reason: str = "") -> str:
        """The text of an element."""
        self.executed.append(("extract", selector))
        return self._find(selector)

    @tool
    async def click(self, selector: str) -> str:
        """Click an element."""
        self.executed.append(("click", selector))
        return self._find(selector)

    @tool(read_only=True)
    async def observe(self) -> dict[str, str]:
        """What is on the page."""
        self.executed.append(("observe", None))
        return self.pages.get(self.url, {})

    def _find(self, selector: str) -> str:
        page = self.pages.get(self.url, {})
        if selector not in page:
            raise ValueError(f"Selector {selector!r} not found")
        return page[selector]


class Runner:
    """Calls tools of an engine as one run does."""

    def __init__(self, engine: ToolEngine, memory: RunMemory | None) -> None:
        self.engine = engine
        self.context = ToolExecutionContext(caller_id="run", memory=memory)

    async def __call__(self, name: str, action: str | None = None, /, **params: Any) -> Any:
        return await self.engine.execute(name, params, self.context, action=action)


@asynccontextmanager
async def open_run(*tools: Any, memory: RunMemory | None = None) -> AsyncIterator[Runner]:
    """A run with tools; its memory is empty if none is given."""
    async with engine_with(*tools) as engine:
        yield Runner(engine, RunMemory() if memory is None else memory)


__all__ = ["Browser", "Clock", "Retry", "Runner", "Tool", "Transient"]
