"""Arguments that are too large are refused."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ferrule import Principal, ToolCapability, ToolEngineConfig, ToolExecutionContext, tool
from ferrule.catalog.validation import ToolParameterValidator
from ferrule.core.content import is_larger_than
from tests.support.engines import engine_with
from tests.support.waiting import is_running, until, until_sync


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
        assert (await engine.execute("take", {"value": "x" * 80})).is_success
        assert (await engine.execute("take", {"value": ["x" * 60, "y" * 60]})).error_type == "validation_error"


def test_a_size_is_estimated_from_texts_and_items():
    assert not is_larger_than({"a": "x" * 50, "b": [1, 2]}, 100)
    assert is_larger_than({"a": "x" * 101}, 100)
    assert is_larger_than([[[[0] * 10] * 10] * 10], 100)


# The first two take seconds for thousands of letters. The third takes no time, but nobody can tell without trying it.
SLOW_PATTERN, POSSESSIVE_PATTERN, LONG_PATTERN = r"(\w{1,100}){1,100}b", r"(\w*)*+\d", r"^[a-z ]{1,3000}$"


ECHO = """
name: match
description: Match.
category: custom
entry: {type: builtin, handler: echo}
parameters:
  text: {type: string, pattern: '%s', required: true}
  times: {type: integer, default: 2}
"""


def config_with(pattern: str, folder: Path) -> ToolEngineConfig:
    (folder / "match.yaml").write_text(ECHO % pattern)
    return ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory=str(folder))


@pytest.mark.integration
@pytest.mark.parametrize("pattern", [SLOW_PATTERN, POSSESSIVE_PATTERN])
async def test_arguments_that_are_slow_to_check_time_out_and_hold_up_nobody_else(tmp_path, pattern: str):
    async with engine_with(take, config=config_with(pattern, tmp_path)) as engine:
        result = await engine.execute("match", {"text": "x" * 200_000}, timeout=2)
        slow = asyncio.create_task(engine.execute("match", {"text": "x" * 200_000}, timeout=120))
        for _ in range(100):
            assert (await engine.execute("take", {"value": "abc"})).is_success
            await asyncio.sleep(0.01)  # the check begins meanwhile, in a process
        assert not slow.done()
        slow.cancel()
        checked = engine.check(engine.registry.find("match")[0], {"text": "x" * 200_000})
    assert result.error_type == "timeout" and "2 s" in result.text
    assert not checked.is_valid and "too long to be matched" in str(checked.errors[0])


@pytest.mark.integration
async def test_long_texts_are_checked_in_a_process_as_others_are(tmp_path):
    async with engine_with(config=config_with(LONG_PATTERN, tmp_path)) as engine:
        good = await engine.execute("match", {"text": "a" * 2_000, "unknown": 1})
        coerced = await engine.execute("match", {"text": "a" * 2_000, "times": "3"})
        bad = await engine.execute("match", {"text": "A" * 2_000})
    assert good.output == {"text": "a" * 2_000, "times": 2} and coerced.output["times"] == 3
    assert good.metadata["ignored_params"] == ["unknown"]
    assert bad.error_type == "validation_error" and "must match the pattern" in bad.text


def find_check_processes() -> set[int]:
    """The processes on this machine that check values, which is what their command lines say."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if b"ferrule.process.checks" in (process / "cmdline").read_bytes() and is_running(int(process.name)):
                found.add(int(process.name))
    return found


def find_children(parent: int) -> set[int]:
    children = set()
    for pid in find_check_processes():
        with suppress(OSError):
            if int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1]) == parent:
                children.add(pid)
    return children


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes as Linux lists them")


@needs_proc
@pytest.mark.integration
@pytest.mark.parametrize("stop", ["cancel", "close"])
async def test_a_call_whose_arguments_are_being_checked_can_be_stopped(tmp_path, stop: str):
    call_ids: list[str] = []
    async with engine_with(config=config_with(SLOW_PATTERN, tmp_path)) as engine:
        engine.subscribe(lambda event: call_ids.append(event.call_id or ""))
        slow = asyncio.create_task(engine.execute("match", {"text": "x" * 200_000}, timeout=600))
        await until(lambda: find_children(os.getpid()))
        if stop == "cancel":
            assert engine.cancel(call_ids[0])
        else:
            await engine.aclose()
        result = await slow
        assert not find_children(os.getpid())
        if stop == "cancel":
            [record] = await engine.query_call_records()
            assert record.error_type == "cancelled"
    assert result.error_type == "cancelled"


@needs_proc
@pytest.mark.integration
async def test_a_call_whose_check_has_ended_is_not_made_by_a_closed_engine(tmp_path):
    async with engine_with(config=config_with(LONG_PATTERN, tmp_path)) as engine:
        call = asyncio.create_task(engine.execute("match", {"text": "a" * 2_000}))
        await until(lambda: find_children(os.getpid()))
        [check] = find_children(os.getpid())
        os.kill(check, signal.SIGSTOP)  # it does not end before its whole question is written
        for _ in range(100):
            await asyncio.sleep(0)
        os.kill(check, signal.SIGCONT)
        until_sync(lambda: not is_running(check))  # without the event loop, which learns of its end while it closes
        await engine.aclose()
        result = await call
    assert result.error_type == "cancelled" and "closed" in result.text


