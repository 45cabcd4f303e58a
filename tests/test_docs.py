"""Every Python block of the manual runs as a file of its own, and every configuration in it is read."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ferrule.config import FerruleConfig
from tests.support.code_blocks import python_blocks
from tests.support.processes import run_python

pytestmark = pytest.mark.integration  # each block is a process, made by one that has loaded Ferrule

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CHINESE = sorted((ROOT / "docs/zh").glob("*.md"))
CONFIGURED = [page for page in PAGES if "```toml" in page.read_text(encoding="utf-8")]
BLOCKS = [
    (str(page.relative_to(ROOT)), index) for page in (*PAGES, *CHINESE) for index in range(len(python_blocks(page)))
]


@pytest.mark.parametrize(("page", "index"), BLOCKS)
def test_a_block_that_is_pasted_into_a_file_runs(page, index, tmp_path):
    (tmp_path / "block.py").write_text(python_blocks(ROOT / page)[index], encoding="utf-8")
    done = run_python("block.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("index", range(len(python_blocks(PAGES[0]))))
def test_a_block_of_the_readme_runs_in_a_new_interpreter(index, tmp_path):
    (tmp_path / "block.py").write_text(python_blocks(PAGES[0])[index], encoding="utf-8")
    subprocess.run([sys.executable, "block.py"], cwd=tmp_path, check=True, timeout=120)


@pytest.mark.parametrize("page", CONFIGURED, ids=lambda page: page.name)
def test_every_configuration_in_the_manual_is_read(page, tmp_path):
    for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        (tmp_path / "ferrule.toml").write_text(block, encoding="utf-8")
        assert FerruleConfig.read(tmp_path / "ferrule.toml", environ={}).path is not None


SCRIPTS = [["scripts/cli_page.py"], ["scripts/reference_pages.py"], ["-m", "scripts.benchmarks_page"]]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script[-1])
def test_generated_pages_are_up_to_date(script):
    done = run_python(*script, "--check", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_navigation_of_the_site_has_every_page_of_the_manual_once():
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    assert sorted(pages_of(navigation)) == sorted(["index.md", "decisions/README.md", *(p.name for p in PAGES[1:])])


def pages_of(navigation: list[dict[str, Any]]) -> list[str]:
    entries = [value for item in navigation for value in item.values()]
    return [page for each in entries for page in (pages_of(each) if isinstance(each, list) else [each])]


@pytest.mark.long
def test_the_site_is_built_without_broken_links_and_loads_nothing_from_other_hosts():
    pytest.importorskip("zensical")
    subprocess.run([sys.executable, "scripts/site.py"], cwd=ROOT, check=True)
    for page in ("index.html", "zh/index.html"):
        text = (ROOT / "site" / page).read_text(encoding="utf-8")
        assert re.findall(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(https?:[^"'> ]+)""", text) == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_relative_links_lead_to_existing_files(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
