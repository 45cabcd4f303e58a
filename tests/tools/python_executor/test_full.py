"""Scripts in a full Python."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from ferrule import Agent, ToolEngine, UnifiedToolLibrary
from ferrule.agent import AgentState
from ferrule.testing import ScriptedModel
from ferrule.tools.python_executor import PythonExecutorConfig, python_executor_tools
from ferrule.tools.python_executor.full import run_in_full_python
from ferrule.tools.python_executor.isolation import Isolation, find_isolation
from ferrule.tools.python_executor.script import Script


async def run(isolation, code, inputs=None):
    return await run_in_full_python(Script(code=code, inputs=inputs or {}), isolation.config, isolation)


async def test_a_script_has_all_of_python(isolation):
    ran = await run(
        isolation,
        "import statistics\nclass Mean(statistics.StatisticsError): pass\nprint('read')\nstatistics.mean(numbers)",
        {"numbers": [1, 2, 6]},
    )
    assert (ran.value, ran.printed, ran.failure) == (3, "read\n", None)


async def test_a_script_may_await(isolation):
    ran = await run(isolation, "import asyncio\nawait asyncio.gather(*[asyncio.sleep(0, n) for n in range(3)])")
    assert ran.value == [0, 1, 2]


async def test_a_script_has_an_empty_folder_and_a_clean_environment(isolation, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    code = "import os\nopen('a.txt', 'w').write('a')\n[os.listdir('.'), open('a.txt').read(), sorted(os.environ)]"
    listed, text, names = (await run(isolation, code)).value
    assert listed == ["a.txt"] and text == "a" and "SECRET_TOKEN" not in names and "PATH" in names


async def test_nothing_is_kept_from_one_script_to_the_next(isolation):
    await run(isolation, "open('kept.txt', 'w').write('a')")
    assert (await run(isolation, "import os\nos.listdir('.')")).value == []


async def test_output_of_programs_is_printed_in_its_order(isolation):
    code = "import subprocess, sys\nprint('1', flush=True)\nsubprocess.run(['echo', '2'])\nprint('3', file=sys.stderr)"
    assert (await run(isolation, code)).printed == "1\n2\n3\n"


async def test_values_become_the_nearest_json(isolation):
    code = "import datetime, pathlib\n{'day': datetime.date(2026, 1, 2), 'set': {2, 1}, 'path': pathlib.Path('a')}"
    assert (await run(isolation, code)).value == {"day": "2026-01-02", "set": [1, 2], "path": "PosixPath('a')"}
    assert (await run(isolation, "{(1, 2): 3}")).value == "{(1, 2): 3}"


async def test_an_error_says_where(isolation):
    ran = await run(isolation, "print('before')\ndef half(x):\n    return 1 / x\n\nhalf(0)")
    assert ran.failure is not None and ran.failure.message == "ZeroDivisionError: division by zero"
    assert [(line.number, line.function, line.source) for line in ran.failure.lines] == [
        (5, "", "half(0)"),
        (3, "half", "return 1 / x"),
    ]
    broken = await run(isolation, "x = (1,")
    assert broken.failure is not None and broken.failure.lines[0].number == 1


async def test_a_script_may_end_itself(isolation):
    assert (await run(isolation, "print('x')\nimport sys\nsys.exit()")).printed == "x\n"
    ran = await run(isolation, "import sys\nsys.exit('no data')")
    assert ran.failure is not None and ran.failure.message == "SystemExit: no data"


async def test_a_library_has_it_as_any_other_tool(walls):
    async with UnifiedToolLibrary() as library:
        library.register(*python_executor_tools(walls.config))
        result = await library.execute_tool("python_executor", None, {"code": "print('hi')\n6 * 7"})
        assert result.output == {"printed": "hi\n", "result": 42}
        failed = await library.execute_tool("python_executor", None, {"code": "import no_such_package"})
        assert "none can be installed" in (failed.error or "") and "line 1" in (failed.error or "")


async def test_behind_walls_nothing_is_changed_and_nobody_is_asked(walls):
    (tool,) = python_executor_tools(walls.config)
    assert tool.spec.effects.read_only and not tool.spec.effects.destructive
    assert "bubblewrap" not in tool.spec.description


async def test_without_walls_it_says_so_and_a_person_is_asked(limits):
    async with UnifiedToolLibrary() as library:
        (spec,) = library.register(*python_executor_tools(limits.config))
        assert "without bubblewrap" in spec.description
        model = ScriptedModel([{"name": "python_executor", "arguments": {"code": "1 + 1"}}, "It is 2."])
        agent = Agent(library, model)
        waiting = await agent.run("1 + 1?")
        assert waiting.state is AgentState.WAITING
        answer = await agent.resume(waiting.run_id, approvals=True)
        assert answer.steps[0].text == '{"result":2,"isolation":"limits"}'


async def test_the_words_about_limits_are_as_true_as_can_be(limits):
    assert "it could read and change files of this machine" in replace(limits, has_landlock=False).weakness
    told = await run(replace(limits, has_landlock=False), "import socket\nsocket.socket()")
    assert told.failure is not None and "PermissionError" in told.failure.message


async def test_auto_takes_the_walls_where_they_are(walls):
    config = PythonExecutorConfig(full=True, interpreter=walls.interpreter.path)
    (tool,) = python_executor_tools(config)
    assert tool.spec.effects.read_only and tool.needs == ""


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tool,) = python_executor_tools(PythonExecutorConfig(full=True, isolation="bubblewrap"))
    assert tool.needs.startswith("bubblewrap, which is not installed: apt-get install bubblewrap")


def test_a_bubblewrap_that_is_not_allowed_is_not_used(monkeypatch, tmp_path):
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tool,) = python_executor_tools(PythonExecutorConfig(full=True, isolation="bubblewrap"))
    assert "it said: bwrap: No permissions to create new namespace" in tool.needs
    (weaker,) = python_executor_tools(PythonExecutorConfig(full=True, interpreter="/usr/bin/python3"))
    assert weaker.needs or "without bubblewrap" in weaker.spec.description


def test_an_interpreter_by_its_name_brings_nothing_along_from_where_we_stand(tmp_path, monkeypatch):
    if shutil.which("python3", path="/usr/bin:/bin") is None:
        pytest.skip("the system has no Python of its own")
    (tmp_path / "lib").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    found = find_isolation(PythonExecutorConfig(full=True, interpreter="python3"))
    assert isinstance(found, Isolation) and str(tmp_path / "lib") not in found.interpreter.places
    (tool,) = python_executor_tools(PythonExecutorConfig(full=True, interpreter="/nothing"))
    assert "/nothing" in tool.needs


async def test_an_interpreter_that_is_none_is_said():
    (tool,) = python_executor_tools(PythonExecutorConfig(full=True, interpreter="/no/such/python"))
    assert "'/no/such/python'" in tool.needs and "interpreter =" in tool.needs
    async with ToolEngine() as engine:
        engine.register(tool)
        result = await engine.execute("python_executor", {"code": "1"})
        assert "/no/such/python" in (result.error or "")


async def test_packages_of_our_own_python_are_there(walls):
    if walls.interpreter.path != sys.executable or not Path(orjson.__file__).is_relative_to(sys.prefix):
        pytest.skip("our own packages stand elsewhere than those of the Python behind bubblewrap")
    ran = await run(walls, "import orjson\norjson.dumps([1]).decode()")
    assert ran.value == "[1]"