@needs_proc
@pytest.mark.integration
async def test_slow_checks_of_one_principal_do_not_keep_others_from_theirs(tmp_path):
    slow_tools, fast_tools = tmp_path / "slow", tmp_path / "fast"
    slow_tools.mkdir()
    fast_tools.mkdir()
    ada, bob = (ToolExecutionContext(principal=Principal(kind="token", name=name)) for name in ("ada", "bob"))
    async with (
        engine_with(config=config_with(SLOW_PATTERN, slow_tools)) as engine,
        engine_with(config=config_with(LONG_PATTERN, fast_tools)) as other,
    ):
        calls = [engine.execute("match", {"text": "x" * 200_000}, ada, timeout=600) for _ in range(4)]
        slow = [asyncio.create_task(call) for call in calls]
        await until(lambda: find_children(os.getpid()))
        result = await other.execute("match", {"text": "a" * 2_000}, bob)
        assert result.is_success and len(find_children(os.getpid())) == 1
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
    assert not find_children(os.getpid())


ENGINE_PROGRAM = """
import asyncio, sys
from ferrule import ToolEngine, ToolEngineConfig

async def main():
    config = ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory=sys.argv[1])
    async with ToolEngine(config) as engine:
        await engine.execute("match", {"text": "x" * 200_000}, timeout=600)

asyncio.run(main())
"""


@needs_proc
@pytest.mark.integration
def test_a_check_ends_with_a_process_that_is_killed(tmp_path):
    config_with(SLOW_PATTERN, tmp_path)
    program = subprocess.Popen([sys.executable, "-c", ENGINE_PROGRAM, str(tmp_path)], cwd=tmp_path)
    try:
        until_sync(lambda: find_children(program.pid))
        [check] = find_children(program.pid)
        # Until it has read its question it would end by itself: its work uses the processor for longer than loading.
        until_sync(
            lambda: sum(map(int, Path(f"/proc/{check}/stat").read_text().rpartition(")")[2].split()[11:13])) > 300
        )
    finally:
        program.kill()
        program.wait()
    until_sync(lambda: not is_running(check))


async def test_many_wrong_values_are_refused_without_a_list_of_their_errors():
    @tool
    async def add_up(numbers: list[int]) -> int:
        """Add numbers."""
        return sum(numbers)

    async with engine_with(add_up, config=config()) as engine:
        result = await engine.execute("add_up", {"numbers": ["x"] * 50_000})
        few = await engine.execute("add_up", {"numbers": ["x"]})
    assert result.error_type == "validation_error" and "match none of the allowed forms" in result.text
    assert few.error_type == "validation_error" and "numbers[0]" in few.text


def test_a_long_default_is_not_matched_with_a_pattern_here():
    text = {"type": "string", "pattern": LONG_PATTERN, "default": "a" * 2_000}
    capability = ToolCapability("match", "Match.", {"type": "object", "properties": {"text": text}})
    checked = ToolParameterValidator().validate(capability, {})
    assert not checked.is_valid and "too long to be matched" in str(checked.errors[0])


def test_many_values_with_many_alternatives_are_not_read_in_another_way():
    options = [{"type": "integer", "maximum": number} for number in range(500)]
    schema = {"type": "object", "properties": {"numbers": {"type": "array", "items": {"anyOf": options}}}}
    validator, capability = ToolParameterValidator(), ToolCapability("add", "", schema)
    assert validator.validate(capability, {"numbers": ["1"] * 10}).validated_params == {"numbers": [1] * 10}
    [error] = validator.validate(capability, {"numbers": ["1"] * 1_000}).errors
    assert error.message == "the arguments match none of the allowed forms."


def test_many_values_are_not_compared_with_other_spellings_of_many_options():
    names = {"type": "array", "items": {"enum": [f"Name {number}" for number in range(9_000)]}}
    capability = ToolCapability("choose", "", {"type": "object", "properties": {"names": names}})
    validator = ToolParameterValidator()
    assert validator.validate(capability, {"names": ["name 8999"] * 20}).validated_params == {
        "names": ["Name 8999"] * 20
    }
    assert validator.validate(capability, {"names": ["Name 8999"] * 10_000}).is_valid
    [error] = validator.validate(capability, {"names": ["name 8999"] * 10_000}).errors
    assert error.message == "the arguments match none of the allowed forms."


def test_of_many_wrong_or_missing_names_only_some_are_explained():
    names = {f"name_{number}": {"type": "string"} for number in range(3_000)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    validator, unknown = ToolParameterValidator(), {f"nam_{number}": "x" for number in range(300)}
    errors = validator.validate(ToolCapability("write", "", schema), unknown).errors
    assert len(errors) == 20 and "did you mean 'name_" in errors[0].hint.lower()
    open_schema = {"type": "object", "properties": names}
    assert len(ToolParameterValidator(strict=True).validate(ToolCapability("a", "", open_schema), unknown).errors) == 20
    rows = {"type": "array", "items": {"type": "object", "required": list(names)}}
    capability = ToolCapability("save", "", {"type": "object", "properties": {"rows": rows}})
    [error] = validator.validate(capability, {"rows": [{}] * 1_000}).errors
    assert error.message == "the arguments match none of the allowed forms."
    assert validator.validate(capability, {"rows": [{}]}).errors[0].path == "rows[0].name_0"
