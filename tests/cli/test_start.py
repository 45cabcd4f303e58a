"""What commands import: a command starts quickly because it loads only what it uses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ferrule, project_with

pytestmark = pytest.mark.integration

LIST_MODULES = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
INTERFACES = ["server", "web", "cluster", "batch", "evaluation", "simulation", "adapters", "testing", "documents"]
HEAVY = ["openai", "anthropic", "litellm", "langgraph", "httpx", "mcp", "fastapi", "ray", "numpy", "opentelemetry"]
ABOVE_A_CALL = ["agent", "models", "parsing", "workflow", "orchestrator"]
RUN = "from ferrule.cli import main; main()"


def loaded_modules(program: str, *arguments: str, folder: Path) -> set[str]:
    """The modules of a new interpreter at the end of a program: not of one that the tests have prepared."""
    keys = ("_API_KEY", "_BASE_URL")
    environment = {name: value for name, value in os.environ.items() if not name.endswith(keys)}
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES + program, *arguments],
        cwd=folder,
        env={**environment, "XDG_STATE_HOME": str(folder / "state")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("program", "arguments", "unused"),
    [
        ("from ferrule import tool, ToolEngine", [], [*HEAVY, "sqlalchemy", "typer", "rich", "yaml", "ferrule.cli"]),
        (RUN, ["--help"], [*HEAVY, "sqlalchemy", "yaml", "ferrule.engine"]),
        (RUN, ["tools", "--help"], [*HEAVY, "sqlalchemy", "yaml"]),
        (RUN, ["call", "calculator", "expression=1+1"], [*HEAVY, *(f"ferrule.{name}" for name in ABOVE_A_CALL)]),
        (RUN, ["ask", "what is 15% of 80?"], [name for name in HEAVY if name != "httpx"]),
    ],
)
def test_a_command_imports_only_what_it_uses(program: str, arguments: list[str], unused: list[str], tmp_path: Path):
    modules = loaded_modules(program, *arguments, folder=tmp_path)
    assert sorted(modules.intersection([*unused, *(f"ferrule.{name}" for name in INTERFACES)])) == []


CYCLES = """\
import weakref
from ferrule import tool

class Node:
    def __init__(self) -> None:
        self.node = self

@tool(isolation="inline")
async def make_cycles() -> bool:
    first = weakref.ref(Node())
    for _ in range(20_000):
        Node()
    return first() is None
"""


def test_a_tool_that_makes_cycles_keeps_none_of_them(tmp_path: Path):
    project = project_with(tmp_path, cycles_py=CYCLES)
    assert ferrule("call", "make_cycles", cwd=project).stdout == "true\n"


@pytest.mark.parametrize(
    "arguments", [["call", "calculator", "expression=1+1"], ["ask", "what is 1 + 1?"], ["chat"], ["runs", "list"]]
)
def test_a_command_collects_garbage_as_python_does(arguments: list[str], tmp_path: Path):
    usual = "import atexit, gc; usual = gc.get_threshold(); "
    program = usual + "atexit.register(lambda: print(gc.get_threshold() == usual, file=sys.stderr)); " + RUN
    assert "True" in loaded_modules(program, *arguments, folder=tmp_path)


def test_a_call_needs_no_database(tmp_path: Path):
    modules = loaded_modules(RUN, "call", "calculator", "expression=1+1", folder=tmp_path)
    assert "sqlalchemy" not in modules
