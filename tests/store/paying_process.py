"""A process that starts and resumes runs that pay; tests start it with `python -m tests.store.paying_process URL FILE`.

It reads commands from standard input and answers each with one line: `start KIND ID` starts a run or a plan that waits
for approval, `resume KIND ID` approves and continues it.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from ferrule import SetupError, UnifiedToolLibrary, tool
from ferrule.agent import Agent
from ferrule.testing import ScriptedModel
from ferrule.workflow import SimpleWorkflow
from tests.workflow.plans import plan, step


def make_payment(path: Path) -> Any:
    @tool(destructive=True)
    async def pay(order: str) -> str:
        """Pay for an order."""
        with path.open("a") as file:
            file.write(f"{order}\n")
        return f"paid {order}"

    return pay


def make_runner(library: UnifiedToolLibrary, command: str, kind: str, run_id: str) -> Agent | SimpleWorkflow:
    if kind == "agent":
        replies = [{"name": "pay", "arguments": {"order": run_id}}] if command == "start" else ["paid"]
        return Agent(library, ScriptedModel(replies))
    return SimpleWorkflow(library, ScriptedModel([plan(step(1, "pay", order=run_id)), "paid"]))


async def obey(library: UnifiedToolLibrary, command: str, kind: str, run_id: str) -> str:
    runner = make_runner(library, command, kind, run_id)
    try:
        if command == "start":
            return (await runner.run("Pay for it", run_id=run_id)).state.value
        return (await runner.resume(run_id, approvals=True)).state.value
    except SetupError as error:
        return f"refused: {error}"


async def main(url: str, path: str) -> None:
    async with UnifiedToolLibrary(store=url) as library:
        library.register(make_payment(Path(path)))
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await obey(library, *line.split()), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
