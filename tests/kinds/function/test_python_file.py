"""Python files of tools: what becomes a tool, what a new version is, and how folders of files are loaded again."""

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule.core.spec import Tool
from ferrule.errors import LoadError
from ferrule.kinds.function.tools import read_python_file
from ferrule.kinds.loading import DirectorySource, compare_tools, read_yaml_or_python_file
from ferrule.kinds.source import LoadedFile, LoadReport
from ferrule.process.python_module import MAX_VERSIONS, find_module_version, load_python_module, read_version

IMPORT = "from ferrule import tool\n"
GREET = IMPORT + '@tool\ndef greet(name: str) -> str:\n    """Greet somebody."""\n    return f"Hello {name}"\n'
ECHO = "entry: {type: builtin, handler: echo}\n"


def save(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def tools_of(path: Path) -> list[Tool]:
    loaded = read_python_file(path)
    assert loaded.errors == ()
    return list(loaded.tools)


def call(tool: Tool, **params: Any) -> Any:
    return tool.target.function(tool.spec.capabilities[0].name)(**params)


def ids(report: LoadReport) -> list[str]:
    return [tool.id for tool in report.tools]


# What becomes a tool


def test_decorated_functions_of_a_file_are_its_tools(tmp_path: Path):
    path = save(tmp_path / "greetings.py", GREET + "def helper(): ...\nalias = greet\n")
    (tool,) = tools_of(path)
    assert (tool.id, tool.spec.description, tool.handler) == ("greet", "Greet somebody.", "function")
    assert tool.origin == f"{path}:2"
    assert call(tool, name="Wang") == "Hello Wang"


def test_a_decorated_class_is_one_tool_and_its_objects_are_none(tmp_path: Path):
    text = "@tool\nclass Shop:\n    def price(self, item: str) -> int:\n        return 7\n\nshop = Shop()\n"
    path = save(tmp_path / "shop.py", IMPORT + "\n" + text)
    (tool,) = tools_of(path)
    assert (tool.id, [c.name for c in tool.spec.capabilities]) == ("Shop", ["price"])
    assert tool.origin == f"{path}:4"


def test_what_a_file_imports_is_not_its_tool(tmp_path: Path):
    save(tmp_path / "first.py", GREET)
    path = save(tmp_path / "second.py", "from first import greet\n" + GREET.replace("greet", "bow"))
    assert [tool.id for tool in tools_of(path)] == ["bow"]


def test_chinese_names_and_a_byte_order_mark_are_fine(tmp_path: Path):
    path = tmp_path / "问候.py"
    path.write_bytes(
        b"\xef\xbb\xbf" + (IMPORT + "@tool\ndef 问候(名字: str) -> str:\n    return '你好' + 名字\n").encode()
    )
    (tool,) = tools_of(path)
    assert (tool.id, call(tool, 名字="王")) == ("问候", "你好王")


# Modules


def test_the_module_has_a_private_name_that_pickle_dataclasses_and_pydantic_can_use(tmp_path: Path):
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom pydantic import BaseModel\n"
        "@dataclass\nclass Point:\n    x: int\nclass Model(BaseModel):\n    points: list[Point]\n"
    )
    module = load_python_module(save(tmp_path / "shapes.py", text))
    assert module.__name__.startswith("ferrule_user_tools.shapes_")
    assert "shapes" not in sys.modules
    point = pickle.loads(pickle.dumps(module.Point(x=1)))
    assert dataclasses.asdict(point) == {"x": 1}
    assert module.Model.model_validate({"points": [{"x": 2}]}).points == [module.Point(x=2)]


def test_a_changed_file_is_a_new_module_and_old_functions_keep_the_old_code(tmp_path: Path):
    path = save(tmp_path / "answer.py", "def limit():\n    return 1\ndef answer():\n    return limit()\n")
    old = load_python_module(path)
    save(path, path.read_text().replace("1", "2"))
    new = load_python_module(path)
    assert (old.answer(), new.answer()) == (1, 2)
    assert old is not new and sys.modules[old.__name__] is old


def test_the_same_content_is_the_same_module(tmp_path: Path):
    path = save(tmp_path / "counter.py", "calls = []\n")
    assert load_python_module(path) is load_python_module(path)


