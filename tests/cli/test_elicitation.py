"""A server that asks something: of the person at the terminal, of a program's own function, or of nobody."""

import asyncio
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngineConfig, UnifiedToolLibrary
from ferrule.agent import AgentState, Question
from ferrule.cli.run_view import PlanTree, print_waiting
from ferrule.core.elicitation import Elicitation
from ferrule.errors import CallCancelled
from ferrule.orchestrator import OrchestratorResult
from ferrule.workflow import Plan, PlanStep, StepResult
from ferrule.workflow.results import PlanCreated
from tests.cli.test_cli import environment, ferrule
from tests.cli.test_safety import project_with, trusted
from tests.kinds.mcp.mcp_servers import SDK_SERVER

BOOKING = """
from typing import Annotated, Literal
from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel, Field

class Trip(BaseModel):
    city: str = Field(description="哪个城市？")
    days: int = Field(ge=1, le=9, default=3)
    kind: Literal["bus", "train"]
    insured: bool
    note: str | None = None

def ask() -> Elicit[Trip]:
    return Elicit("Where to?\\x1b]0;owned\\x07", Trip)

server = MCPServer("booking", log_level="ERROR")

@server.tool()
async def book(trip: Annotated[ElicitationResult[Trip], Resolve(ask)]) -> str:
    return trip.data.model_dump_json() if trip.action == "accept" else trip.action

server.run()
"""


def with_server(folder: Path, script: Path) -> Path:
    project = project_with(folder)
    entry = {"command": sys.executable, "args": [str(script)]}
    (project / "mcp.json").write_text(json.dumps({"mcpServers": {"server": entry}}))
    trusted(project)
    return project


@pytest.fixture
def booking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "booking.py").write_text(BOOKING)
    return with_server(tmp_path, tmp_path / "booking.py")


def typing(*lines: str, cwd: Path) -> str:
    """What a terminal shows of a call when these lines are typed, each after a question."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ferrule", "call", "server__book"]
    process = subprocess.Popen(command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(cwd))
    os.close(theirs)
    said, waiting, until = b"", list(lines), time.monotonic() + 120
    while time.monotonic() < until:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                said += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        elif waiting and said.endswith(b": "):
            os.write(ours, waiting.pop(0).encode())
    os.close(ours)
    process.wait(60)
    return said.decode()


def test_a_person_answers_field_by_field_until_it_is_right(booking: Path):
    said = typing("\n", "巴黎\n", "12\n", "\n", "ship\n", "TRAIN\n", "yes\n", "\n", cwd=booking)
    assert "server asks: Where to?␛]0;owned␇" in said and "哪个城市？" in said
    assert "A value is required." in said
    assert "days: must be at most 9, not 12." in said and "kind: must be one of bus, train, not 'ship'." in said
    assert '{"city":"巴黎","days":3,"kind":"train","insured":true,"note":null}' in said


@pytest.mark.parametrize(("typed", "outcome"), [("!\n", "decline"), ("\x04", "cancel")])
def test_a_person_may_decline_or_turn_away(booking: Path, typed: str, outcome: str):
    assert typing(typed, cwd=booking).rstrip().endswith(outcome)


def test_without_a_terminal_the_question_is_declined_and_shown(booking: Path):
    done = ferrule("call", "server__book", cwd=booking)
    assert (done.returncode, done.stdout) == (0, "decline\n")
    assert "'server' asks: Where to?" in done.stderr and "Run it in a terminal to answer." in done.stderr


async def test_a_program_asks_in_its_own_way_and_the_call_waits_for_people(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with_server(tmp_path, SDK_SERVER)
    questions: list[Elicitation] = []

    async def ask(question: Elicitation) -> dict[str, Any] | None:
        questions.append(question)
        if len(questions) > 1:
            raise CallCancelled("Nobody there.")
        await asyncio.sleep(3.5)
        return {"name": "Ada"}

    config = ToolEngineConfig(tools_directory="none", mcp_file=str(tmp_path / "mcp.json"))
    async with UnifiedToolLibrary(config, on_elicit=ask) as library:
        assert (await library.engine.execute("server__add", {"a": 1, "b": 1})).is_success
        slow = await library.engine.execute("server__greet", timeout=3.0)
        turned_away = await library.engine.execute("server__greet")
    assert slow.text == "Hello Ada" and turned_away.text == "cancel"
    assert questions[0].message == "Who are you?" and questions[0].tool_id == "server"


def test_what_a_run_waits_for_is_said_with_all_there_is_to_choose_from(capsys: pytest.CaptureFixture[str]):
    asked = (Question(call_id="1", text="Which?", options=("red", "blue")), Question(call_id="2", text="Who?"))
    waits = OrchestratorResult(
        question="Paint", answer="", state=AgentState.WAITING, strategy="plan", run_id="r", questions=asked
    )
    print_waiting(waits)
    said = capsys.readouterr().err
    assert "? Which?\n  - red\n  - blue\n  Answer with: ferrule ask --resume r" in said
    assert "? Who?\n  After that, answer with:" in said


def test_steps_that_were_done_before_are_shown_so(capsys: pytest.CaptureFixture[str]):
    steps = (PlanStep(id=1, description="find"), PlanStep(id=2, description="say"))
    known = StepResult(step_id=1, description="find", tool_type="none", success=True, result="found")
    PlanTree()(PlanCreated(Plan(steps=steps), (known,)))
    assert capsys.readouterr().err == "✓ 1. find → found\n  2. say\n"


def test_a_file_is_not_written_over_for_a_run_that_is_not_there(tmp_path: Path):
    (tmp_path / "runs.jsonl").write_text("precious")
    done = ferrule("runs", "export", "nope", "--output", "runs.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and "There is no run 'nope'" in done.stderr
    assert (tmp_path / "runs.jsonl").read_text() == "precious"
