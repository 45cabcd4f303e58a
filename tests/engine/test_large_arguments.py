"""Arguments that are too large are refused without holding up the event loop."""

import asyncio
import time
from typing import Any

import pytest

from ferrule import ToolEngine, ToolEngineConfig, tool
from ferrule.core.content import is_larger_than


@tool
async def take(value: Any = None) -> int:
    """Take a value."""
    return len(value)


VALUES: dict[str, Any] = {
    "text": "a" * 50_000_000,
    "many texts": ["b" * 1000] * 50_000,
    "numbers": list(range(5_000_000)),
    "objects": [{"name": "x"}] * 2_000_000,
    "bytes": b"x" * 50_000_000,
}


@pytest.mark.parametrize("kind", VALUES)
async def test_large_arguments_are_a_validation_error_that_costs_little(kind):
    longest, last, is_over = 0.0, time.perf_counter(), False

    async def watch() -> None:
        nonlocal longest, last
        while not is_over:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    config = ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory="no-such-folder")
    async with ToolEngine(config) as engine:
        engine.register(take)
        engine.subscribe(lambda event: None)
        watcher = asyncio.create_task(watch())
        await asyncio.sleep(0)
        result = await engine.execute("take", {"value": VALUES[kind]})
        is_over = True
        await watcher
        [record] = await engine.query_call_records()
    assert result.error_type == "validation_error" and "10,000,000 bytes" in result.text
    assert record.params == {"value": "[not recorded]"}
    assert longest < 2.0


@pytest.mark.parametrize("arguments", [{str(number): 1 for number in range(1_500_000)}, {"n" * 50_000_000: 1}])
async def test_of_too_many_and_too_long_names_only_some_are_recorded(arguments):
    config = ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory="no-such-folder")
    async with ToolEngine(config) as engine:
        engine.register(take)
        assert (await engine.execute("take", arguments)).error_type == "validation_error"
        assert (await engine.execute("missing", arguments)).error_type == "validation_error"
        await engine.store.flush()
        for record in await engine.store.query_call_records():
            assert len(record.params) <= 100 and max(map(len, record.params)) <= 200


async def test_the_limit_can_be_set():
    config = ToolEngineConfig(builtin_tools=False, tools_directory="no-such-folder", max_input=100)
    async with ToolEngine(config) as engine:
        engine.register(take)
        assert (await engine.execute("take", {"value": "x" * 90})).is_success
        assert (await engine.execute("take", {"value": ["x" * 60, "y" * 60]})).error_type == "validation_error"


def test_a_size_is_estimated_from_texts_and_items():
    assert not is_larger_than({"a": "x" * 50, "b": [1, 2]}, 100)
    assert is_larger_than({"a": "x" * 101}, 100)
    assert is_larger_than([[[[0] * 10] * 10] * 10], 100)
