"""A run killed at any moment goes on, and every step's effect happens exactly once or is reported."""

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.testing import ScriptedModel
from ferrule.workflow import GraphWorkflow, SimpleWorkflow
from tests.workflow.killed_plan import STEPS, make_tool, plan

MOMENTS = [
    *(f"event:{n}" for n in (1, 2, 6, 11)),
    *(f"before:{n}" for n in (1, 5, 10)),
    *(f"after:{n}" for n in (2, 7)),
    *(f"random:{Random(n).uniform(0.4, 1.6):.3f}" for n in range(4)),
]


def run_until_killed(kind: str, url: str, effects: Path, moment: str) -> int:
    command = [sys.executable, "-m", "tests.workflow.killed_plan", kind, url, str(effects), moment]
    return subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode


@pytest.mark.parametrize("kind", ["simple", "langgraph"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_every_effect_happens_once(kind, moment, tmp_path):
    url, effects = f"sqlite:///{tmp_path / 'calls.db'}", tmp_path / "effects"
    code = await asyncio.to_thread(run_until_killed, kind, url, effects, moment)
    assert code in ((-9, 0) if moment.startswith("random") else (-9,))
    async with UnifiedToolLibrary(store=url) as library:
        library.register(make_tool(effects))
        if "run:the-run" not in await library.engine.store.books("run:"):
            assert moment.startswith("random")  # killed before it had begun
            return
        script = ["All done."] if any(e["kind"] == "plan" for e in await notes(library)) else [plan(), "All done."]
        flow = (SimpleWorkflow if kind == "simple" else GraphWorkflow)(library, ScriptedModel(script))
        done = await flow.resume("the-run")
        if isinstance(flow, GraphWorkflow):
            await flow.aclose()
        appended = effects.read_text().split() if effects.exists() else []
        assert len(appended) == len(set(appended)), "a step was done twice"
        reported = {str(r.step_id) for r in done.results if not r.success}
        assert {str(n) for n in range(1, STEPS + 1)} - set(appended) <= reported
        if not reported:
            assert done.answer == "All done." and len(done.results) == STEPS
        unknown = [r for r in done.results if r.error_type == "unknown_outcome"]
        assert all("interrupted" in (r.error or "") for r in unknown)


async def notes(library: UnifiedToolLibrary) -> list[dict[str, object]]:
    return list((await library.engine.store.notes("run:the-run")).values())
