"""A run goes on after its process was killed: nothing lost, nothing done twice."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.agent import Agent, ApprovalPolicy
from ferrule.testing import ScriptedModel
from tests.agent.killed_run import make_tools, script

HERE = Path(__file__).parent


def killed_at(url: str, effects: Path, moment: str) -> None:
    """Run the script in a process of its own that is killed at a moment of its choosing."""
    command = [sys.executable, "-m", "tests.agent.killed_run", url, str(effects), moment]
    assert subprocess.run(command, cwd=HERE.parent.parent, check=False).returncode == -9


@pytest.mark.parametrize("moment", [f"{what}:{n}" for what in ("model", "before", "after") for n in range(1, 5)])
async def test_a_run_killed_at_any_moment_goes_on(tmp_path, moment):
    url, effects = f"sqlite:///{tmp_path / 'calls.db'}", tmp_path / "effects"
    await asyncio.to_thread(killed_at, url, effects, moment)
    before = effects.read_text().split() if effects.exists() else []
    async with UnifiedToolLibrary(store=url) as library:
        library.register(*make_tools(effects))
        agent = Agent(library, ScriptedModel(["x"]))
        (run_id,) = await agent.runs()
        history = await agent.history(run_id)
        turns = sum(message["role"] == "assistant" for message in history)
        answer = await Agent(library, ScriptedModel(script()[turns:])).resume(run_id)
        assert answer.text == "All four are written." and answer.is_finished
        assert answer.messages[: len(history)] == history or moment.startswith(("before", "after"))
        after = effects.read_text().split()
        assert after[: len(before)] == before
        interrupted = [step for step in answer.steps if "interrupted" in step.text]
        assert sorted(after) == sorted(
            {"1", "2", "3", "4"} - {str(s.arguments["n"]) for s in interrupted} | set(before)
        )
        assert len(after) == len(set(after))
        answered = [m["tool_call_id"] for m in answer.messages if m["role"] == "tool"]
        asked = [c["id"] for m in answer.messages for c in m.get("tool_calls") or ()]
        assert answered == asked


async def test_what_a_run_has_learned_is_known_after_a_restart(tmp_path):
    url, effects = f"sqlite:///{tmp_path / 'calls.db'}", tmp_path / "effects"
    fail, write = ({"name": name, "arguments": {"n": 7}} for name in ("broken", "write"))
    policy = ApprovalPolicy(tools={"write": "ask"})
    async with UnifiedToolLibrary(store=url) as library:
        library.register(*make_tools(effects))
        first = await Agent(library, ScriptedModel([fail, write]), approval=policy).run("Go")
    async with UnifiedToolLibrary(store=url) as library:
        library.register(*make_tools(effects))
        agent = Agent(library, ScriptedModel([fail, "done"]), approval=policy)
        answer = await agent.resume(first.run_id, approvals=False)
        assert [step.error_type for step in answer.steps] == ["execution_error", "permission_denied", "known_failure"]
        assert effects.read_text().split() == ["broken"]


async def test_a_history_is_plain_json(tmp_path):
    async with UnifiedToolLibrary() as library:
        library.register(*make_tools(tmp_path / "effects"))
        answer = await Agent(library, ScriptedModel([{"name": "write", "arguments": {"n": 1}}, "done"])).run("Go")
        assert json.loads(json.dumps(answer.messages)) == answer.messages
        assert json.loads(json.dumps(answer.to_dict()))["state"] == "finished"
