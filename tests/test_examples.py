"""The example programs run to their end and print what they are about."""

import asyncio
import importlib.util
import inspect
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[1]
MAX_LINES = 40

SHORT_EXAMPLES = {
    "first_tool": ["{'result': 6.5}", "weight: is required", "Did you mean 'shipping_cost'?", "3 calls, 33 %"],
    "dependencies": ["Now you have 10. Account(owner='Ann', balance=10)", "['finished', 'finished']"],
    "typed_answer": ["lamp 59.7 after 3 requests"],
    "approvals": ["Transferred 40 euros to Ann.", "Transferred 100 euros to Bob."],
    "wait_and_resume": ["waiting {'customer': 'Ann'}", "finished The account of Ann is closed."],
    "yaml_tool": ["3 notes.txt", "path: must match the pattern"],
    "mcp_server": ["{'result': 4}"],
    "fallback": ["{'result': 7.82}", "rate success", "the bank is closed today"],
    "limits": ["20 calls, at most 2 at the same time"],
    "streaming": ["call build_report", "progress page 2", "result a report of 2 pages"],
    "policy": ["5 paid 5 to Ann", "50 approval_required", "5000 permission_denied"],
}
COOKBOOK = {
    "cookbook/research": ["[search (tools)]", "[search (skills)]", "record: search failed"],
    "cookbook/database": ["approve: UPDATE", "database_query: No DROP.", "stock: 20"],
    "cookbook/batch": ["batch: {'finished': 8, 'stopped': 1}", "square-7: 7 * 7 = 49", "one tool: 100% (6/6"],
    "cookbook/gateway": [
        "support sees ['find_order']",
        "support refunds: 404",
        "ops refunds: 428",
        "refunded order 1002",
    ],
}


def run_example(name: str) -> str:
    command = [sys.executable, f"examples/{name}.py"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize(("name", "expected"), [*SHORT_EXAMPLES.items(), *COOKBOOK.items()])
def test_an_example_prints_what_it_is_about(name, expected, capsys, monkeypatch):
    """In this process: a new one for each example would take longer than the examples."""
    if name == "cookbook/gateway":
        pytest.importorskip("fastapi")
    spec = importlib.util.spec_from_file_location(f"example_{Path(name).name}", ROOT / f"examples/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    if inspect.iscoroutinefunction(module.main):
        asyncio.run(module.main())
    else:
        module.main()
    output = capsys.readouterr().out
    assert [text for text in expected if text not in output] == []


def test_there_are_eleven_short_examples():
    assert len(SHORT_EXAMPLES) == 11
    lines = {name: len((ROOT / f"examples/{name}.py").read_text().splitlines()) for name in SHORT_EXAMPLES}
    assert {name: count for name, count in lines.items() if count >= MAX_LINES} == {}


def test_tour():
    output = run_example("tour")
    assert "a second later the file is not there" in output
    assert "4 requests, 1 execution" in output


def test_questions():
    output = run_example("questions")
    assert "15% of 80 is 12.\n" in output and "Your last question was: what is 6*7" in output


@pytest.mark.skipif(not all(map(find_spec, ("agents", "langchain_core", "pydantic_ai"))), reason="needs the frameworks")
def test_adapters_agents():
    output = run_example("adapters_agents")
    assert "The file is not there" in output and output.count("failed, timeout") == 3
