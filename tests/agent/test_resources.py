"""What tools hold for runs is put away when those end."""

import asyncio
from typing import Any

from ferrule import Agent, ToolExecutionContext, UnifiedToolLibrary
from ferrule.testing import ScriptedModel


class Desk:
    """A desk with a drawer for every run."""

    def __init__(self) -> None:
        self.drawers: set[str] = set()
        self.emptied: list[Any] = []
        self.waiting, self.gate = asyncio.Event(), asyncio.Event()

    async def use(self, wait: bool, context: ToolExecutionContext) -> str:
        """Use the drawer."""
        self.drawers.add(str(context.conversation_id))
        if wait:
            self.waiting.set()
            await self.gate.wait()
        return "used"

    async def cleanup(self, run_id: str | None = None) -> None:
        self.emptied.append(run_id)
        self.drawers = set() if run_id is None else self.drawers - {run_id}


async def test_a_tool_is_told_which_run_leaves_while_others_stay():
    desk = Desk()

    def script(wait: bool) -> list[Any]:
        return [{"name": "Desk", "arguments": {"wait": wait}}, "done"]

    async with UnifiedToolLibrary() as library:
        library.register(desk)
        long = asyncio.create_task(Agent(library, ScriptedModel(script(True))).run("Go", run_id="long"))
        await desk.waiting.wait()
        await Agent(library, ScriptedModel(script(False))).run("Go", run_id="short")
        assert desk.emptied == ["short"] and desk.drawers == {"long"}
        desk.gate.set()
        await long
        assert desk.emptied == ["short", None] and desk.drawers == set()