def test_old_versions_do_not_pile_up(tmp_path: Path):
    path = tmp_path / "edited.py"
    for n in range(3 * MAX_VERSIONS):
        load_python_module(save(path, f"n = {n}\n"))
    modules = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(path)]
    assert [m.n for m in modules] == list(range(2 * MAX_VERSIONS, 3 * MAX_VERSIONS))


@pytest.mark.parametrize(
    "line", ["import own_helper", "from own_helper import x", "from .own_helper import x", "from . import own_helper"]
)
def test_a_file_may_import_its_neighbours(tmp_path: Path, line: str):
    save(tmp_path / "own_helper.py", "x = 5\n")
    value = "x" if line.endswith(" x") else "own_helper.x"
    module = load_python_module(save(tmp_path / "main.py", f"{line}\nvalue = {value}\n"))
    assert module.value == 5
    assert "own_helper" not in sys.modules and str(tmp_path) not in sys.path


def test_neighbours_that_import_each_other_work(tmp_path: Path):
    save(tmp_path / "ring_a.py", "import ring_b\ndef a():\n    return 'a' + ring_b.b()\ndef c():\n    return 'c'\n")
    save(tmp_path / "ring_b.py", "import ring_a\ndef b():\n    return 'b' + ring_a.c()\n")
    assert load_python_module(tmp_path / "ring_a.py").a() == "abc"


def test_a_file_named_like_a_library_can_still_import_that_library(tmp_path: Path):
    module = load_python_module(save(tmp_path / "json.py", "import json\ntext = json.dumps([1])\n"))
    other = load_python_module(save(tmp_path / "user.py", "import json\ntext = json.dumps([2])\n"))
    assert (module.text, other.text) == ("[1]", "[2]")


def test_a_changed_neighbour_makes_a_new_version(tmp_path: Path):
    save(tmp_path / "own_rate.py", "rate = 1\n")
    path = save(tmp_path / "bill.py", "def total():\n    from own_rate import rate\n    return rate\n")
    old = load_python_module(path)
    save(tmp_path / "own_rate.py", "rate = 2\n")
    new = load_python_module(path)
    assert (old.total(), new.total()) == (1, 2)


@pytest.mark.integration
def test_another_process_can_load_the_very_same_version_after_the_file_changed(tmp_path: Path):
    save(tmp_path / "own_part.py", "part = 'old'\n")
    path = save(tmp_path / "whole.py", "from own_part import part\ndef whole():\n    return part\n")
    version = find_module_version(load_python_module(path).whole)
    save(tmp_path / "own_part.py", "part = 'new'\n")
    code = (
        "import pickle, sys; from ferrule.process.python_module import load_version; "
        "print(load_version(pickle.load(sys.stdin.buffer)).whole())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(version), capture_output=True, check=True)
    assert done.stdout == b"old\n"


def test_the_same_code_has_the_same_digest_wherever_it_stands(tmp_path: Path):
    first, second = (
        read_version(save(tmp_path / "first.py", "x = 1")),
        read_version(save(tmp_path / "second.py", "x = 1")),
    )
    (tmp_path / "sub").mkdir()
    moved = read_version(save(tmp_path / "sub" / "first.py", "x = 1"))
    assert first.digest == moved.digest and first.name != moved.name
    assert first.name != second.name


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = 1\ndef f(:\n", 2, "SyntaxError: invalid syntax"),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError: division by zero"),
        ("import json\nimport no_such_thing\n", 2, "ModuleNotFoundError: No module named 'no_such_thing' (install"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError: "),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("raise ValueError\n", 1, "ValueError"),
        ("", 1, "the file is empty"),
    ],
)
def test_a_file_that_does_not_load_says_at_which_line(tmp_path: Path, text: str, line: int, message: str):
    path = save(tmp_path / "broken.py", text)
    (error,) = read_python_file(path).errors
    assert str(error).startswith(f"{path}:{line}: {message}")
    assert not [name for name in sys.modules if "broken" in name and name.startswith("ferrule_user_tools")]


