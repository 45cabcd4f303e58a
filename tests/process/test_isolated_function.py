"""Functions that a running tool runs in worker processes."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngine
from ferrule.errors import Retry, SetupError
from ferrule.kinds.function.decorator import tool
from ferrule.process.pool import IsolatedFunction
from tests.support.waiting import is_running


def work(what: str, content: Any = None, path: str = "") -> dict[str, Any]:
    if what == "die":
        os._exit(7)
    if what == "raise":
        raise Retry("other arguments, please")
    if what == "sleep":
        Path(path).write_text(str(os.getpid()))
        time.sleep(60)
    return {"pid": os.getpid(), "size": len(content or b"")}


def more_work() -> dict[str, Any]:
    return {"pid": os.getpid()}


class Tools:
    def __init__(self) -> None:
        self._isolated = IsolatedFunction(work)
        self._beside = IsolatedFunction(more_work, beside=self._isolated)

    @tool
    async def run(self, what: str, path: str = "") -> dict[str, Any]:
        """Run a function."""
        if what == "beside":
            return await self._beside()
        return await self._isolated(what=what, content=b"\x00\xff", path=path)

    async def aclose(self) -> None:
        await self._isolated.aclose()


async def test_it_runs_in_another_process_and_returns_its_result():
    async with ToolEngine() as engine:
        engine.register(Tools())
        first, again = [(await engine.execute("Tools", {"what": "work"})).output for _ in range(2)]
    assert first["pid"] not in (os.getpid(), None) and first == again and first["size"] == 2


async def test_another_function_may_run_in_the_same_process():
    async with ToolEngine() as engine:
        engine.register(Tools())
        first, second = [(await engine.execute("Tools", {"what": what})).output for what in ("work", "beside")]
    assert first["pid"] == second["pid"]


async def test_its_exception_is_raised():
    async with ToolEngine() as engine:
        engine.register(Tools())
        result = await engine.execute("Tools", {"what": "raise"})
    assert (result.error, result.metadata["advice"]) == ("other arguments, please", "change_arguments")


async def test_a_process_that_dies_fails_only_its_call():
    async with ToolEngine() as engine:
        engine.register(Tools())
        died, after = [await engine.execute("Tools", {"what": what}) for what in ("die", "work")]
    assert "died" in str(died.error) and after.is_success


async def test_a_timeout_kills_it(tmp_path):
    pid_file = tmp_path / "pid"
    async with ToolEngine() as engine:
        engine.register(Tools())
        await engine.execute("Tools", {"what": "work"})
        result = await engine.execute("Tools", {"what": "sleep", "path": str(pid_file)}, timeout=1)
        assert result.error_type == "timeout"
        assert not pid_file.exists() or not is_running(int(pid_file.read_text()))


async def test_it_works_only_inside_a_running_tool():
    with pytest.raises(SetupError, match="works only inside a tool"):
        await IsolatedFunction(work)(what="work")
