"""The page of the tools in the box is written from the tools."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/bundled-tools.md").read_text(encoding="utf-8")


@pytest.mark.integration
def test_the_page_of_the_tools_is_true():
    subprocess.run([sys.executable, "scripts/tools_page.py", "--check"], cwd=ROOT, check=True)


def test_every_tool_has_its_parameters_and_an_example():
    assert "$ ferrule call get_time timezone=Tokyo" in PAGE
    assert "| `expression` | string | required |" in PAGE and "Other names: `calculate`." in PAGE
    assert "#### file_processor__delete" in PAGE and "### browser_navigator" in PAGE
