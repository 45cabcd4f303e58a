"""Programs as people write them: one file, without an event loop."""

import asyncio

import pytest

from ferrule import UnifiedToolLibrary
from tests.adapters.bridged_tools import is_still_working
from tests.support.processes import run_python

SCRIPT = '''
import os, time
from langchain_core.tools import tool
from ferrule import UnifiedToolLibrary
from ferrule.adapters.langchain import as_langchain_tools
from ferrule.kinds.function.tools import tool_of

@tool
def process_id() -> int:
    """Say in which process this runs."""
    return os.getpid()

@tool
def write_late(path: str) -> str:
    """Say in which process this runs, and go on forever."""
    with open(path + ".began", "w") as began:
        began.write(str(os.getpid()))
    while True:
        time.sleep(1)  # until it is killed

library = UnifiedToolLibrary(store="sqlite:///calls.db")
library.register(process_id, tool_of(write_late, timeout=0.2))
own, late = as_langchain_tools(library, tools=["process_id", "write_late"])
print(own.invoke({}) != str(os.getpid()))
print(late.invoke({"path": "late.txt"}))
'''


@pytest.mark.integration
async def test_a_script_without_event_loop_has_time_outs_that_kill_and_records_that_last(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = await asyncio.to_thread(run_python, "script.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    elsewhere, said = done.stdout.splitlines()
    assert (elsewhere, "did not finish within 0.2 s" in said) == ("True", True)
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path}/calls.db") as library:
        records = [(record.tool_name, record.status) for record in await library.engine.query_call_records()]
    assert sorted(records) == [("process_id", "success"), ("write_late", "failed")]
    assert not is_still_working(tmp_path / "late.txt")
