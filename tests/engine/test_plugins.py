"""Tools of other packages: installed, found by their entry points, and set up by ferrule.toml."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from ferrule import ToolEngine, ToolEngineConfig, UnifiedToolLibrary, tool
from ferrule.config import FerruleConfig
from ferrule.engine import plugins
from ferrule.engine.plugins import PluginContext, ToolPlugins
from ferrule.errors import SetupError
from ferrule.policy.policy import load_policy
from tests.support.processes import ROOT, run_python

EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the example in it."""
    folder = tmp_path_factory.mktemp("packages")
    options = ["--quiet", "--offline", "--no-deps", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([find_uv_bin(), "pip", "install", *options, "--target", str(folder), str(EXAMPLE)], check=True)
    return folder


def ferrule(*arguments: str, project: Path, packages: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(packages), "XDG_STATE_HOME": str(project / "state")}
    return run_python("-m", "ferrule", "--config", "ferrule.toml", *arguments, cwd=project, env=environ)


@pytest.mark.integration
def test_an_installed_package_adds_tools_with_a_section_of_their_own(tmp_path: Path, installed: Path):
    (tmp_path / "ferrule.toml").write_text("[tools.roll_dice]\nsides = 2\n")
    answer = ferrule("call", "roll_dice", "count=20", "--json", project=tmp_path, packages=installed)
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert set(result["output"]["result"]) <= {1, 2}
    assert result["metadata"]["_meta"]["source"] == "acme-dice"
    assert ferrule("call", "coin_flip", project=tmp_path, packages=installed).stdout.strip() in ("heads", "tails")


@pytest.mark.integration
def test_a_mistake_in_the_section_of_a_plugin_names_file_section_and_key(tmp_path: Path, installed: Path):
    (tmp_path / "ferrule.toml").write_text("[tools.roll_dice]\nsides = 1\n")
    answer = ferrule("call", "roll_dice", project=tmp_path, packages=installed)
    assert (answer.returncode, "tools.roll_dice.sides: " in answer.stderr) == (2, True), answer.stderr


def entries_of(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    entries = [EntryPoint(name, value, plugins.ENTRY_POINT_GROUP) for name, value in values.items()]
    monkeypatch.setattr(plugins, "find_plugin_entries", lambda: entries)


BUILT: list[str] = []


def build_first(context: PluginContext) -> list[Any]:
    BUILT.append("first")

    async def first() -> str:
        """The first."""
        return "first"

    return [first]


def build_pair(context: PluginContext) -> list[Any]:
    BUILT.append("pair")

    @tool(dependencies=["first"])
    async def first_half() -> str:
        """Needs the first."""
        return "left"

    async def second_half() -> str:
        """Needs nothing."""
        return "right"

    return [first_half, second_half]


def build_broken(context: PluginContext) -> list[Any]:
    raise RuntimeError("no licence")


HERE = __name__
PAIR = f"{HERE}:build_pair"


async def test_only_the_plugin_of_the_wanted_tool_is_built_and_others_when_they_are_needed(
    monkeypatch: pytest.MonkeyPatch,
):
    BUILT.clear()
    entries_of(monkeypatch, first=f"{HERE}:build_first", first_half=PAIR, second_half=PAIR)
    engine = FerruleConfig().engine(tool_name="first")
    async with UnifiedToolLibrary(engine=engine) as library:
        assert (await library.execute("first")).text == "first"
        assert BUILT == ["first"]
        assert (await library.execute("second_half")).text == "right"
    assert BUILT == ["first", "pair"]


def test_what_a_tool_depends_on_is_loaded_with_it(monkeypatch: pytest.MonkeyPatch):
    entries_of(monkeypatch, first_half=f"{HERE}:build_pair", first=f"{HERE}:build_first")
    engine = FerruleConfig().engine(tool_name="first_half")
    assert engine.registry.get("first_half") is not None


def test_a_plugin_that_fails_is_reported_and_the_others_work(monkeypatch: pytest.MonkeyPatch):
    entries_of(monkeypatch, broken=f"{HERE}:build_broken", first=f"{HERE}:build_first", missing="no_such_package:build")
    engine = ToolEngine(ToolEngineConfig(builtin_tools=False))
    engine.use_plugins(ToolPlugins(PluginContext(engine=engine)))
    assert engine.registry.get("first") is not None
    broken, missing = map(str, engine.load_errors)
    assert "no licence" in broken and "no_such_package" in missing


def test_a_section_of_an_unknown_tool_is_a_mistake(tmp_path: Path):
    (tmp_path / "ferrule.toml").write_text("[tools.serach_web]\n")
    with pytest.raises(SetupError, match=r"there is no 'serach_web' in \[tools\]. Did you mean 'search_web'"):
        FerruleConfig.read(tmp_path / "ferrule.toml")


@pytest.mark.integration
def test_a_policy_of_a_package_is_selected_by_its_name(installed: Path):
    code = "from ferrule.policy.policy import Rule, load_policy; "
    code += "print(load_policy('careful', {'rules': (Rule(verdict='deny', tool='x'),)}))"
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    answer = run_python("-c", code, cwd=ROOT, env=environ)
    assert "verdict='deny', tool='x'" in answer.stdout and "effect='changing'" in answer.stdout, answer.stderr


def test_an_unknown_policy_is_a_mistake():
    with pytest.raises(SetupError, match="No installed package provides the policy 'carefull'"):
        load_policy("carefull", {})
