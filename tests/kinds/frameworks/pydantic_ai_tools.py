"""pydantic-ai tools, in a module that worker processes can import."""

import os
from datetime import date
from typing import Any

from pydantic_ai import (
    AbstractToolset,
    BinaryContent,
    FunctionToolset,
    ModelRetry,
    RunContext,
    Tool,
    ToolDefinition,
    ToolReturn,
)
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from ferrule.adapters.pydantic_ai import tools_of_toolset
from tests.kinds.frameworks.endless import wait_without_end

__all__ = ["tools_of_toolset"]

toolset: FunctionToolset[Any] = FunctionToolset(timeout=120, metadata={"team": "calendar"})


@toolset.tool_plain
def weekday(day: date, long: bool = True) -> dict[str, Any]:
    """Say which day of the week it is.

    Args:
        day: the day in question
    """
    return {"name": day.strftime("%A" if long else "%a"), "pid": os.getpid()}


@toolset.tool_plain(timeout=600)
def never_end(path: str) -> None:
    """Never end."""
    wait_without_end(path)


@toolset.tool
async def who(ctx: RunContext[Any], greeting: str) -> str:
    """Greet whoever the agent works for."""
    return f"{greeting}, {ctx.deps}! ({ctx.tool_name}, {ctx.tool_call_id})"


@toolset.tool_plain
async def ask_again(number: int) -> int:
    """Want a positive number."""
    if number < 0:
        raise ModelRetry("give a number above 0")
    if number == 0:
        raise ToolFailed("0 will never do")
    return number


@toolset.tool_plain
async def drawn() -> ToolReturn[Any]:
    """Draw something."""
    picture = BinaryContent(b"hi", media_type="image/png")
    return ToolReturn(["here", picture], metadata={"strokes": 3})


def only_even(ctx: RunContext[Any], number: int) -> None:
    if number % 2:
        raise ModelRetry(f"{number} is odd")


async def half(number: int) -> float:
    """Halve an even number."""
    return number / 2


halving = Tool(half, args_validator=only_even)


async def remove(path: str) -> str:
    """Remove a file."""
    raise AssertionError("nobody has approved this")


removing = Tool(remove, requires_approval=True)


class Remote(AbstractToolset[Any]):
    """A toolset that must be entered to be of use."""

    def __init__(self) -> None:
        self.life: list[str] = []

    @property
    def id(self) -> str | None:
        return None

    async def __aenter__(self) -> "Remote":
        self.life.append("entered")
        return self

    async def __aexit__(self, *args: Any) -> None:
        self.life.append("left")

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        told = ToolDefinition(name="echo", description=f"Echo for {ctx.deps}.", parameters_json_schema=schema)
        anything = SchemaValidator(core_schema.any_schema())
        return {"echo": ToolsetTool(toolset=self, tool_def=told, max_retries=1, args_validator=anything)}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: Any) -> Any:
        return f"{tool_args['text']} from {ctx.deps}"
