"""A server that asks something: of the person at the terminal, of a program's own function, or of nobody."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngineConfig, UnifiedToolLibrary
from ferrule.core.elicitation import Elicitation
from ferrule.errors import CallCancelled
from tests.cli.commands import Terminal, ferrule, project_with, trusted
from tests.kinds.mcp.mcp_servers import SDK_SERVER
from tests.support.processes import forwarded_python

pytestmark = pytest.mark.integration

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


@pytest.fixture(scope="module")
def python() -> Iterator[list[str]]:
    with forwarded_python() as command:
        yield command


def with_server(folder: Path, python: list[str], script: Path) -> Path:
    project = project_with(folder)
    entry = {"command": python[0], "args": [*python[1:], str(script)]}
    (project / "mcp.json").write_text(json.dumps({"mcpServers": {"server": entry}}))
    trusted(project)
    return project


@pytest.fixture
def booking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: list[str]) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "booking.py").write_text(BOOKING)
    return with_server(tmp_path, python, tmp_path / "booking.py")


def test_a_person_answers_field_by_field_until_it_is_right(booking: Path):
    lines = ("\n", "巴黎\n", "12\n", "\n", "ship\n", "TRAIN\n", "yes\n", "\n")
    said = Terminal("call", "server__book", cwd=booking).answer(*lines)
    assert "server asks: Where to?␛]0;owned␇" in said and "哪个城市？" in said
    assert "A value is required." in said
    assert "days: must be at most 9, not 12." in said and "kind: must be one of bus, train, not 'ship'." in said
    assert '{"city":"巴黎","days":3,"kind":"train","insured":true,"note":null}' in said


@pytest.mark.parametrize(("typed", "outcome"), [("!\n", "decline"), ("\x04", "cancel")])
def test_a_person_may_decline_or_turn_away(booking: Path, typed: str, outcome: str):
    assert Terminal("call", "server__book", cwd=booking).answer(typed).rstrip().endswith(outcome)


def test_without_a_terminal_the_question_is_declined_and_shown(booking: Path):
    done = ferrule("call", "server__book", cwd=booking)
    assert (done.returncode, done.stdout) == (0, "decline\n")
    assert "'server' asks: Where to?" in done.stderr and "Run it in a terminal to answer." in done.stderr


async def test_a_program_asks_in_its_own_way(tmp_path: Path, monkeypatch, python: list[str]):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with_server(tmp_path, python, SDK_SERVER)
    questions: list[Elicitation] = []

    async def ask(question: Elicitation) -> dict[str, Any] | None:
        questions.append(question)
        if len(questions) > 1:
            raise CallCancelled("Nobody there.")
        return {"name": "Ada"}

    config = ToolEngineConfig(tools_directory="none", mcp_file=str(tmp_path / "mcp.json"))
    async with UnifiedToolLibrary(config, on_elicit=ask) as library:
        answered = await library.engine.execute("server__greet")
        cancelled = await library.engine.execute("server__greet")
    assert answered.text == "Hello Ada" and cancelled.text == "cancel"
    assert questions[0].message == "Who are you?" and questions[0].tool_id == "server"


def test_a_file_is_not_written_over_for_a_run_that_is_not_there(tmp_path: Path):
    (tmp_path / "runs.jsonl").write_text("precious")
    done = ferrule("runs", "export", "nope", "--output", "runs.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and "There is no run 'nope'" in done.stderr
    assert (tmp_path / "runs.jsonl").read_text() == "precious"
