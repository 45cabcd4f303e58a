"""Scripts in a full Python."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule_tools.python import PythonExecutorConfig, python_executor_tools
from ferrule_tools.python.bubblewrap import Bubblewrap, find_bubblewrap, run_in_full_python
from ferrule_tools.python.script import Script

pytestmark = pytest.mark.integration


async def run(bubblewrap, code, inputs=None):
    return await run_in_full_python(Script(code=code, inputs=inputs or {}), bubblewrap.config, bubblewrap)


async def test_a_script_has_all_of_python(bubblewrap):
    ran = await run(
        bubblewrap,
        "import statistics\nclass Mean(statistics.StatisticsError): pass\nprint('read')\nstatistics.mean(numbers)",
        {"numbers": [1, 2, 6]},
    )
    assert (ran.value, ran.printed, ran.failure) == (3, "read\n", None)


async def test_a_script_may_await(bubblewrap):
    ran = await run(bubblewrap, "import asyncio\nawait asyncio.gather(*[asyncio.sleep(0, n) for n in range(3)])")
    assert ran.value == [0, 1, 2]


async def test_a_script_has_an_empty_folder_and_a_clean_environment(bubblewrap, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    code = "import os\nopen('a.txt', 'w').write('a')\n[os.listdir('.'), open('a.txt').read(), sorted(os.environ)]"
    listed, text, names = (await run(bubblewrap, code)).value
    assert listed == ["a.txt"] and text == "a" and "SECRET_TOKEN" not in names and "PATH" in names


async def test_a_python_under_tmp_works_like_any_other(bubblewrap):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        home = Path(folder) / "environment"
        command = [bubblewrap.interpreter.path, "-m", "venv", "--without-pip", str(home)]
        await asyncio.to_thread(subprocess.run, command, check=True)
        (home / "secret.txt").write_text("not for scripts")
        other = find_bubblewrap(replace(bubblewrap.config, interpreter=str(home / "bin" / "python")))
        assert isinstance(other, Bubblewrap), other
        code = "import sys, os\nopen('a.txt', 'w').write('a')\n[sys.prefix, os.path.exists(sys.prefix + '/secret.txt')]"
        assert (await run(other, code)).value == [str(home), False]
        assert (await run(other, "import os\nos.listdir('.')")).value == []
        refused = await run(other, "import sys\nopen(sys.prefix + '/lib/added.txt', 'w')")
        assert refused.failure is not None


async def test_nothing_is_kept_from_one_script_to_the_next(bubblewrap):
    await run(bubblewrap, "open('kept.txt', 'w').write('a')")
    assert (await run(bubblewrap, "import os\nos.listdir('.')")).value == []


async def test_output_of_programs_is_printed_in_its_order(bubblewrap):
    code = "import subprocess, sys\nprint('1', flush=True)\nsubprocess.run(['echo', '2'])\nprint('3', file=sys.stderr)"
    assert (await run(bubblewrap, code)).printed == "1\n2\n3\n"


async def test_values_that_json_cannot_represent_are_converted(bubblewrap):
    code = "import datetime, pathlib\n{'day': datetime.date(2026, 1, 2), 'set': {2, 1}, 'path': pathlib.Path('a')}"
    assert (await run(bubblewrap, code)).value == {"day": "2026-01-02", "set": [1, 2], "path": "PosixPath('a')"}
    assert (await run(bubblewrap, "{(1, 2): 3}")).value == "{(1, 2): 3}"


async def test_an_error_says_where(bubblewrap):
    ran = await run(bubblewrap, "print('before')\ndef half(x):\n    return 1 / x\n\nhalf(0)")
    assert ran.failure is not None and ran.failure.message == "ZeroDivisionError: division by zero"
    assert [(line.number, line.function, line.source) for line in ran.failure.lines] == [
        (5, "", "half(0)"),
        (3, "half", "return 1 / x"),
    ]
    broken = await run(bubblewrap, "x = (1,")
    assert broken.failure is not None and broken.failure.lines[0].number == 1


async def test_a_script_may_end_itself(bubblewrap):
    assert (await run(bubblewrap, "print('x')\nimport sys\nsys.exit()")).printed == "x\n"
    ran = await run(bubblewrap, "import sys\nsys.exit('no data')")
    assert ran.failure is not None and ran.failure.message == "SystemExit: no data"


async def test_a_library_has_it_as_any_other_tool(bubblewrap):
    async with UnifiedToolLibrary() as library:
        library.register(*python_executor_tools(bubblewrap.config))
        result = await library.execute_tool("python_executor", None, {"code": "print('hi')\n6 * 7"})
        assert result.output == {"printed": "hi\n", "result": 42}
        failed = await library.execute_tool("python_executor", None, {"code": "import no_such_package"})
        assert "none can be installed" in (failed.error or "") and "line 1" in (failed.error or "")


async def test_it_is_read_only(bubblewrap):
    (tool,) = python_executor_tools(bubblewrap.config)
    assert tool.spec.effects.read_only and not tool.spec.effects.destructive and tool.needs == ""


def test_without_bubblewrap_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tool,) = python_executor_tools(PythonExecutorConfig(full=True))
    assert tool.needs.startswith("bubblewrap, which is not installed: apt install bubblewrap")


def test_a_bubblewrap_that_may_not_create_namespaces_is_reported(monkeypatch, tmp_path):
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tool,) = python_executor_tools(PythonExecutorConfig(full=True))
    assert "it said: bwrap: No permissions to create new namespace (in a container" in tool.needs


def test_an_interpreter_by_name_includes_no_files_around_the_current_folder(bubblewrap, tmp_path, monkeypatch):
    if shutil.which("python3", path="/usr/bin:/bin") is None:
        pytest.skip("the system has no Python of its own")
    (tmp_path / "lib").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    by_name = find_bubblewrap(PythonExecutorConfig(full=True, interpreter="python3"))
    assert isinstance(by_name, Bubblewrap) and str(tmp_path / "lib") not in by_name.interpreter.paths


async def test_an_interpreter_that_does_not_exist_is_reported():
    (tool,) = python_executor_tools(PythonExecutorConfig(full=True, interpreter="/no/such/python"))
    assert "'/no/such/python'" in tool.needs and "interpreter =" in tool.needs
    async with ToolEngine() as engine:
        engine.register(tool)
        result = await engine.execute("python_executor", {"code": "1"})
        assert "/no/such/python" in (result.error or "")


async def test_packages_of_our_own_python_can_be_imported(bubblewrap):
    if bubblewrap.interpreter.path != sys.executable or not Path(orjson.__file__).is_relative_to(sys.prefix):
        pytest.skip("our own packages are not those of the Python in bubblewrap")
    ran = await run(bubblewrap, "import orjson\norjson.dumps([1]).decode()")
    assert ran.value == "[1]"
