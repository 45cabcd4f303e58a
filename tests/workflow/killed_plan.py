"""A plan of ten steps in a process that is killed: at a step, before or after its effect, or at a random moment."""

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ferrule import UnifiedToolLibrary, tool
from ferrule.testing import ScriptedModel
from ferrule.workflow import GraphWorkflow, SimpleWorkflow

STEPS = 10


def plan() -> str:
    """A graph: pairs that need the pair before them."""
    steps = [
        {
            "id": n,
            "description": f"append {n}",
            "tool_type": "append",
            "parameters": {"n": n},
            "dependencies": [] if n <= 2 else [n - 2],
        }
        for n in range(1, STEPS + 1)
    ]
    return json.dumps({"steps": steps})


def make_tool(effects: Path, moment: str = "") -> Any:
    @tool
    async def append(n: int) -> str:
        """Append a number to a file."""
        die_at(moment, f"before:{n}")
        with effects.open("a") as file:
            file.write(f"{n}\n")
        die_at(moment, f"after:{n}")
        await asyncio.sleep(0.005)
        return f"appended {n}"

    return append


def die_at(moment: str, here: str) -> None:
    if moment == here:
        os.kill(os.getpid(), signal.SIGKILL)


async def main(kind: str, url: str, effects: str, moment: str) -> None:
    if moment.startswith("random:"):
        delay = float(moment.partition(":")[2])
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def event(seen: Any) -> None:
        counted.append(seen)
        die_at(moment, f"event:{len(counted)}")

    counted: list[Any] = []
    async with UnifiedToolLibrary(store=url) as library:
        library.register(make_tool(Path(effects), moment))
        flow: Any = (SimpleWorkflow if kind == "simple" else GraphWorkflow)(
            library, ScriptedModel([plan(), "All done."])
        )
        try:
            await flow.run("Append ten numbers", run_id="the-run", on_event=event)
        finally:
            if kind != "simple":
                await flow.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