def test_an_error_in_a_neighbour_is_shown_where_it_is(tmp_path: Path):
    save(tmp_path / "own_bad.py", "x = 1\ny = unknown\n")
    path = save(tmp_path / "fine.py", "\n\n\n\nimport own_bad\n")
    with pytest.raises(LoadError) as caught:
        load_python_module(path)
    assert (caught.value.path, caught.value.line) == (tmp_path / "own_bad.py", 2)


def test_a_tool_that_cannot_be_described_is_an_error_at_its_line(tmp_path: Path):
    path = save(tmp_path / "bad.py", GREET + "\n@tool(timeout=5)\ndef worse(a, /, b: 'NoSuchType'): ...\n")
    loaded = read_python_file(path)
    assert loaded.tools == ()
    assert [(error.path, error.line) for error in loaded.errors] == [(path, 7)]


# Folders


def test_a_folder_has_the_tools_of_its_yaml_and_python_files(tmp_path: Path):
    save(tmp_path / "b.yaml", f"name: echo\n{ECHO}")
    save(tmp_path / "a.py", GREET)
    save(tmp_path / "_helper.py", "raise RuntimeError('never run')")
    (tmp_path / "package").mkdir()
    save(tmp_path / "package" / "__init__.py", "raise RuntimeError('never run')")
    report = DirectorySource(tmp_path).load()
    assert (ids(report), report.errors) == (["greet", "echo"], ())
    assert report.files == (tmp_path / "a.py", tmp_path / "b.yaml")


def test_a_folder_that_is_not_there_has_no_tools(tmp_path: Path):
    source = DirectorySource(tmp_path / "tools")
    assert source.load() == LoadReport()
    (tmp_path / "tools").mkdir()
    save(tmp_path / "tools" / "a.py", GREET)
    assert ids(source.load()) == ["greet"]


def test_a_reload_reads_only_what_changed(tmp_path: Path):
    save(tmp_path / "a.yaml", f"name: a\n{ECHO}")
    save(tmp_path / "b.py", GREET)
    source = DirectorySource(tmp_path)
    before = source.load().tools
    save(tmp_path / "a.yaml", f"name: a\nversion: 2\n{ECHO}")
    after = source.load().tools
    assert after[1] is before[1] and after[0] is not before[0]
    assert compare_tools(before, after).updated == (after[0],)


@pytest.mark.parametrize("name", ["a.yaml", "a.py"])
def test_a_broken_edit_keeps_the_last_good_version_until_it_is_mended(tmp_path: Path, name: str):
    good = GREET if name == "a.py" else f"name: greet\n{ECHO}"
    source = DirectorySource(tmp_path)
    save(tmp_path / name, good)
    before = source.load().tools
    for broken in ["", "name: [", "def f(:"]:
        save(tmp_path / name, broken)
        report = source.load()
        assert report.tools == before and {error.path for error in report.errors} == {tmp_path / name}
    save(tmp_path / name, good.replace("greet", "bow"))
    assert (ids(source.load()), source.load().errors) == (["bow"], ())


def test_a_file_that_was_never_good_brings_nothing_until_its_helper_is_there(tmp_path: Path):
    save(tmp_path / "a.py", "import own_late\n" + GREET)
    source = DirectorySource(tmp_path)
    assert (ids(source.load()), len(source.load().errors)) == ([], 1)
    save(tmp_path / "own_late.py", "x = 1\n")
    assert (ids(source.load()), source.load().errors) == (["greet"], ())


def test_a_file_nobody_can_read_never_stops_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    for name in ("a", "b"):
        save(tmp_path / f"{name}.yaml", f"name: {name}\nentry: {{type: builtin, handler: echo}}\n")

    def read(path: Path) -> LoadedFile:
        if path.stem == "b":
            raise KeyError("b")
        return read_yaml_or_python_file(path)

    report = DirectorySource(tmp_path, read=read).load()
    assert ids(report) == ["a"]
    assert [str(error) for error in report.errors] == [f"{tmp_path}/b.yaml:1: the file cannot be loaded: KeyError: 'b'"]
    assert "Traceback" in caplog.text


def test_the_tools_of_a_deleted_file_are_gone(tmp_path: Path):
    save(tmp_path / "a.py", GREET)
    save(tmp_path / "b.yaml", f"name: b\n{ECHO}")
    source = DirectorySource(tmp_path)
    before = source.load().tools
    (tmp_path / "a.py").unlink()
    changes = compare_tools(before, source.load().tools)
    assert ([tool.id for tool in changes.removed], changes.added, changes.updated) == (["greet"], (), ())


