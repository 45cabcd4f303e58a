"""The public names: every one can be imported, type checkers see it, and importing it is cheap."""

import subprocess
import sys

import pytest

import ferrule

HEAVY = {"pydantic", "sqlalchemy", "httpx", "yaml", "jsonschema_rs", "watchfiles", "typer", "rich", "cloudpickle"}


def test_every_public_name_can_be_imported():
    assert {"Agent", "ToolEngine", "UnifiedToolLibrary", "tool"} <= set(ferrule.__all__)
    assert all(getattr(ferrule, name) is not None for name in ferrule.__all__)
    assert set(ferrule.__all__) <= set(dir(ferrule))


def test_an_import_that_is_not_lazy_is_not_mistaken_for_a_public_name():
    with open(str(ferrule.__file__), encoding="utf-8") as file:
        imports = [line for line in file if line.startswith("    from ferrule.")]
    assert len(imports) == len(ferrule.__all__)


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
        "for name in ferrule.__all__: getattr(ferrule, name)\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
