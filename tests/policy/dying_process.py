"""A process that makes a call with an approval and kills itself on the way.

The moment is in a variable, because an approval is for one version of a tool, and the values in it are part of that.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferrule import Principal, ToolExecutionContext, ToolExecutionResult, UnifiedToolLibrary, tool
from ferrule.store import ToolKnowledgeStore
from ferrule.store import store as store_module
from ferrule.store.database import StoreDatabase

VARIABLE = "MOMENT_OF_DEATH"
MOMENTS = {
    "the approval is used, but not in the database yet": False,
    "the start is written, but not in the database yet": False,
    "both are in the database": True,
    "the tool starts": True,
    "the tool has done its work": True,
    "the end is about to be recorded": True,
}
"""Whether the approval is used then."""


def kill_before(place: Any, name: str) -> None:
    setattr(place, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))


def kill_after(place: Any, name: str) -> None:
    function: Callable[..., Any] = getattr(place, name)

    def run(*arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(place, name, run)


def kill_at(moment: str) -> None:
    if os.environ.get(VARIABLE) == moment:
        os.kill(os.getpid(), signal.SIGKILL)


def make_payment(path: Path) -> Any:
    @tool(destructive=True)
    async def pay(order: str) -> str:
        """Pay for an order."""
        kill_at("the tool starts")
        with path.open("a") as file:
            file.write(f"{order}\n")
        kill_at("the tool has done its work")
        return f"paid {order}"

    return pay


async def pay(library: UnifiedToolLibrary, order: str, approval_id: str | None = None) -> ToolExecutionResult:
    context = ToolExecutionContext(principal=Principal(kind="agent", name="a"), approval_id=approval_id)
    return await library.execute_tool("pay", None, {"order": order}, context=context)


async def pay_and_die(url: str, path: str, approval_id: str) -> None:
    async with UnifiedToolLibrary(store=url) as library:
        library.register(make_payment(Path(path)))
        match os.environ[VARIABLE]:
            case "the approval is used, but not in the database yet":
                kill_before(StoreDatabase, "insert_start")
            case "the start is written, but not in the database yet":
                kill_after(StoreDatabase, "insert_start")
            case "both are in the database":
                kill_after(store_module, "use_approval")
            case "the end is about to be recorded":
                kill_before(ToolKnowledgeStore, "record_finished")
        await pay(library, "o1", approval_id)
