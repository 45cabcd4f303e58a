"""Function tools of the OpenAI Agents SDK, in a module that worker processes can import."""

import asyncio
import os
from typing import Any

from agents import FunctionTool, RunContextWrapper, ToolOutputImage, ToolOutputText, function_tool
from agents.tool_context import ToolContext
from pydantic import BaseModel

from tests.kinds.frameworks.endless import wait_without_end


class Item(BaseModel):
    name: str
    price: float


@function_tool
def total(items: list[Item], times: int) -> dict[str, Any]:
    """Add up the prices of items.

    Args:
        times: how often
    """
    return {"total": sum(item.price for item in items) * times, "pid": os.getpid()}


@function_tool
def never_end(path: str) -> None:
    """Never end."""
    wait_without_end(path)


@function_tool
def on_its_own_loop(text: str) -> str:
    """Speak from an event loop."""

    async def speak() -> str:
        return f"{text} from a loop"

    return asyncio.run(speak())


@function_tool
async def who(ctx: RunContextWrapper[Any], greeting: str) -> str:
    """Greet whoever the agent works for."""
    assert isinstance(ctx, ToolContext)
    return f"{greeting}, {ctx.context}! ({ctx.tool_name}, {ctx.tool_call_id})"


@function_tool
async def fail(reason: str) -> str:
    """Fail on purpose."""
    raise ValueError(reason)


def in_my_words(ctx: RunContextWrapper[Any], error: Exception) -> str:
    return f"Sorry: {error}."


@function_tool(failure_error_function=in_my_words)
async def fail_politely(reason: str) -> str:
    """Fail on purpose."""
    raise ValueError(reason)


@function_tool(needs_approval=True)
async def remove(path: str) -> str:
    """Remove a file."""
    raise AssertionError("nobody has approved this")


@function_tool
async def drawn() -> list[Any]:
    """Draw something."""
    return [ToolOutputText(text="here"), ToolOutputImage(image_url="data:image/png;base64,aGk=")]


async def _echo(ctx: ToolContext[Any], arguments: str) -> str:
    return arguments


by_hand = FunctionTool(
    name="by_hand",
    description="Give back the arguments.",
    params_json_schema={"type": "object", "properties": {"text": {"type": "string"}}},
    on_invoke_tool=_echo,
    strict_json_schema=False,
)
