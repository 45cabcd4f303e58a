"""The packages that are released: built, installed into an empty environment, and used from there."""

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import ferrule
from ferrule.cli.project import PROJECT_FILES

ROOT = Path(__file__).parents[1]
PAGE = "ferrule/web/static/index.html"
PROGRAM = """
import asyncio
from dataclasses import dataclass
from typing import Any

from ferrule import Agent, AgentAnswer, Orchestrator, Policy, Rule, RunLimits, ToolEngine, UnifiedToolLibrary, tool


@dataclass
class Price:
    amount: float


@tool(timeout=5)
def add(a: int, b: int) -> int:
    return a + b


@tool
async def multiply(a: int, b: int) -> int:
    return a * b


async def main() -> int:
    async with UnifiedToolLibrary(policy=Policy(rules=(Rule(tool="delete", verdict="ask"),))) as library:
        library.register(add, multiply)
        result = await library.execute("add", {"a": add(1, 1), "b": await multiply(1, 2)})
        output: dict[str, Any] = result.output
        records = await library.engine.store.query_call_records(tool_name="add", limit=10)
        assert [record.status for record in records] == ["success"] and output == {"result": 4}
        agent = Agent(library, "offline", limits=RunLimits(turns=5))
        answer: AgentAnswer[str] = await agent.run("What is 15% of 80?")
        typed: AgentAnswer[Price] = await agent.run("What does it cost?", output=Price)
        amounts: list[float] = [typed.output.amount] if typed.state == "finished" else []
        events = [event async for event in agent.stream("What is 2 + 2?")]
        async with Orchestrator(library, "offline") as orchestrator:
            greeting: str = (await orchestrator.process_task("Hello")).answer
        engine: ToolEngine = library.engine
        assert engine.is_open and events and greeting
        return len(answer.text) + len(amounts)


number: int = asyncio.run(main())
"""
MYPY_SETTINGS = """
[mypy]
[mypy-langchain.*,langchain_core.*,langgraph.*,openai.*,anthropic.*,agents.*,pydantic_ai.*,litellm.*,ray.*,sqlalchemy.*,mcp.*]
follow_imports = skip
"""
"""Without the types of large packages, whose check takes minutes; the program uses none of them."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the unpacked sdist: so both are complete."""
    folder = tmp_path_factory.mktemp("release")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=ROOT)
    sdist = folder / f"ferrule-{ferrule.__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=folder / sdist.name[:-7])
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment with the wheel, which finds its dependencies among those of the tests."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment, folder=ROOT)
    interpreter = environment / "bin/python"
    packages = Path(
        run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=ROOT).strip()
    )
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", interpreter]
    run(*uv, wheel, folder=ROOT)
    return interpreter


def test_the_wheel_has_both_typed_packages_and_the_page(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"ferrule/py.typed", "ferrule_tools/py.typed", "ferrule_tools/calculator.yaml"} <= names
    assert {f"ferrule/cli/project_template/{name}" for name in PROJECT_FILES} <= names
    assert (PAGE in names) == (ROOT / "src" / PAGE).exists()
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_the_command_of_the_wheel_works(python, tmp_path):
    assert run(python.parent / "ferrule", "--version", folder=tmp_path) == f"ferrule {ferrule.__version__}\n"
    location = run(python, "-c", "import ferrule; print(ferrule.__file__)", folder=tmp_path)
    assert location.startswith(str(python.parents[1]))
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n', encoding="utf-8")
    called = [python.parent / "ferrule", "--config", "ferrule.toml", "call", "calculator", "expression=2+2"]
    assert run(*called, folder=tmp_path) == "4\n"


def test_a_program_is_checked_with_the_types_of_the_wheel(python, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(MYPY_SETTINGS, encoding="utf-8")
    options = ["--strict", "--python-executable", python, "--cache-dir", tmp_path / "cache"]
    run(sys.executable, "-m", "mypy", *options, "program.py", folder=tmp_path)
    run(python, "program.py", folder=tmp_path)


def test_pyright_accepts_the_program_in_its_strict_mode_too(python, tmp_path):
    pytest.importorskip("basedpyright", reason="`make setup` installs it, with the Node that it needs")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', encoding="utf-8")
    run(sys.executable, "-m", "basedpyright", "--pythonpath", python, "program.py", folder=tmp_path)


def test_the_page_of_licences_is_true():
    run(sys.executable, "scripts/licences_page.py", "--check", folder=ROOT)
