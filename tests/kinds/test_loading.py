"""Tools of files through the engine: loaded, reloaded, broken, mended."""

from pathlib import Path

import pytest

from ferrule import ToolEngine, ToolEngineConfig, ToolEngineEvent, tool
from ferrule.errors import LoadError
from tests.kinds.test_watching import rename_over
from tests.support.waiting import until

GREET = """\
name: greet
description: {description}
category: custom
parameters:
  - name: message
    type: string
    default: hello
entry:
  type: builtin
  handler: echo
"""

SPEAK = '''
from ferrule import tool

@tool
async def speak() -> str:
    """Say something."""
    return "{word}"
'''


def watching(folder: Path) -> ToolEngine:
    return ToolEngine(ToolEngineConfig(tools_directory=str(folder), watch_for_changes=True))


async def test_a_saved_file_is_a_tool_and_a_deleted_one_is_none(tmp_path: Path):
    events: list[ToolEngineEvent] = []
    async with watching(tmp_path) as engine:
        engine.subscribe(events.append)
        rename_over(tmp_path / "greet.yaml", GREET.format(description="Greet"))
        await until(lambda: "greet" in engine.registry)
        assert (await engine.execute("greet")).output == {"message": "hello"}
        (tmp_path / "greet.yaml").unlink()
        await until(lambda: "greet" not in engine.registry)
        await until(lambda: events[-1].event_type == "reload_completed")
    types = [e.event_type.value for e in events if e.event_type.value.startswith(("tool", "reload"))]
    assert types == [
        "reload_started",
        "tool_added",
        "reload_completed",
        "reload_started",
        "tool_removed",
        "reload_completed",
    ]


async def test_a_broken_edit_keeps_the_last_good_version_and_says_what_is_wrong(tmp_path: Path):
    path = tmp_path / "greet.yaml"
    path.write_text(GREET.format(description="Greet"))
    events: list[ToolEngineEvent] = []
    async with watching(tmp_path) as engine:
        engine.subscribe(events.append)
        path.write_text(GREET.format(description="Greet") + "parametres: []\n")
        await until(lambda: bool(engine.load_errors))
        assert (await engine.execute("greet")).is_success
        [error] = engine.load_errors
        path.write_text(GREET.format(description="Mended"))
        await until(lambda: not engine.load_errors)
        assert engine.registry.find_tool("greet").spec.description == "Mended"
    assert (error.path, error.line) == (path, 11)
    assert "Did you mean 'parameters'" in str(error)
    types = [e.event_type.value for e in events]
    assert "load_error" in types
    assert "tool_updated" in types


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("type: builtin\n  handler: ech", "there is no executor 'ech' (Did you mean 'echo'?)"),
        ("type: custom\n  handler: nomodule:f", "entry.handler 'nomodule:f': no module 'nomodule' can be found"),
        ("type: custom\n  handler: json:dumpz", "entry.handler 'json:dumpz': 'json' has no 'dumpz'"),
    ],
)
async def test_an_edit_that_names_code_which_does_not_exist_keeps_the_last_good_version(
    tmp_path: Path, entry: str, says: str
):
    path, good = tmp_path / "greet.yaml", GREET.format(description="Greet")
    path.write_text(good)
    async with ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path), auto_reload=False)) as engine:
        path.write_text(good.replace("type: builtin\n  handler: echo", entry))
        for _ in range(2):  # it is still wrong when it is read again
            await engine.reload()
            [error] = engine.load_errors
            assert says in str(error) and error.path == path
            assert (await engine.execute("greet")).output == {"message": "hello"}
        path.write_text(GREET.format(description="Mended"))
        await engine.reload()
        assert not engine.load_errors
        assert engine.registry.find_tool("greet").spec.description == "Mended"


async def test_changed_python_code_runs_in_the_next_call(tmp_path: Path):
    path = tmp_path / "speak.py"
    path.write_text(SPEAK.format(word="one"))
    async with watching(tmp_path) as engine:
        before = engine.registry.find_tool("speak")
        assert (await engine.execute("speak")).output == {"result": "one"}
        rename_over(path, SPEAK.format(word="two"))
        await until(lambda: engine.registry.find_tool("speak") is not before)
        assert (await engine.execute("speak")).output == {"result": "two"}


async def test_without_watching_files_are_read_again_on_request(tmp_path: Path):
    config = ToolEngineConfig(tools_directory=str(tmp_path), auto_reload=False)
    async with ToolEngine(config) as engine:
        (tmp_path / "greet.yaml").write_text(GREET.format(description="Greet"))
        report = await engine.reload()
        assert [t.id for t in report.tools] == ["greet"]
        assert "greet" in engine.registry


async def test_polling_finds_changes_too(tmp_path: Path):
    config = ToolEngineConfig(tools_directory=str(tmp_path), auto_reload=True, reload_interval=0.05)
    async with ToolEngine(config) as engine:
        (tmp_path / "greet.yaml").write_text(GREET.format(description="Greet"))
        await until(lambda: "greet" in engine.registry)


async def test_a_file_cannot_take_the_name_of_a_registered_function(tmp_path: Path):
    @tool
    async def greet() -> str:
        """Greet."""
        return "from code"

    (tmp_path / "greet.yaml").write_text(GREET.format(description="Greet"))
    engine = ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path), auto_reload=False))
    engine.register(greet)
    async with engine:
        assert (await engine.execute("greet")).output == {"result": "from code"}
        [error] = engine.load_errors
    assert isinstance(error, LoadError)
    assert "there is a tool 'greet' already" in str(error)


async def test_a_file_may_have_a_tool_that_comes_in_the_box_under_its_own_name(tmp_path: Path):
    (tmp_path / "echo.yaml").write_text(GREET.format(description="Mine").replace("name: greet", "name: echo"))
    async with ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path), auto_reload=False)) as engine:
        assert [t.source for t in engine.registry.candidates("echo")] == ["tools", "builtin"]
        assert engine.registry.find_tool("echo").spec.description == "Mine"
        assert not engine.load_errors
