"""Programs as people write them: one file, without an event loop."""

import subprocess
import sys
import time
from pathlib import Path

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
    """Wait until it is allowed, then write."""
    while not os.path.exists(path + ".allowed"):
        time.sleep(0.01)
    open(path, "w").close()
    return "written"

library = UnifiedToolLibrary(store="sqlite:///calls.db")
library.register(process_id, tool_of(write_late, timeout=0.2))
own, late = as_langchain_tools(library, tools=["process_id", "write_late"])
print(own.invoke({}) != str(os.getpid()))
print(late.invoke({"path": "late.txt"}))
'''
COUNT = """
import asyncio
from ferrule import UnifiedToolLibrary

async def main():
    async with UnifiedToolLibrary(store="sqlite:///calls.db") as library:
        print(sorted((r.tool_name, r.status) for r in await library.engine.query_call_records()))

asyncio.run(main())
"""


def run(code: str, folder: Path) -> list[str]:
    (folder / "script.py").write_text(code)
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_script_without_event_loop_has_time_outs_that_kill_and_records_that_last(tmp_path):
    elsewhere, said = run(SCRIPT, tmp_path)
    assert (elsewhere, "did not finish within 0.2 s" in said) == ("True", True)
    assert run(COUNT, tmp_path) == ["[('process_id', 'success'), ('write_late', 'failed')]"]
    (tmp_path / "late.txt.allowed").touch()
    time.sleep(0.3)  # a process that still ran would write within 10 ms
    assert not (tmp_path / "late.txt").exists()
