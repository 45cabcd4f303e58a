"""Frameworks that are not installed."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules[{package!r}] = None
import ferrule.errors
try:
    import ferrule.adapters.{adapter}
except ferrule.errors.MissingExtra as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("openai_agents", "agents", "openai-agents"),
    ],
)
def test_an_adapter_whose_framework_is_missing_says_what_to_install(adapter, package, extra):
    code = WITHOUT.format(adapter=adapter, package=package)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f'pip install "ferrule[{extra}]"' in said


def test_a_list_of_our_own_functions_is_registered_without_any_framework():
    code = (
        "import sys, ferrule\ndef add(a: int) -> int: return a\nferrule.UnifiedToolLibrary().register([add])\n"
        "print([name for name in ('langchain_core', 'pydantic_ai', 'agents') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"
