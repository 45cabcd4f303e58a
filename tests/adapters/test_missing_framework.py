"""Frameworks that are not installed."""

import subprocess
import sys

import pytest

from tests.support.processes import run_python

pytestmark = pytest.mark.integration

WITHOUT_FRAMEWORKS = """
import importlib, sys
import ferrule.errors
for package, adapter in (("langchain_core", "langchain"), ("pydantic_ai", "pydantic_ai"), ("agents", "openai_agents")):
    sys.modules[package] = None
    try:
        importlib.import_module(f"ferrule.adapters.{adapter}")
    except ferrule.errors.MissingExtra as error:
        print(error)
"""


def test_an_adapter_whose_framework_is_missing_says_what_to_install(tmp_path):
    said = run_python("-c", WITHOUT_FRAMEWORKS, cwd=tmp_path).stdout
    for extra in ("langchain", "pydantic-ai", "openai-agents"):
        assert f'pip install "ferrule[{extra}]"' in said


def test_a_list_of_our_own_functions_is_registered_without_any_framework():
    code = (
        "import sys, ferrule\ndef add(a: int) -> int: return a\nferrule.UnifiedToolLibrary().register([add])\n"
        "print([name for name in ('langchain_core', 'pydantic_ai', 'agents') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"
