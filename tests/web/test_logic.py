"""The parts of the page that need no browser are tested by Vitest, in `web/src/*.test.ts`."""

import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"


@pytest.mark.integration
def test_vitest_finds_no_mistake():
    npm = shutil.which("npm")
    if npm is None or not (WEB / "node_modules").is_dir():
        pytest.skip("the packages of the web page are not installed: make web")
    done = subprocess.run([npm, "test", "--silent"], cwd=WEB, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
