"""Executors by name, and executors that other packages add through entry points."""

import sys
from pathlib import Path

import pytest

from ferrule import ToolEngine, ToolEngineConfig
from ferrule.core.spec import Tool, ToolSpec
from ferrule.http.guard import AddressGuard
from ferrule.kinds.executors import Executors, find_code_problem
from ferrule.kinds.mcp.executor import McpExecutor

SHOUT = """\
class ShoutExecutor:
    async def execute(self, invocation, /):
        return {"text": str(invocation.params["text"]).upper() + "!"}


class BrokenExecutor:
    def __init__(self, url):
        pass
"""
SHOUT_TOOL = """\
name: shout
parameters: [{name: text, type: string, required: true}]
entry: {type: builtin, handler: HANDLER}
"""


@pytest.fixture
def plugin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on `sys.path` with an installed distribution `acme-shout`."""
    folder = tmp_path / "site"
    metadata = folder / "acme_shout-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-shout\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[ferrule.kinds]\n"
        "shout = acme_shout:ShoutExecutor\n"
        "broken = acme_shout:BrokenExecutor\n"
        "missing = acme_shout:NoSuchExecutor\n"
        "echo = acme_shout:ShoutExecutor\n"
    )
    (folder / "acme_shout.py").write_text(SHOUT)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "acme_shout", raising=False)
    return folder


def engine_with(tmp_path: Path, handler: str) -> ToolEngine:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "shout.yaml").write_text(SHOUT_TOOL.replace("HANDLER", handler))
    return ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path / "tools"), auto_reload=False))


async def test_a_tool_can_name_the_executor_of_another_package(tmp_path: Path, plugin_folder: Path):
    async with engine_with(tmp_path, "shout") as engine:
        assert "acme_shout" not in sys.modules
        assert (await engine.execute("shout", {"text": "hi"})).output == {"text": "HI!"}


@pytest.mark.parametrize(("handler", "reason"), [("broken", "TypeError"), ("missing", "AttributeError")])
async def test_a_plugin_that_cannot_be_loaded_fails_the_call_and_names_the_package(
    tmp_path: Path, plugin_folder: Path, handler: str, reason: str
):
    async with engine_with(tmp_path, handler) as engine:
        result = await engine.execute("shout", {"text": "hi"})
        assert (await engine.execute("echo", {"message": "hello"})).output == {"message": "hello"}
    assert result.error_type == "executor_not_found"
    assert f"executor {handler!r} (acme_shout:" in str(result.error)
    assert f"of acme-shout) cannot be loaded: {reason}" in str(result.error)


def test_a_plugin_cannot_replace_a_built_in_executor(plugin_folder: Path):
    executors = Executors(AddressGuard(), McpExecutor())
    assert type(executors.get("echo")).__name__ == "EchoExecutor"
    assert "acme_shout" not in sys.modules
    assert executors.get("no_such_executor") is None


async def test_an_executor_that_a_program_registers_wins_over_a_plugin(tmp_path: Path, plugin_folder: Path):
    class Whisper:
        async def execute(self, invocation, /):
            return {"text": invocation.params["text"].lower()}

    async with engine_with(tmp_path, "shout") as engine:
        engine.register_executor("shout", Whisper())
        assert (await engine.execute("shout", {"text": "HI"})).output == {"text": "hi"}


def test_a_tool_without_an_origin_is_reported_without_one():
    tool = Tool(spec=ToolSpec(tool_id="shout", description="Shout."), handler="shoot", target=None)
    problem = find_code_problem(tool)
    assert problem is not None and str(problem).startswith("there is no executor 'shoot'")