def test_a_changed_body_is_an_update(tmp_path: Path):
    save(tmp_path / "a.py", GREET)
    source = DirectorySource(tmp_path)
    before = source.load().tools
    save(tmp_path / "a.py", GREET.replace("Hello", "Good day"))
    (tool,) = compare_tools(before, source.load().tools).updated
    assert call(tool, name="Li") == "Good day Li"
    assert call(before[0], name="Li") == "Hello Li"


def test_a_changed_helper_is_an_update_of_those_who_import_it(tmp_path: Path):
    save(tmp_path / "_words.py", "hello = 'Hello'\n")
    save(tmp_path / "a.py", "import _words\n" + GREET.replace('"Hello {name}"', '"{_words.hello} {name}"'))
    save(tmp_path / "b.py", GREET.replace("greet", "bow"))
    source = DirectorySource(tmp_path)
    before = source.load().tools
    save(tmp_path / "_words.py", "hello = 'Bye'\n")
    (tool,) = compare_tools(before, source.load().tools).updated
    assert (tool.id, call(tool, name="Li")) == ("greet", "Bye Li")


def test_a_yaml_tool_is_updated_when_the_python_file_it_names_changes(tmp_path: Path):
    save(tmp_path / "price.yaml", "name: price\nentry: {type: custom, handler: 'own_prices:price'}\n")
    source = DirectorySource(tmp_path)
    missing = source.load().tools
    save(tmp_path / "own_prices.py", "def price():\n    return 1\n")
    first = source.load().tools
    save(tmp_path / "own_prices.py", "def price():\n    return 2\n")
    second = source.load().tools
    assert compare_tools(missing, first).updated == first
    assert compare_tools(first, second).updated == second
    assert not compare_tools(second, source.load().tools)
    assert (call(first[0]), call(second[0])) == (1, 2)


def test_files_that_swap_their_names_change_nothing(tmp_path: Path):
    save(tmp_path / "a.yaml", f"name: first\n{ECHO}")
    save(tmp_path / "b.yaml", f"name: second\n{ECHO}")
    source = DirectorySource(tmp_path)
    before = source.load().tools
    (tmp_path / "a.yaml").rename(tmp_path / "c")
    (tmp_path / "b.yaml").rename(tmp_path / "a.yaml")
    (tmp_path / "c").rename(tmp_path / "b.yaml")
    report = source.load()
    assert (ids(report), report.errors, bool(compare_tools(before, report.tools))) == (["second", "first"], (), False)
    assert [tool.origin for tool in report.tools] == [f"{tmp_path / 'a.yaml'}:1", f"{tmp_path / 'b.yaml'}:1"]


def test_a_name_in_a_yaml_and_a_python_file_is_reported_with_both_places(tmp_path: Path):
    save(tmp_path / "a.py", GREET)
    save(tmp_path / "b.yaml", f"name: greet\n{ECHO}")
    report = DirectorySource(tmp_path).load()
    assert [tool.handler for tool in report.tools] == ["function"]
    (error,) = report.errors
    assert str(error).startswith(f"{tmp_path / 'b.yaml'}:1: there is a tool 'greet' already, at {tmp_path / 'a.py'}:2")


def test_asking_a_spec_for_its_schema_does_not_make_it_another(tmp_path: Path):
    save(tmp_path / "a.py", GREET)
    (before,) = DirectorySource(tmp_path).load().tools
    (after,) = DirectorySource(tmp_path).load().tools
    assert after.spec.capabilities[0].schema["type"] == "object"
    assert not compare_tools([before], [after])


def test_disabling_a_tool_or_changing_its_tags_is_an_update(tmp_path: Path):
    source = DirectorySource(tmp_path)
    versions = []
    for line in ["tags: [a]", "tags: [b]", "enabled: false"]:
        save(tmp_path / "a.yaml", f"name: a\n{line}\n{ECHO}")
        versions.append(source.load().tools)
    assert compare_tools(versions[0], versions[1]).updated == versions[1]
    assert compare_tools(versions[1], versions[2]).updated == versions[2]
