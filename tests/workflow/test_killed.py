"""A run killed at any moment goes on, and every step's effect happens exactly once or is reported."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.testing import ScriptedModel
from ferrule.workflow import GraphWorkflow, SimpleWorkflow
from tests.workflow.killed_plan import STEPS, make_tool, plan

pytestmark = pytest.mark.timeout(300)
"""Each test starts dozens of processes, which takes minutes on a busy machine."""


@pytest.fixture(scope="module")
def nursery() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.workflow.killed_plan"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run_until_killed(nursery: Any, kind: str, folder: Path, moment: str) -> int:
    folder.mkdir()
    nursery.stdin.write(json.dumps([kind, url_in(folder), str(folder / "effects"), moment]) + "\n")
    nursery.stdin.flush()
    return int(nursery.stdout.readline())


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'calls.db'}"


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


@pytest.mark.parametrize("kind", ["simple", "langgraph"])
async def test_killed_where_any_stage_begins_or_ends(kind, nursery, tmp_path):
    passed, code = 0, -9
    while code == -9:
        passed += 1
        folder = tmp_path / str(passed)
        code = run_until_killed(nursery, kind, folder, f"boundary:{passed}")
        await go_on(kind, folder)
    assert code == 0 and passed > 2 * (2 + 2 * STEPS / 2)  # steps run in pairs: two may end at once


@pytest.mark.parametrize("kind", ["simple", "langgraph"])
async def test_killed_before_and_after_the_effect_of_every_step(kind, nursery, tmp_path):
    for moment in (f"{when}:{n}" for n in range(1, STEPS + 1) for when in ("before", "after")):
        folder = tmp_path / moment.replace(":", "-")
        assert run_until_killed(nursery, kind, folder, moment) == -9
        await go_on(kind, folder)


@pytest.mark.parametrize("kind", ["simple", "langgraph"])
async def test_killed_at_random_moments(kind, nursery, tmp_path):
    for n in range(12):
        folder = tmp_path / str(n)
        delay = Random(f"{kind}{n}").uniform(0.0, 0.15)
        assert run_until_killed(nursery, kind, folder, f"random:{delay:.4f}") in (-9, 0)
        await go_on(kind, folder)
