"""A plan of ten steps in processes that are killed: where a stage begins or ends, at a step before or after its effect,
or at a random moment.

It is one process that has loaded everything and makes a child for each run it is told about.
"""

import asyncio
import functools
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferrule import UnifiedToolLibrary, tool
from ferrule.testing import ScriptedModel
from ferrule.workflow import CoordinationAgent, GraphWorkflow, PlanningAgent, SimpleWorkflow
from ferrule.workflow.graph import GraphRun
from ferrule.workflow.plan_runner import PlanRunner

STEPS = 10
STAGES: dict[str, list[tuple[Any, str]]] = {
    "simple": [
        (PlanningAgent, "decompose_task"),
        (PlanRunner, "advance"),
        (PlanRunner, "verify"),
        (CoordinationAgent, "synthesize"),
    ],
    "langgraph": [(GraphRun, name) for name in ("run_planning", "run_execution", "run_verification", "run_synthesis")],
}


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
        await asyncio.sleep(0.002)  # so that a random moment may lie between effect and result
        return f"appended {n}"

    return append


def die_at(moment: str, here: str) -> None:
    if moment == here:
        os.kill(os.getpid(), signal.SIGKILL)


def die_at_boundary(kind: str, moment: str) -> None:
    """Count where stages begin and end, and die at the one that is meant."""
    passed = 0

    def boundary() -> None:
        nonlocal passed
        passed += 1
        die_at(moment, f"boundary:{passed}")

    def watched(stage: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stage)
        async def wrapped(*args: Any, **options: Any) -> Any:
            boundary()
            result = await stage(*args, **options)
            boundary()
            return result

        return wrapped

    for owner, name in STAGES[kind]:
        setattr(owner, name, watched(getattr(owner, name)))


async def main(kind: str, url: str, effects: str, moment: str) -> None:
    if moment:
        die_at_boundary(kind, moment)
    async with UnifiedToolLibrary(store=url) as library:
        library.register(make_tool(Path(effects), moment))
        flow: Any = (SimpleWorkflow if kind == "simple" else GraphWorkflow)(
            library, ScriptedModel([plan(), "All done."])
        )
        if moment.startswith("random:"):
            delay = float(moment.partition(":")[2])
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        await flow.run("Append ten numbers", run_id="the-run")


def load_everything() -> None:
    """What children would have to load each for itself."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in STAGES:
            asyncio.run(main(kind, f"sqlite:///{folder}/{kind}.db", f"{folder}/effects", ""))
    assert threading.active_count() == 1, "children would miss the other threads"


def serve() -> None:
    """For each line: make a child that runs the plan, and say how it ended."""
    load_everything()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(main(*json.loads(line)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
