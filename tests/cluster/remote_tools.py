"""Tools for a cluster, which nodes import by their module."""

import os
import sys
import time
from pathlib import Path

from ferrule import ToolExecutionContext, tool


@tool(placement="cluster", read_only=True)
def find_process() -> dict[str, object]:
    """Where this runs."""
    return {"pid": os.getpid(), "parent": os.getppid(), "node": os.environ.get("RAY_RAYLET_PID", "")}


@tool(resources={"browser": 1}, idempotent=True)
def open_page(url: str) -> dict[str, str]:
    """Open a page where a browser is."""
    return {"url": url, "node": os.environ.get("RAY_RAYLET_PID", "")}


@tool(placement="cluster")
def count_slowly(file: str, to: int, context: ToolExecutionContext) -> int:
    """Write numbers into a file, with progress."""
    print(f"counting to {to}", file=sys.stderr)
    for number in range(to):
        with Path(file).open("a") as lines:
            lines.write(f"{os.getpid()} {number}\n")
        context.progress(number / to, f"number {number}")
        time.sleep(0.05)  # long enough for a timeout in the middle
    return to


@tool(placement="cluster")
def add_on_node(a: int, b: int, context: ToolExecutionContext) -> str:
    """Add with another tool of the caller."""
    return context.call_tool_sync("add_here", {"a": a, "b": b}).text


@tool(placement="cluster")
async def fail(reason: str) -> None:
    """Raise an error."""
    raise ValueError(reason)


@tool(placement="cluster")
def end_process(file: str) -> None:
    """End the process that runs it, and note that it ran."""
    with Path(file).open("a") as lines:
        lines.write("ran\n")
    os.kill(os.getpid(), 9)


@tool(placement="cluster", idempotent=True)
def end_process_once(file: str) -> str:
    """End the process that runs it, except for the second time."""
    with Path(file).open("a") as lines:
        lines.write("ran\n")
    if len(Path(file).read_text().splitlines()) == 1:
        os.kill(os.getpid(), 9)
    return "done"


def count_for_ever(file: str) -> None:
    """Write numbers into a file until it is stopped."""
    number = 0
    while True:
        number += 1
        with Path(file).open("a") as lines:
            lines.write(f"{os.getpid()} {number}\n")
        time.sleep(0.05)  # writes a file of a reasonable size


TOOLS = [find_process, open_page, count_slowly, add_on_node, fail, end_process, end_process_once]
