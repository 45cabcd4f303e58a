"""What tools hold for runs is put away when those end."""

import asyncio
from typing import Any

import pytest

from ferrule import Agent, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.errors import ModelRefused
from ferrule.testing import ScriptedModel
from tests.agent.calls import call


class Desk:
    """A desk with a drawer for every run."""

    def __init__(self) -> None:
        self.emptied: list[Any] = []
        self.waiting, self.gate = asyncio.Event(), asyncio.Event()

    async def use(self, wait: bool, context: ToolExecutionContext) -> str:
        """Use the drawer."""
        if wait:
            self.waiting.set()
            await self.gate.wait()
        return "used"

    async def cleanup(self, run_id: str | None = None) -> None:
        self.emptied.append(run_id)


class SharedDesk(Desk):
    """A desk whose one drawer is for all runs."""

    async def cleanup(self) -> None:  # type: ignore[override]
        self.emptied.append(None)


@pytest.mark.parametrize(("desk_type", "emptied"), [(Desk, ["short"]), (SharedDesk, [])])
async def test_only_what_no_other_run_uses_is_put_away(desk_type: type[Desk], emptied: list[str]):
    desk, name = desk_type(), desk_type.__name__
    async with UnifiedToolLibrary() as library:
        library.register(desk)
        long = Agent(library, ScriptedModel([call(name, wait=True), "done"]))
        running = asyncio.create_task(long.run("Go", run_id="long"))
        await desk.waiting.wait()
        await Agent(library, ScriptedModel([call(name, wait=False), "done"])).run("Go", run_id="short")
        assert desk.emptied == emptied
        desk.gate.set()
        await running
        assert desk.emptied == [*emptied, None]


@tool(name="browser")
class Browser:
    """A browser."""

    def __init__(self) -> None:
        self.cleaned = 0

    @tool
    async def go(self, url: str) -> str:
        return "there"

    @tool(destructive=True)
    async def delete(self, url: str) -> str:
        return "gone"

    async def cleanup(self) -> None:
        self.cleaned += 1


GO = call("browser__go", url="u")
DELETE_AND_FINISH = [call("browser__delete", url="u"), call("finish_task", message="Done.")]


@pytest.mark.parametrize(
    ("script", "reply"),
    [
        ([GO, "ok"], {}),
        ([GO, ModelRefused("no")], {}),
        ([GO, call("ask_user", question="?"), "ok"], {"answer": "go on"}),
        ([DELETE_AND_FINISH], {"approvals": True}),
    ],
    ids=["answer", "failure", "question", "approval"],
)
async def test_a_run_puts_things_away_once_when_it_ends_and_not_while_it_waits(script: list[Any], reply: Any):
    browser = Browser()
    async with UnifiedToolLibrary() as library:
        library.register(browser)
        agent = Agent(library, ScriptedModel(script))
        first = await agent.run("Go")
        assert browser.cleaned == (0 if reply else 1)
        if reply:
            await agent.resume(first.run_id, **reply)
        await agent.resume(first.run_id)
        assert browser.cleaned == 1
