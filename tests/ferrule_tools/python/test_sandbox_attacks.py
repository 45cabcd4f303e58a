"""Scripts that want out of the sandbox, or more than their share: each ends with a reason, and harms nothing."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import ToolEngine, tool
from ferrule.core.content import encode_json
from ferrule.errors import Retry
from ferrule_tools.python import PythonExecutorConfig, python_executor_tools
from ferrule_tools.python.script import MAX_JSON_BYTES, to_plain_json
from tests.ferrule_tools.python.conftest import PATIENCE
from tests.ferrule_tools.python.processes import children
from tests.support.waiting import until, until_sync

pytestmark = pytest.mark.integration

DOUBLED = "a = []\nfor _ in range(60):\n    a = [a, a]\n"
"""A value that is small in the sandbox, and endless when written out."""


async def run(code, *tools, **config):
    settings = {"seconds": PATIENCE, "memory_mb": 64, **config}
    async with ToolEngine() as engine:
        engine.register(*tools, *python_executor_tools(PythonExecutorConfig(**settings), engine=engine))
        return await engine.execute("python_executor", {"code": code})


async def test_nothing_outside_is_reached():
    attempts = [
        "open('/etc/passwd').read()",
        "open('/tmp/escaped', 'w')",
        "from pathlib import Path\nPath('/etc/passwd').read_text()",
        "import os\nos.listdir('/')",
        "import os\nos.environ['PATH']",
        "import os\nos.getenv('PATH')",
        "import os\nos.system('id')",
        "import os\nos.fork()",
        "import os\nos.kill(1, 9)",
        "import ctypes",
        "import socket",
        "import subprocess",
        "import urllib.request",
        "import importlib",
        "__import__('os')",
        "().__class__.__bases__[0].__subclasses__()",
        "(lambda: 0).__globals__",
        "print.__self__",
        "eval(\"open('/etc/passwd').read()\")",
        "exec('import subprocess')",
        "import sys\nsys.exit(3)",
        "raise SystemExit",
        "raise KeyboardInterrupt",
    ]
    for code in attempts:
        result = await run(code)
        assert not result.is_success and result.error_type == "execution_error", code
        assert "root:" not in (result.error or "") and "  line " in (result.error or ""), code


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "sum(range(10**12))",
        "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass",
        "import time\nwhile True: time.sleep(0.3)",  # it never ends
    ],
)
async def test_an_endless_script_is_stopped(code):
    result = await run(code, seconds=0.3)
    assert result.error_type == "timeout" and "more than 0.3 seconds" in (result.error or "")


async def test_memory_is_limited():
    scripts = [
        "x = []\nwhile True: x.append('x' * 1_000_000)",
        "'x' * 10**12",
        "[0] * 10**10",
        "10 ** 10**9",
        "1 << 10**12",
        "s = 'x'\nwhile True: s += s",
        "d = {}\nfor i in range(10**9): d[i] = str(i)",
        "list(range(5_000_000))",
    ]
    for code in scripts:
        assert "used more than 64 MB" in ((await run(code)).error or ""), code


@pytest.mark.parametrize("code", ["for _ in range(5_000): print('x' * 1_000)", "print('x' * 5_000_000)"])
async def test_a_flood_of_output_is_stopped(code):
    result = await run(code, printed_bytes=10_000)
    assert "printed more than 10,000 bytes" in (result.error or "") and len(result.error or "") < 2_000


@pytest.mark.parametrize(
    "code", [f"{DOUBLED}a", "'x' * 2_000_000", "list(range(300_000))", "[[] for _ in range(200_000)]"]
)
async def test_a_result_that_is_too_large_is_refused(code):
    result = await run(code, memory_mb=256)
    assert "its result cannot be returned" in (result.error or "") and "1,000,000 bytes" in (result.error or "")


@pytest.mark.parametrize(
    "code",
    [
        "a = []\nfor _ in range(100_000):\n    a = [a]\na",
        "a = {}\nfor _ in range(500):\n    a = {'a': a}\na",
    ],
)
async def test_a_result_that_is_too_deep_is_refused(code):
    assert "nested more than 100 deep" in ((await run(code)).error or "")


async def test_a_number_that_would_take_long_to_write_is_not_written():
    code = "from decimal import Decimal, getcontext\ngetcontext().prec = 100_000\n[Decimal(1) / 3] * 2"
    result = (await run(code)).output["result"]
    assert len(result) == 2 and all(text.startswith("a decimal of 42,") for text in result)
    assert (await run("from decimal import Decimal\nDecimal('1.50')")).output == {"result": 1.5}


async def test_a_value_that_contains_itself_is_shown_as_python_would():
    assert (await run("a = [1]\na.append(a)\na")).output == {"result": [1, "[...]"]}
    assert (await run("class A: pass\na = A()\na.a = a\na")).output == {"result": {"a": "..."}}


async def test_an_argument_that_is_too_large_is_refused_in_the_script():
    @tool(read_only=True)
    async def look(at: list[object]) -> int:
        """Look."""
        raise AssertionError("it was called")

    result = await run(f"{DOUBLED}look(a)", look)
    assert "The input of look() is larger than 1,000,000 bytes" in (result.error or "")


@pytest.mark.parametrize("code", ["(" * 20_000, "-" * 50_000 + "1", "[" * 5_000 + "]" * 5_000, "x" + ".y" * 50_000])
async def test_code_that_nests_too_deep_is_harmless(code):
    result = await run(code)
    assert not result.is_success and result.error_type == "execution_error"


async def test_other_calls_run_while_a_script_computes():
    async with ToolEngine() as engine:
        engine.register(*python_executor_tools(PythonExecutorConfig(seconds=60), engine=engine))
        running = asyncio.create_task(engine.execute("python_executor", {"code": "while True: pass"}))
        await until(lambda: children("monty"))
        result = await engine.execute("calculator", {"expression": "6*7"})
        assert result.output == {"result": 42} and not running.done()
        running.cancel()
        await asyncio.wait({running})


async def test_a_cancelled_script_is_killed():
    running = asyncio.create_task(run("while True: pass", seconds=60))
    await until(lambda: children("monty"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    until_sync(lambda: not children("monty"))


async def test_the_timeout_of_the_caller_kills_the_script():
    async with ToolEngine() as engine:
        engine.register(*python_executor_tools(PythonExecutorConfig(seconds=60)))
        result = await engine.execute("python_executor", {"code": "while True: pass"}, timeout=0.3)
        assert result.error_type == "timeout"
        until_sync(lambda: not children("monty"))


async def test_calls_end_with_their_script():
    ended = asyncio.Event()

    @tool(read_only=True)
    async def linger() -> None:
        """Take long."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    result = await run("import asyncio\nawait asyncio.gather(linger(), no_such_tool())", linger)
    assert "no_such_tool" in (result.error or "") and ended.is_set()


async def test_cancelling_at_any_time_leaves_no_process():
    async with ToolEngine() as engine:
        engine.register(*python_executor_tools(engine=engine))
        for milliseconds in range(12):
            running = asyncio.create_task(engine.execute("python_executor", {"code": "calculator('1+1')"}))
            await asyncio.sleep(milliseconds / 1_000)  # any moment will do
            running.cancel()
            await asyncio.wait({running})
            assert running.cancelled() or running.result().is_success
        until_sync(lambda: not children("monty"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    )
)
def test_converted_values_are_plain_json(value):
    converted = to_plain_json(value, what="It")
    assert to_plain_json(converted, what="It") == converted and encode_json(converted)


def test_converting_an_endless_value_ends():
    doubled: list[object] = []
    for _ in range(200):
        doubled = [doubled, doubled]
    for value in (doubled[0:1] * 90, {"a": [""] * MAX_JSON_BYTES}, tuple([b""] * MAX_JSON_BYTES)):
        with pytest.raises(Retry):
            to_plain_json(value, what="It")  # at once, not after hours
