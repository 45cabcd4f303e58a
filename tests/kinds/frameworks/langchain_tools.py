"""LangChain tools, in a module that worker processes can import."""

import asyncio
import os
import threading
from typing import Annotated, Any

from langchain_core.tools import (
    BaseTool,
    BaseToolkit,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    tool,
)
from pydantic import BaseModel, Field

from tests.kinds.frameworks.endless import wait_without_end

LOCK = threading.Lock()
"""Cannot be copied into another process: a function that uses it must be found there by its name."""


class Item(BaseModel):
    name: str
    price: float = 1.0


@tool
def total(items: list[Item], times: Annotated[int, Field(description="how often", ge=1)] = 1) -> dict[str, Any]:
    """Add up the prices of items."""
    with LOCK:
        return {"total": sum(item.price for item in items) * times, "pid": os.getpid()}


def double(item: Item) -> dict[str, Any]:
    """Double a price."""
    return {"price": item.price * 2, "pid": os.getpid()}


doubling = StructuredTool.from_function(double, name="doubling", return_direct=True, tags=["prices"])


@tool
def never_end(path: str) -> None:
    """Never end."""
    wait_without_end(path)


@tool
async def thread_name(pause: float = 0) -> str:
    """Say in which thread this runs."""
    await asyncio.sleep(pause)  # 0, or until it is cancelled
    return threading.current_thread().name


@tool
async def refuse(reason: str) -> str:
    """Fail on purpose."""
    raise ToolException(f"no, because {reason}")


@tool(response_format="content_and_artifact")
async def look_up(word: str) -> tuple[str, dict[str, Any]]:
    """Look a word up."""
    return f"{word}: found", {"pages": [1, 2]}


@tool
async def own_call(text: str, call_id: Annotated[str, InjectedToolCallId]) -> str:
    """Say the id of the call."""
    return f"{text} {call_id}"


@tool
def of_user(text: str, user: Annotated[str, InjectedToolArg]) -> str:
    """Want something that only an agent has."""
    return text + user


@tool
async def picture() -> list[dict[str, str]]:
    """Draw."""
    return [{"type": "text", "text": "here"}, {"type": "image", "base64": "aGk=", "mime_type": "image/png"}]


old_fashioned = Tool(name="shout", description="Shout a text.", func=str.upper)


class Counter(BaseTool):
    name: str = "counter"
    description: str = "Count the calls."
    calls: int = 0

    def _run(self, step: int = 1) -> list[int]:
        self.calls += step
        return [self.calls, os.getpid()]


class Kit(BaseToolkit):
    def get_tools(self) -> list[BaseTool]:
        return [total, Counter()]
