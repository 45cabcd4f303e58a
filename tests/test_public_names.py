"""The public face: what is listed is there, is where it is said to be, and is light."""

import subprocess
import sys

import ferrule

HEAVY = {"pydantic", "sqlalchemy", "httpx", "yaml", "jsonschema_rs", "watchfiles", "typer", "rich", "cloudpickle"}


def test_every_public_name_is_there_and_sorted():
    assert all(getattr(ferrule, name) is not None for name in ferrule.__all__)
    assert ferrule.__all__ == sorted(ferrule.__all__)
    assert set(ferrule.__all__) == set(ferrule._HOMES)


def test_a_name_that_is_not_there_is_told():
    assert not hasattr(ferrule, "ToolEngin")


def test_importing_everything_public_loads_nothing_heavy():
    code = (
        "import sys, ferrule\n"
        "for name in ferrule.__all__: getattr(ferrule, name)\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
