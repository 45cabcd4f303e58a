"""Plans as a model would write them, and tools for their steps."""

import json
from typing import Any

from ferrule import tool


def plan(*steps: dict[str, Any]) -> str:
    return json.dumps({"steps": list(steps)})


def step(number: int, tool_type: str = "none", needs: list[int] | None = None, **parameters: Any) -> dict[str, Any]:
    said = {"id": number, "description": f"step {number}", "tool_type": tool_type, "dependencies": needs or []}
    return {**said, "parameters": parameters}


@tool(read_only=True)
async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool(read_only=True)
async def broken(item: str) -> str:
    """Never works."""
    raise RuntimeError("it is broken")


@tool(read_only=True)
async def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()


@tool(destructive=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return "deleted"
