"""The example programs run to their end."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ferrule.errors import SetupError
from ferrule_tools.browser.chromium import find_chromium

ROOT = Path(__file__).parents[1]


def run_example(name: str) -> str:
    command = [sys.executable, f"examples/{name}.py"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return process.stdout


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


def test_stars():
    pytest.importorskip("playwright")
    try:
        find_chromium()
    except SetupError as error:
        pytest.skip(str(error))
    assert "It has 28.4k stars." in run_example("stars")
