"""Arguments that are too large are refused."""

from collections.abc import Callable
from typing import Any

import pytest

from ferrule import ToolEngineConfig, tool
from ferrule.core.content import is_larger_than
from tests.support.engines import engine_with


@tool
async def take(value: Any = None) -> int:
    """Take a value."""
    return len(value)


def config(**options: Any) -> ToolEngineConfig:
    return ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory="no-such-folder", **options)


# Functions, so that no process has the values longer than a test takes.
VALUES: dict[str, Callable[[], Any]] = {
    "text": lambda: "a" * 11_000_000,
    "many texts": lambda: ["b" * 1000] * 50_000,
    "numbers": lambda: [1] * 11_000_000,
    "objects": lambda: [{"name": "x"}] * 2_000_000,
    "bytes": lambda: b"x" * 11_000_000,
}


@pytest.mark.parametrize("kind", VALUES)
async def test_large_arguments_are_a_validation_error(kind):
    async with engine_with(take, config=config()) as engine:
        engine.subscribe(lambda event: None)
        result = await engine.execute("take", {"value": VALUES[kind]()})
        [record] = await engine.query_call_records()
    assert result.error_type == "validation_error" and "10,000,000 bytes" in result.text
    assert record.params == {"value": "[not recorded]"}


@pytest.mark.parametrize("make", [lambda: dict.fromkeys(map(str, range(1_000_000)), 1), lambda: {"n" * 11_000_000: 1}])
async def test_of_too_many_and_too_long_names_only_some_are_recorded(make):
    arguments = make()
    async with engine_with(take, config=config()) as engine:
        assert (await engine.execute("take", arguments)).error_type == "validation_error"
        assert (await engine.execute("missing", arguments)).error_type == "validation_error"
        await engine.store.flush()
        for record in await engine.store.query_call_records():
            assert len(record.params) <= 100 and max(map(len, record.params)) <= 200


async def test_the_limit_can_be_set():
    async with engine_with(take, config=config(max_input=100)) as engine:
        assert (await engine.execute("take", {"value": "x" * 90})).is_success
        assert (await engine.execute("take", {"value": ["x" * 60, "y" * 60]})).error_type == "validation_error"


def test_a_size_is_estimated_from_texts_and_items():
    assert not is_larger_than({"a": "x" * 50, "b": [1, 2]}, 100)
    assert is_larger_than({"a": "x" * 101}, 100)
    assert is_larger_than([[[[0] * 10] * 10] * 10], 100)
