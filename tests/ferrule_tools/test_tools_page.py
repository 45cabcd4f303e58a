"""The page of the tools in the box is written from the tools."""

import pytest

from tests.support.processes import ROOT, run_python


@pytest.mark.integration
def test_the_page_of_the_tools_is_true():
    done = run_python("scripts/tools_page.py", "--check", cwd=ROOT)
    assert done.returncode == 0, done.stderr
