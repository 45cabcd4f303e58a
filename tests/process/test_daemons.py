"""Processes that leave their session end with the call that started them, if the call is ended."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrule import ToolEngine, ToolEngineConfig, tool
from tests.kinds.mcp.mcp_servers import RAW_SERVER
from tests.support.waiting import is_running, time_out_after_start, until, until_sync

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows processes so"),
]

DAEMON = """
import os, sys, time
folder = sys.argv[1]
if os.fork():
    os._exit(0) if "exit" in sys.argv else time.sleep(600)
os.setsid()
if os.fork():
    os._exit(0)
with open(f"{folder}/{os.getpid()}.pid", "w"):
    pass
time.sleep(600)
"""
"""Forks twice and starts a session, as daemons do."""

LONG = "touch {folder}/$$.pid; exec sleep 600"
STARTERS = {
    "setsid": f"setsid sh -c '{LONG}' & sleep 600",
    "nohup": f"nohup setsid sh -c '{LONG}' > /dev/null 2>&1 & sleep 600",
    "orphan": f"(setsid sh -c '{LONG}' &) ; sleep 600",
    "ignores SIGTERM": "setsid sh -c 'trap \"\" TERM; touch {folder}/$$.pid; while :; do sleep 1; done' & sleep 600",
    "without environment": f"env -i setsid sh -c '{LONG}' & sleep 600",
    "daemon": "{python} {daemon} {folder} & sleep 600",
    "daemon of a parent that ends": "{python} {daemon} {folder} exit; sleep 600",
}


class Started:
    """The processes that have written their numbers into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def numbers(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.pid")]

    def running(self) -> list[int]:
        return [number for number in self.numbers() if is_running(number)]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    (tmp_path / "daemon.py").write_text(DAEMON)
    processes = Started(tmp_path)
    yield processes
    for number in processes.running():
        os.kill(number, 9)


def write_tool(started: Started, script: str) -> Path:
    folder = started.folder / "tools"
    folder.mkdir()
    line = script.format(folder=started.folder, python=sys.executable, daemon=started.folder / "daemon.py")
    command = json.dumps(["sh", "-c", line])
    (folder / "start.yaml").write_text(
        f"name: start\ndescription: Start it.\nentry:\n  type: external\n  command: {command}\n"
    )
    return folder


def config(folder: Path) -> ToolEngineConfig:
    # A busy machine may need some seconds to end all processes: until then the call is waited for.
    return ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory=str(folder), stop_timeout=60)


@pytest.mark.parametrize("starter", STARTERS)
async def test_what_a_command_starts_in_other_sessions_ends_with_it(starter, started):
    async with ToolEngine(config(write_tool(started, STARTERS[starter]))) as engine:
        assert not engine.load_errors
        call = asyncio.create_task(engine.execute("start", timeout=600))
        await until(lambda: started.numbers() or call.done())
        call.cancel()
        await asyncio.wait({call})
        assert started.numbers() and started.running() == []


async def test_what_a_command_started_in_another_session_ends_when_the_engine_is_closed(started):
    async with ToolEngine(config(write_tool(started, STARTERS["daemon"]))) as engine:
        call = asyncio.create_task(engine.execute("start", timeout=600))
        await until(lambda: started.numbers() or call.done())
        await engine.aclose(grace=0.0)
        await asyncio.wait({call})
        assert started.numbers() and started.running() == []


async def test_what_a_command_started_in_another_session_ends_at_its_timeout(started):
    async with ToolEngine(config(write_tool(started, STARTERS["daemon"]))) as engine:
        result = await time_out_after_start(lambda timeout: engine.execute("start", timeout=timeout), started.numbers)
        assert result.error_type == "timeout" and started.running() == []


async def test_a_daemon_of_a_command_that_ended_by_itself_stays(started):
    script = "{python} {daemon} {folder} exit > /dev/null 2>&1; until ls {folder}/*.pid; do sleep 0.1; done"
    async with ToolEngine(config(write_tool(started, script))) as engine:
        result = await engine.execute("start", timeout=60)
    assert result.is_success and len(started.running()) == 1


def start_daemon(script: str, folder: str) -> None:
    """Start a daemon and wait.

    Args:
        script: the program of the daemon
        folder: where it writes its number
    """
    import subprocess
    import time

    subprocess.run([sys.executable, script, folder, "exit"], check=True, env={})
    time.sleep(600)


async def test_a_daemon_of_a_worker_process_ends_with_its_call(started):
    arguments = {"script": str(started.folder / "daemon.py"), "folder": str(started.folder)}
    async with ToolEngine(config(started.folder / "none")) as engine:
        engine.register(tool(isolation="process")(start_daemon))
        call = asyncio.create_task(engine.execute("start_daemon", arguments, timeout=600))
        await until(lambda: started.numbers() or call.done())
        call.cancel()
        await asyncio.wait({call})
        assert started.numbers() and started.running() == []


async def test_a_daemon_of_an_mcp_server_ends_with_it(started, monkeypatch):
    folder = started.folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    start_daemon = [sys.executable, str(folder / "daemon.py"), str(folder), "exit"]
    server = f"import subprocess\nsubprocess.run({start_daemon}, check=True, stdin=subprocess.DEVNULL)\n"
    (folder / "server.py").write_text(server + RAW_SERVER.read_text())
    entry = {"command": sys.executable, "args": [str(folder / "server.py")]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    settings = ToolEngineConfig(builtin_tools=False, tools_directory="none", mcp_file=str(folder / "mcp.json"))
    async with ToolEngine(settings) as engine:
        await engine.wait_for_discovery()
        assert (await engine.execute("s__echo", {"x": 1})).text == '{"x": 1}'
        await until(started.running)
    until_sync(lambda: not started.running())
