"""Scripts that want out of the sandbox, or more than their share: each ends with a reason, and harms nothing."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule import ToolEngine, tool
from ferrule.content import encode_json
from ferrule.errors import Retry
from ferrule.tools.python_executor import PythonExecutorConfig, python_executor_tools
from ferrule.tools.python_executor.plain_value import MOST, plain_value
from tests.tools.python_executor.leftovers import children, gone

DOUBLED = "a = []\nfor _ in range(60):\n    a = [a, a]\n"
"""A value that is small where it is made, and endless where it is written down."""


async def run(code, *tools, **config):
    said = {"seconds": 1.0, "memory_mb": 64, **config}
    async with ToolEngine() as engine:
        engine.register(*tools, *python_executor_tools(PythonExecutorConfig(**said), engine=engine))
        return await engine.execute("python_executor", {"code": code})


@pytest.mark.parametrize(
    "code",
    [
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
    ],
)
async def test_nothing_outside_is_reached(code):
    result = await run(code)
    assert not result.is_success and result.error_type == "execution_error"
    assert "root:" not in (result.error or "") and "  line " in (result.error or "")


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "sum(range(10**12))",
        "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass",
        "import time\nwhile True: time.sleep(0.3)",
    ],
)
async def test_a_script_without_end_is_stopped(code):
    result = await run(code, seconds=0.5)
    assert result.error_type == "timeout" and "more than 0.5 seconds" in (result.error or "")


@pytest.mark.parametrize(
    "code",
    [
        "x = []\nwhile True: x.append('x' * 1_000_000)",
        "'x' * 10**12",
        "[0] * 10**10",
        "10 ** 10**9",
        "1 << 10**12",
        "s = 'x'\nwhile True: s += s",
        "d = {}\nfor i in range(10**9): d[i] = str(i)",
        "list(range(5_000_000))",
    ],
)
async def test_a_script_that_wants_all_memory_is_stopped(code):
    result = await run(code)
    assert "used more than 64 MB" in (result.error or "")


@pytest.mark.parametrize("code", ["while True: print('x' * 1_000)", "print('x' * 5_000_000)"])
async def test_a_flood_of_output_is_stopped(code):
    result = await run(code, printed_bytes=10_000)
    assert "printed more than 10,000 bytes" in (result.error or "") and len(result.error or "") < 2_000


@pytest.mark.parametrize(
    "code", [f"{DOUBLED}a", "'x' * 2_000_000", "list(range(300_000))", "[[] for _ in range(200_000)]"]
)
async def test_a_result_that_is_too_large_is_not_taken(code):
    result = await run(code, memory_mb=256)
    assert "its result cannot be handed on" in (result.error or "") and "1,000,000 bytes" in (result.error or "")


@pytest.mark.parametrize(
    "code",
    [
        "a = []\nfor _ in range(100_000):\n    a = [a]\na",
        "a = {}\nfor _ in range(500):\n    a = {'a': a}\na",
    ],
)
async def test_a_result_that_is_too_deep_is_not_taken(code):
    assert "nested more than 100 deep" in ((await run(code)).error or "")


async def test_a_number_that_would_take_long_to_write_is_not_written():
    code = "from decimal import Decimal, getcontext\ngetcontext().prec = 100_000\n[Decimal(1) / 3] * 2"
    told = (await run(code)).output["result"]
    assert len(told) == 2 and all(one.startswith("a decimal of 42,") for one in told)
    assert (await run("from decimal import Decimal\nDecimal('1.50')")).output == {"result": "1.50"}


async def test_a_value_that_holds_itself_is_told_as_python_would():
    assert (await run("a = [1]\na.append(a)\na")).output == {"result": [1, "[...]"]}
    assert (await run("class A: pass\na = A()\na.a = a\na")).output == {"result": {"a": "..."}}


async def test_an_argument_that_is_too_large_is_refused_in_the_script():
    @tool(read_only=True)
    async def look(at: list[object]) -> int:
        """Look."""
        raise AssertionError("it was called")

    result = await run(f"{DOUBLED}look(a)", look)
    assert "What look() is given is larger than 1,000,000 bytes" in (result.error or "")


@pytest.mark.parametrize("code", ["(" * 20_000, "-" * 50_000 + "1", "[" * 5_000 + "]" * 5_000, "x" + ".y" * 50_000])
async def test_code_that_nests_too_deep_breaks_nothing(code):
    result = await run(code)
    assert not result.is_success and result.error_type == "execution_error"


async def test_others_go_on_while_a_script_computes():
    beats = 0
    running = asyncio.create_task(run("while True: pass", seconds=0.5))
    while not running.done():
        await asyncio.sleep(0.01)
        beats += 1
    assert (await running).error_type == "timeout" and beats > 10


async def test_a_cancelled_script_is_killed():
    running = asyncio.create_task(run("while True: pass", seconds=60))
    while not children("monty"):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gone(lambda: children("monty"))


async def test_a_time_out_of_the_caller_kills_too():
    async with ToolEngine() as engine:
        engine.register(*python_executor_tools(PythonExecutorConfig(seconds=60)))
        result = await engine.execute("python_executor", {"code": "while True: pass"}, timeout=0.3)
        assert result.error_type == "timeout" and gone(lambda: children("monty"))


async def test_calls_end_with_their_script():
    ended = asyncio.Event()

    @tool(read_only=True)
    async def linger() -> None:
        """Take long."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    result = await run("import asyncio\nawait asyncio.gather(linger(), no_such_tool())", linger)
    assert "no_such_tool" in (result.error or "") and ended.is_set()


async def test_cancelling_at_any_moment_leaves_nothing_behind():
    async with ToolEngine() as engine:
        engine.register(*python_executor_tools(engine=engine))
        for milliseconds in range(12):
            running = asyncio.create_task(engine.execute("python_executor", {"code": "calculator('1+1')"}))
            await asyncio.sleep(milliseconds / 1_000)
            running.cancel()
            await asyncio.wait({running})
        assert gone(lambda: children("monty"))


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    )
)
def test_what_is_taken_over_is_plain_json(value):
    taken = plain_value(value, what="It")
    assert plain_value(taken, what="It") == taken and encode_json(taken)


def test_taking_over_an_endless_value_ends_soon():
    doubled: list[object] = []
    for _ in range(200):
        doubled = [doubled, doubled]
    for value in (doubled[0:1] * 90, {"a": [""] * MOST}, tuple([b""] * MOST)):
        started = time.process_time()
        with pytest.raises(Retry):
            plain_value(value, what="It")
        assert time.process_time() - started < 5  # not hours
