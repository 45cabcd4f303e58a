"""Reconnecting, closing, changing and calling, all at once."""

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path

import pytest

from ferrule import ToolEngine
from ferrule.errors import CallError
from ferrule.kinds.mcp.listing import ServerListing
from tests.kinds.mcp.mcp_servers import engine_for, executor_for, program, rough, tool
from tests.kinds.mcp.test_faults import numbers_in
from tests.support.waiting import is_running, until

pytestmark = pytest.mark.integration

SETSID = """
import json, subprocess, sys, time
from pathlib import Path
child = "import os, sys, time; os.setsid(); open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child, sys.argv[1]])
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)  # until the child has written its number
"""


async def test_what_a_retired_server_lists_is_not_taken_for_what_its_successor_does(tmp_path):
    seen: list[ServerListing] = []
    async with executor_for(on_listing=lambda tool_id, listing: seen.append(listing)) as executor:
        old = executor._client(tool(rough()))
        session = await old.connect()
        old._idle.clear()  # a call is still in flight there
        await executor.connect(tool(rough("--tools", 1)))
        await session._options.on_listing(session.listing)
        old._idle.set()
    assert [len(listing.capabilities) for listing in seen] == [14, 15]


async def test_many_callers_of_a_server_that_keeps_dying_start_one_at_a_time(tmp_path):
    log = tmp_path / "log"
    async with engine_for(rough("--log", log)) as engine:
        calls = [engine.execute("server", {"x": n}, action="echo") for n in range(20)]
        deaths = [engine.execute("server", {}, action="pay") for _ in range(2)]
        results = await asyncio.gather(*calls, *deaths)
    assert all(result.is_success for result in results[:20]), [r.error for r in results[:20]]
    assert log.read_text().count('"pay"') <= 2  # whatever happened to them, none was asked twice
    assert [result.metadata["outcome"] for result in results[20:]] == ["unknown"] * 2
    assert log.read_text().count('"initialize"') <= 3


@pytest.mark.parametrize("seed", range(3))
async def test_closing_in_the_middle_of_anything_leaves_nothing_running(seed, tmp_path):
    tasks_before = asyncio.all_tasks()
    choice = random.Random(seed)
    note = tmp_path / "children"
    engine: ToolEngine
    async with engine_for(rough("--child", note)) as engine:
        calls = [
            asyncio.create_task(engine.execute("server", {"x": 1}, action=choice.choice(["echo", "never", "pay"])))
            for _ in range(10)
        ]
        await asyncio.sleep(choice.random() / 10)  # any time will do: somewhere in the middle of the calls
        for call in calls[::3]:
            call.cancel()
        closing = asyncio.create_task(engine.aclose(grace=0.1))
        await asyncio.gather(*calls, return_exceptions=True)
        await closing
        await until(lambda: not any(map(is_running, numbers_in(note))))
    assert asyncio.all_tasks() - tasks_before == set()


async def test_a_call_that_comes_while_all_is_closed_leaves_no_server_behind(tmp_path):
    note = tmp_path / "children"
    server = tool(rough("--child", note))
    async with executor_for() as executor:
        await executor.connect(server)
        closing = asyncio.create_task(executor.aclose())
        await asyncio.sleep(0)
        late = asyncio.create_task(executor.connect(server))
        await closing
        with suppress(CallError):  # or it was there for a moment
            await late
    assert not any(map(is_running, numbers_in(note)))


async def test_a_caller_that_goes_away_while_its_server_starts_harms_no_other():
    async with executor_for() as executor:
        first = asyncio.create_task(executor.connect(tool(rough())))
        second = asyncio.create_task(executor.connect(tool(rough())))
        await asyncio.sleep(0)  # both wait for the server now
        first.cancel()
        assert (await second).server_name == "rough"
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_closing_ends_a_replaced_server_that_does_not_want_to_go(tmp_path):
    note = tmp_path / "children"
    async with executor_for() as executor:
        await executor.connect(tool(rough("--stubborn", "--child", note)))
        await until(lambda: len(numbers_in(note)) == 2)
        await executor.connect(tool(rough()))  # the first one is being ended, which takes its time
    assert not any(map(is_running, numbers_in(note)))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux tells who started whom")
async def test_what_a_server_gave_a_session_of_its_own_ends_with_it(tmp_path):
    note, script = tmp_path / "child", tmp_path / "server.py"
    rough_lines = (Path(__file__).parent / "raw_server.py").read_text()
    script.write_text(SETSID + "sys.argv[1:] = []\n" + rough_lines)
    async with executor_for() as executor:
        await executor.connect(tool(program(script, note)))
        assert is_running(int(note.read_text()))
    assert not is_running(int(note.read_text()))


async def test_messages_keep_their_order_when_the_server_is_slow_to_read(tmp_path):
    log = tmp_path / "log"
    async with engine_for(rough("--log", log)) as engine:
        filler = "x" * 300_000
        results = await asyncio.gather(
            *(engine.execute("server", {"n": n, "filler": filler}, action="echo") for n in range(30))
        )
    asked = [json.loads(line)["params"]["arguments"]["n"] for line in log.read_text().splitlines() if '"echo"' in line]
    assert all(result.is_success for result in results) and asked == sorted(asked)
