"""`ferrule batch` as a data team uses it."""

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.cli.app import app
from tests.cli.commands import RunningCommand
from tests.support.processes import forwarded_python
from tests.support.waiting import until_sync

ROOT = Path(__file__).parents[2]
TASKS = [
    {"id": "sum", "task": "what is 17 + 25?"},
    {"id": "product", "task": "what is 6 * 7?", "tools": ["calculator"], "metadata": {"subject": "arithmetic"}},
    {"id": "乘法", "task": "12 * 12 等于多少？"},
]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ferrule.toml").write_text(
        '[store]\nurl = "sqlite:///calls.db"\n[agent]\ntools = ["calculator"]\n[prices.tools]\ncalculator = 0.5\n'
    )
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task, ensure_ascii=False) + "\n" for task in TASKS))
    return tmp_path


def ferrule(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["--config", "ferrule.toml", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_a_batch_is_run_shown_exported_compared_and_reported(project):
    for out in ("a", "b"):
        output = ferrule("batch", "run", "tasks.jsonl", "--out", out, "-m", "offline")
        assert "3 of 3 tasks" in output and "All tasks are done" in output
    assert "3 of 3 tasks · 0/s" in ferrule("batch", "run", "tasks.jsonl", "--out", "a", "-m", "offline")  # all done
    assert json.loads(ferrule("batch", "summary", "a", "--json"))["states"] == {"finished": 3}
    assert "tasks: 3 (finished 3)" in ferrule("batch", "summary", "a")
    assert json.loads(ferrule("batch", "summary", "a", "--json"))["cost"] == 1.5
    statistics = json.loads(ferrule("stats", "--json"))
    assert (statistics["costs"], statistics["cost"]) == ({"calculator": 3.0}, 3.0)
    assert "cost" in ferrule("stats")
    assert "乘法" in ferrule("batch", "show", "a")
    assert "assistant: 6 * 7 = 42" in ferrule("batch", "show", "a", "product")
    assert json.loads(ferrule("batch", "show", "a", "product", "--json"))["metadata"] == {"subject": "arithmetic"}
    assert "no trajectory of the task 'x'" in ferrule("batch", "show", "a", "x", code=1)
    for form in ("openai", "atif", "sharegpt", "ferrule"):
        ferrule("batch", "export", "a", "--format", form, "-o", f"{form}.jsonl")
        assert len([json.loads(line) for line in (project / f"{form}.jsonl").read_text().splitlines()]) == 3
    assert "Did you mean 'openai'" in ferrule("batch", "export", "a", "-f", "opena", code=2)
    assert "Solved: 3 (100.0%) → 3 (100.0%)" in ferrule("batch", "compare", "a", "b")
    assert "Written: b/report.html" in ferrule("batch", "report", "b", "--compare", "a")


def test_wrong_usage_is_explained(project):
    assert "no trajectories.jsonl" in ferrule("batch", "summary", "nothing", code=2)
    assert "no place 'moon'" in ferrule("batch", "run", "tasks.jsonl", "--out", "a", "--on", "moon", code=2)
    (project / "wrong.jsonl").write_text('{"task": 1}\n')
    assert "wrong.jsonl:1" in ferrule("batch", "run", "wrong.jsonl", "--out", "a", code=2)
    (project / "text.jsonl").write_text("what is 2 + 2?\n")
    assert 'A line looks like {"id": "t1"' in ferrule("batch", "run", "text.jsonl", "--out", "a", code=2)
    (project / "empty.jsonl").write_text("")
    assert "empty.jsonl has no tasks" in ferrule("batch", "run", "empty.jsonl", "--out", "a", code=2)
    assert "Is a directory" in ferrule("batch", "run", ".", "--out", "a", code=2)
    run = ("batch", "run", "tasks.jsonl", "-m", "offline")
    assert "Did you mean 'calculator'" in ferrule(*run, "--out", "a", "--tool", "calculater", code=2)
    assert not (project / "a").exists()
    assert "cannot be used as the folder" in ferrule(*run, "--out", "tasks.jsonl", code=2)
    ferrule(*run, "--out", "a")
    for command in (("export", "a", "-o", "no/x"), ("report", "a", "-o", "no/x")):
        assert "no/x cannot be written: No such file" in ferrule("batch", *command, code=2)


def test_costs_and_budgets_are_shown(project):
    with (project / "ferrule.toml").open("a") as file:
        file.write('[[budgets]]\nname = "all"\namount = 1.0\nperiod = "total"\n')
    output = ferrule("batch", "run", "tasks.jsonl", "--out", "a", "-m", "offline", "-n", "1")
    assert "3 of 3 tasks" in output  # the third call was refused, and the offline model says so
    costs = json.loads(ferrule("costs", "--json"))
    assert costs["costs"]["calculator"]["calls"] == 2 and costs["total"]["cost"] == 1.0
    assert "total: 1 USD" in ferrule("costs", "--by", "principal")
    assert "Did you mean 'tenant'" in ferrule("costs", "--by", "tennant", code=2)
    [budget] = json.loads(ferrule("budgets", "--json"))
    assert budget["spending"][0]["spent"] == 1.0
    assert "all\tall" in ferrule("budgets")


def test_a_batch_that_stops_prints_only_json_if_that_is_asked_for(project):
    with (project / "ferrule.toml").open("a") as file:
        file.write("[prices.models.offline]\ninput = 1.0\noutput = 1.0\n")
    run = ("batch", "run", "tasks.jsonl", "-m", "offline", "--budget", "0")
    assert "Continue with: " in ferrule(*run, "--out", "a", code=9)
    assert json.loads(ferrule(*run, "--out", "b", "--json", code=9))["is_complete"] is False


@pytest.mark.integration
def test_the_first_hour_of_the_documentation_works_to_the_letter(tmp_path):
    """Every command of the page, in order, in a new folder; each must succeed."""
    page = (ROOT / "docs" / "batch.md").read_text(encoding="utf-8")
    hour = page[page.index("## The first hour") : page.index("## What a trajectory has")]
    blocks = re.findall(r"```console\n(.*?)```", hour, re.DOTALL)
    script = "set -e\n" + "".join(re.sub(r"^\$ ", "", block, flags=re.MULTILINE) for block in blocks)
    with forwarded_python() as python:
        program = f'#!/bin/sh\nexec {shlex.join(python)} -m ferrule "$@"\n'
        (tmp_path / "ferrule").write_text(program)
        (tmp_path / "ferrule").chmod(0o755)
        environ = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
        environ["XDG_STATE_HOME"] = str(tmp_path / "state")
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "refinery"
    assert len((folder / "train.jsonl").read_text().splitlines()) == 3  # the unsolvable one is not finished
    assert all(len((folder / name).read_text().splitlines()) == 4 for name in ("atif.jsonl", "sharegpt.jsonl"))
    assert "4 tasks are in both" in done.stdout and (folder / "runs/first/report.html").exists()


WAITING_TOOL = """
import asyncio
from pathlib import Path
from ferrule import tool

@tool(read_only=True)
async def find_invoice(number: int) -> str:
    \"\"\"Find an invoice by its number.\"\"\"
    while number > 2 and not Path("released").exists():
        await asyncio.sleep(0.01)  # looks again
    return f"invoice {number}"
"""


@pytest.mark.integration
def test_ctrl_c_stops_cleanly_and_says_how_to_continue(project):
    (project / "tools").mkdir()
    (project / "tools/invoices.py").write_text(WAITING_TOOL)
    (project / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n[agent]\ntools = ["find_invoice"]\n')
    tasks = [{"id": f"t{n}", "task": f"find invoice number {n}"} for n in range(1, 11)]
    (project / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    options = ["tasks.jsonl", "--out", "a", "-m", "offline", "-n", "2"]
    command = RunningCommand("-c", "ferrule.toml", "batch", "run", *options, cwd=project)
    lines = project / "a" / "trajectories.jsonl"
    until_sync(lambda: (lines.exists() and lines.stat().st_size) or command.process.poll() is not None, 120)
    command.process.send_signal(signal.SIGINT)
    until_sync(lambda: "Ctrl-C again stops now" in command.errors or command.process.poll() is not None, 120)
    (project / "released").touch()
    assert command.process.wait(120) == 130, command.errors
    assert "Continue with: ferrule" in command.errors and "--out a" in command.errors
    summary = json.loads((project / "a" / "summary.json").read_text())
    assert 0 < summary["tasks"] < 10 and summary["is_complete"] is False
    assert summary["tasks"] == len(lines.read_text().splitlines())
