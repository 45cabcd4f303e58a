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
from tests.kinds.function.sample_functions import write_whole
from tests.support.waiting import is_running, time_out_after_start


def work(what: str, content: Any = None, path: str = "") -> dict[str, Any]:
    if what == "die":
        os._exit(7)
    if what == "raise":
        raise Retry("other arguments, please")
    if what == "sleep":
        write_whole(Path(path), str(os.getpid()))
        time.sleep(600)  # only the timeout ends it
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


@pytest.mark.integration
async def test_it_runs_in_another_process_which_other_functions_may_share():
    async with ToolEngine() as engine:
        engine.register(Tools())
        first, again, beside, failed = [
            await engine.execute("Tools", {"what": what}) for what in ("work", "work", "beside", "raise")
        ]
    assert first.output["pid"] not in (os.getpid(), None) and first.output == again.output
    assert first.output["size"] == 2 and beside.output["pid"] == first.output["pid"]
    assert (failed.error, failed.metadata["advice"]) == ("other arguments, please", "change_arguments")


@pytest.mark.integration
async def test_a_process_that_dies_or_times_out_fails_only_its_call(tmp_path):
    pid_file = tmp_path / "pid"
    sleep = {"what": "sleep", "path": str(pid_file)}
    async with ToolEngine() as engine:
        engine.register(Tools())
        died, after = [await engine.execute("Tools", {"what": what}) for what in ("die", "work")]
        timed_out = await time_out_after_start(
            lambda timeout: engine.execute("Tools", sleep, timeout=timeout), pid_file.exists
        )
        assert not is_running(int(pid_file.read_text()))
    assert "died" in str(died.error) and after.is_success and timed_out.error_type == "timeout"


async def test_it_works_only_inside_a_running_tool():
    with pytest.raises(SetupError, match="works only inside a tool"):
        await IsolatedFunction(work)(what="work")
