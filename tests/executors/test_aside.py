"""Work that a running tool has done in a process of its own."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngine
from ferrule.errors import Retry, SetupError
from ferrule.executors.worker.aside import Aside
from ferrule.sources.tool_options import tool


def work(what: str, content: Any = None, path: str = "") -> dict[str, Any]:
    if what == "die":
        os._exit(7)
    if what == "raise":
        raise Retry("other arguments, please")
    if what == "late":
        time.sleep(1.5)
        Path(path).touch()
    return {"pid": os.getpid(), "size": len(content or b"")}


def more_work() -> dict[str, Any]:
    return {"pid": os.getpid()}


class Worker:
    def __init__(self) -> None:
        self._aside = Aside(work)
        self._beside = Aside(more_work, beside=self._aside)

    @tool
    async def have_done(self, what: str, path: str = "") -> dict[str, Any]:
        """Have something done."""
        if what == "beside":
            return await self._beside()
        return await self._aside(what=what, content=b"\x00\xff", path=path)

    async def aclose(self) -> None:
        await self._aside.aclose()


async def test_it_runs_in_another_process_and_gives_back_what_it_found():
    async with ToolEngine() as engine:
        engine.register(Worker())
        first, again = [(await engine.execute("Worker", {"what": "work"})).output for _ in range(2)]
    assert first["pid"] not in (os.getpid(), None) and first == again and first["size"] == 2


async def test_another_function_may_run_in_the_same_process():
    async with ToolEngine() as engine:
        engine.register(Worker())
        one, other = [(await engine.execute("Worker", {"what": what})).output for what in ("work", "beside")]
    assert one["pid"] == other["pid"]


async def test_what_it_raises_is_raised():
    async with ToolEngine() as engine:
        engine.register(Worker())
        result = await engine.execute("Worker", {"what": "raise"})
    assert (result.error, result.metadata["advice"]) == ("other arguments, please", "change_arguments")


async def test_a_process_that_dies_fails_only_its_call():
    async with ToolEngine() as engine:
        engine.register(Worker())
        died, after = [await engine.execute("Worker", {"what": what}) for what in ("die", "work")]
    assert "died" in str(died.error) and after.is_success


async def test_a_time_out_ends_it(tmp_path):
    async with ToolEngine() as engine:
        engine.register(Worker())
        await engine.execute("Worker", {"what": "work"})
        result = await engine.execute("Worker", {"what": "late", "path": str(tmp_path / "late")}, timeout=0.3)
        assert result.error_type == "timeout"
        await asyncio.sleep(1.5)
    assert not (tmp_path / "late").exists()


async def test_it_is_for_running_tools_only():
    with pytest.raises(SetupError, match="works only inside a tool"):
        await Aside(work)(what="work")
