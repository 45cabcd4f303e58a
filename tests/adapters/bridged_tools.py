"""Tools of ours, in a module that worker processes can import."""

import os
import time
from pathlib import Path
from typing import Annotated, Any

from ferrule import Image, Text, ToolExecutionContext, tool
from ferrule.errors import Retry
from tests.support.waiting import is_running


@tool(tags=["math"], read_only=True)
async def add(a: int, b: Annotated[int, "what to add"] = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(timeout=0.5)
def write_late(path: str) -> str:
    """Wait until it is allowed, then write."""
    Path(path + ".began").write_text(str(os.getpid()))
    while not Path(path + ".allowed").exists():
        time.sleep(0.01)  # it is never allowed before it is killed
    Path(path).write_text("too late")
    return "written"


class Disk:
    """Has something to lose."""

    def __init__(self) -> None:
        self.wiped: list[str] = []

    @tool(destructive=True)
    async def wipe(self, path: str) -> str:
        """Delete everything under a path."""
        self.wiped.append(path)
        return f"wiped {path}"


def is_still_working(path: Path) -> bool:
    """Whether the process that began to write late is still there. It may have been killed before it began."""
    began = Path(f"{path}.began")
    return path.exists() or (began.exists() and is_running(int(began.read_text() or 0)))


class Diary:
    """Fails as it is told, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    async def fail(self, reason: str) -> str:
        """Fail."""
        self.calls += 1
        raise ValueError(reason)

    async def ask_again(self, text: str) -> str:
        """Want an x."""
        self.calls += 1
        if "x" not in text:
            raise Retry("put an x in it")
        return text


@tool
async def drawn() -> list[Any]:
    """Draw something."""
    return [Text(text="here"), Image(data=b"hi", mime_type="image/png")]


@tool
async def variables(context: ToolExecutionContext) -> list[str]:
    """Say what the caller brought."""
    return sorted(context.variables)


@tool(name="math.odd")
async def odd(
    number: int, self: str = "s", config: str = "c", args: str = "a", run_manager: str = "r"
) -> dict[str, Any]:
    """Take arguments with names that frameworks use themselves."""
    return {"number": number, "self": self, "config": config, "args": args, "run_manager": run_manager}
