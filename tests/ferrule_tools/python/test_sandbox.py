"""What scripts can do in the sandbox, and what their writers are told when they cannot."""

import pytest

from ferrule import ToolEngine
from ferrule.errors import SetupError
from ferrule_tools.python import PythonExecutorConfig, python_executor_tools
from ferrule_tools.python.monty_backend import MODULES

pytestmark = pytest.mark.integration


async def run(code, inputs=None, **config):
    async with ToolEngine() as engine:
        engine.register(*python_executor_tools(PythonExecutorConfig(**config), engine=engine))
        return await engine.execute("python_executor", {"code": code, "inputs": inputs or {}})


async def test_the_value_of_the_last_expression_is_the_result():
    result = await run("squares = [n * n for n in range(5)]\nsum(squares)")
    assert result.output == {"result": 30} and result.text == "30"


async def test_printed_text_is_returned_beside_the_result():
    result = await run("import sys\nprint('one')\nprint('two', file=sys.stderr)\nx = 3")
    assert result.output == {"printed": "one\ntwo\n", "result": None}


async def test_inputs_are_variables():
    orders = [{"id": 1, "total": 20}, {"id": 2, "total": 120}]
    result = await run("[o['id'] for o in orders if o['total'] > least]", {"orders": orders, "least": 100})
    assert result.output == {"result": [2]}


async def test_values_that_json_cannot_represent_are_converted():
    code = """
import datetime, decimal, dataclasses
@dataclasses.dataclass
class Point:
    x: int
{"point": Point(3), "day": datetime.date(2026, 1, 2), "set": {3, 1, 2}, (1, 2): b"ab",
 "money": decimal.Decimal("1.10"), "nan": float("nan"), "long": 2**20_000}
"""
    result = (await run(code)).output["result"]
    assert result["point"] == {"x": 3} and result["day"] == "2026-01-02" and result["set"] == [1, 2, 3]
    assert result["[1, 2]"] == "b'ab'" and result["money"] == 1.1 and result["nan"] == "nan"
    assert result["long"] == "an integer of 20,001 bits"


async def test_nothing_is_kept_from_one_script_to_the_next():
    async with ToolEngine() as engine:
        engine.register(*python_executor_tools())
        await engine.execute("python_executor", {"code": "kept = 1"})
        result = await engine.execute("python_executor", {"code": "kept"})
        assert "NameError: name 'kept' is not defined" in (result.error or "")


async def test_an_error_says_where_and_what_had_been_printed():
    result = await run("print('before')\ndef half(x):\n    return 1 / x\n\nhalf(0)")
    assert result.error_type == "execution_error" and result.metadata["advice"] == "change_arguments"
    assert (result.error or "").splitlines() == [
        "The script failed: ZeroDivisionError: division by zero",
        "  line 5: half(0)",
        "  line 3 in half: return 1 / x",
        "It had printed: before",
    ]


async def test_a_deep_traceback_is_shortened():
    result = await run("def down(n):\n    return down(n + 1)\n\ndown(0)")
    assert "RecursionError" in (result.error or "") and "more lines" in (result.error or "")
    assert len(result.error or "") < 600 and "Write a loop" in (result.error or "")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("import requests", "has these modules only: asyncio, base64"),
        ("class A(Exception): pass", "plain classes without a base"),
        ("def f():\n    yield 1", "generator expression"),
        ("x = 1\ndel x", "Use pop() or remove()"),
        ("open('data.csv').read()", "pass data in `inputs`"),
        ("import os\nos.environ['HOME']", "no environment variables"),
        ("import os\nos.system('ls')", "no access to the system"),
        ("input('name?')", "cannot ask the user"),
        ("def f(:", "line 1: def f(:"),
    ],
)
async def test_errors_of_the_sandbox_say_what_to_do_instead(code, hint):
    result = await run(code)
    assert not result.is_success and hint in (result.error or "")


async def test_every_listed_module_can_be_imported():
    result = await run("\n".join(f"import {name}" for name in MODULES) + "\n'all'")
    assert result.output == {"result": "all"}


@pytest.mark.parametrize("inputs", [{"not a name": 1}, {"class": 1}, {"1st": 1}])
async def test_inputs_need_variable_names(inputs):
    result = await run("1", inputs)
    assert "which is not a variable name" in (result.error or "")


@pytest.mark.parametrize("code", ["", "  \n ", "x" * 200_001])
async def test_an_empty_or_too_long_script_is_refused(code):
    result = await run(code)
    assert result.metadata["advice"] == "change_arguments" and "`code`" in (result.error or "")


@pytest.mark.parametrize("settings", [{"seconds": 0}, {"memory_mb": -1}, {"calls": 0}])
def test_an_invalid_configuration_is_refused(settings):
    with pytest.raises(SetupError, match="must be more than 0"):
        PythonExecutorConfig(**settings)
