"""A run killed at any moment goes on, and every step's effect happens exactly once or is reported."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.testing import ScriptedModel
from ferrule.workflow import GraphWorkflow, SimpleWorkflow
from tests.support.processes import ROOT, PythonProcess
from tests.workflow.killed_plan import STEPS, make_tool, plan

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def nursery() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, open(os.devnull, "wb") as nothing:
        with open(theirs.detach(), "r+b", buffering=0) as streams:
            command = ("-m", "tests.workflow.killed_plan")
            process = PythonProcess(*command, cwd=ROOT, stdin=streams, stdout=streams, stderr=nothing)
        yield ours
        ours.shutdown(socket.SHUT_WR)
        process.wait(60)


def run_until_killed(nursery: socket.socket, kind: str, folder: Path, moment: str) -> int:
    folder.mkdir()
    nursery.sendall(json.dumps([kind, url_in(folder), str(folder / "effects"), moment]).encode() + b"\n")
    return int(nursery.recv(100))


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'calls.db'}"


async def kill_and_go_on(
    nursery: socket.socket, kind: str, folder: Path, moment: str, codes: tuple[int, ...] = (-9,)
) -> int:
    """Return the exit code of the process."""
    folder /= moment.replace(":", "-")
    code = run_until_killed(nursery, kind, folder, moment)
    assert code in codes
    await go_on(kind, folder)
    return code


async def go_on(kind: str, folder: Path) -> None:
    """Resume the run, and look at what happened in both its lives."""
    effects = folder / "effects"
    async with UnifiedToolLibrary(store=url_in(folder)) as library:
        library.register(make_tool(effects))
        notes = (await library.engine.store.read_entries("run:the-run")).values()
        if not notes:
            return  # killed before it had begun
        script = ["All done."] if any(e["kind"] == "plan" for e in notes) else [plan(), "All done."]
        # Where the outcome of a call is not known, what needs it is not done; the model has nothing else to try.
        flow = (SimpleWorkflow if kind == "simple" else GraphWorkflow)(library, ScriptedModel(script))
        done = await flow.resume("the-run")
    appended = effects.read_text().split() if effects.exists() else []
    assert len(appended) == len(set(appended)), "a step was done twice"
    reported = {str(r.step_id) for r in done.results if not r.success}
    assert {str(n) for n in range(1, STEPS + 1)} - set(appended) <= reported
    if not reported:
        assert done.answer == "All done." and len(done.results) == STEPS
    unknown = [r for r in done.results if r.error_type == "unknown_outcome"]
    assert all("interrupted" in (r.error or "") for r in unknown)
    assert len(unknown) <= 2, "only what was in flight is not known"


SOME_MOMENTS = ("boundary:1", "boundary:4", "before:3", "after:3", "after:6")


@pytest.mark.parametrize("kind", ["simple", "langgraph"])
async def test_killed_at_some_moments(kind, nursery, tmp_path):
    for moment in SOME_MOMENTS:
        await kill_and_go_on(nursery, kind, tmp_path, moment)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["simple", "langgraph"])
async def test_killed_where_any_stage_begins_or_ends(kind, nursery, tmp_path):
    passed, code = 0, -9
    while code == -9:
        passed += 1
        code = await kill_and_go_on(nursery, kind, tmp_path, f"boundary:{passed}", codes=(-9, 0))
    assert passed > 2 * (2 + 2 * STEPS / 2)  # steps run in pairs: two may end at once


@pytest.mark.long
@pytest.mark.parametrize("kind", ["simple", "langgraph"])
async def test_killed_at_every_step_and_at_random_moments(kind, nursery, tmp_path):
    for moment in (f"{when}:{n}" for n in range(1, STEPS + 1) for when in ("before", "after")):
        await kill_and_go_on(nursery, kind, tmp_path, moment)
    for n in range(12):
        delay = Random(f"{kind}{n}").uniform(0.0, 0.15)
        await kill_and_go_on(nursery, kind, tmp_path, f"random:{delay:.4f}", codes=(-9, 0))
