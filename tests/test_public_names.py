"""The public names: every one can be imported, type checkers see it, and importing it is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ferrule
import ferrule.documents

HEAVY = {"pydantic", "sqlalchemy", "httpx", "yaml", "jsonschema_rs", "typer", "rich", "cloudpickle"}


def test_every_public_name_can_be_imported():
    assert {"Agent", "ToolEngine", "UnifiedToolLibrary", "tool"} <= set(ferrule.__all__)
    assert all(getattr(ferrule, name) is not None for name in ferrule.__all__)
    assert {*ferrule.__all__, *ferrule._MODULES} <= set(dir(ferrule)) and len(ferrule.__all__) <= 25


def test_the_names_of_the_design_documents_are_together_and_importable_from_the_top_too():
    names = ferrule.documents.__all__
    assert {"ToolSpec", "UnifiedToolLibrary", "SuperMagic", "ContextAwareReasoningRuntime"} <= set(names)
    at_top = [name for name in names if name in ferrule._MODULES]
    assert set(ferrule._MODULES) == set(at_top)
    assert all(getattr(ferrule.documents, name) is getattr(ferrule, name) for name in at_top)


def test_type_checkers_see_the_public_names_in_the_modules_they_are_loaded_from():
    tree = ast.parse(Path(str(ferrule.__file__)).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    assert {alias.name: node.module for node in imports for alias in node.names} == ferrule._MODULES


def test_a_star_import_brings_the_public_names():
    namespace: dict[str, object] = {}
    exec("from ferrule import *", namespace)
    assert set(ferrule.__all__) <= set(namespace)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'ToolEngin'"):
        ferrule.ToolEngin  # noqa: B018


@pytest.mark.integration
def test_importing_everything_public_loads_nothing_heavy():
    code = (
        "import sys, ferrule\n"
        "for name in ferrule._MODULES: getattr(ferrule, name)\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
