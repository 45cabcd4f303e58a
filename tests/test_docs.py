"""Every Python block of the manual runs, and every configuration in it is read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.config import FerruleConfig
from tests.code_blocks import python_blocks, run_block

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONFIGURED = [page for page in PAGES if "```toml" in page.read_text(encoding="utf-8")]
BLOCKS = [(page.name, index) for page in PAGES for index in range(len(python_blocks(page)))]


@pytest.mark.parametrize(("page", "index"), BLOCKS)
def test_a_block_of_the_manual_runs(page, index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = next(p for p in PAGES if p.name == page)
    run_block(python_blocks(path)[index], name=f"{page}_{index}")


@pytest.mark.parametrize("page", CONFIGURED, ids=lambda page: page.name)
def test_every_configuration_in_the_manual_is_read(page, tmp_path):
    for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        (tmp_path / "ferrule.toml").write_text(block, encoding="utf-8")
        assert FerruleConfig.read(tmp_path / "ferrule.toml", environ={}).path is not None


def test_the_page_of_the_command_line_is_true():
    subprocess.run([sys.executable, "scripts/cli_page.py", "--check"], cwd=ROOT, check=True)


def test_the_readme_links_every_page_of_the_manual():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [p.name for p in PAGES[1:] if f"docs/{p.name}" not in readme] == []
