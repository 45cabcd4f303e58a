"""Ending sessions of processes."""

import asyncio
import os
from pathlib import Path

import pytest

from ferrule.process import groups


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux lists the processes of a session")
async def test_a_process_that_is_started_during_the_search_is_ended_too(monkeypatch: pytest.MonkeyPatch):
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "sleep 600 > /dev/null & echo $!", stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    child = (await process.stdout.readline()).decode().strip()
    await process.wait()
    list_directory, searches = os.listdir, []

    def listdir(path: str) -> list[str]:
        searches.append(path)
        return [name for name in list_directory(path) if len(searches) > 1 or name != child]

    monkeypatch.setattr(os, "listdir", listdir)
    await groups.end_process_group(process.pid)
    monkeypatch.undo()
    assert groups.find_running_groups(process.pid) == set()
