"""Whatever a caller passes and whatever a tool, a subscriber or an argument raises: a result and one record."""

import asyncio
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import count
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import (
    ToolEngine,
    ToolEngineConfig,
    ToolEngineEvent,
    ToolEngineEventType,
    ToolExecutionContext,
    ToolSubAgent,
    UnifiedToolLibrary,
    tool,
)
from ferrule.core.content import copy_json, encode_json, plain_json
from ferrule.core.secrets import Redaction
from ferrule.errors import SetupError
from ferrule.memory.run_memory import RunMemory
from tests.support.engines import engine_with
from tests.support.processes import ROOT, run_python
from tests.support.waiting import until

CONFIG = ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory="no-such-folder")


class Silent:
    """An argument without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Leaving(Silent):
    """An argument that tries to end the process."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class BrokenMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no values")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no names")

    def __len__(self) -> int:
        return 1


def nest(levels: int, kind: type = list) -> Any:
    """A value nested many levels deep."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if kind is dict else kind([value])
    return value


@tool
async def show(value: Any = None) -> str:
    """Show a value."""
    return "shown"


@tool
async def walk(tree: dict[str, Any], items: list[Any] | None = None) -> str:
    """Take a tree."""
    return "walked"


class Node(TypedDict):
    children: "list[Node]"


@tool
async def plant(tree: Node) -> str:
    """Plant a tree."""
    return "planted"


async def call_once(engine: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    result = await engine.execute(*args, **kwargs)
    [record] = await engine.query_call_records()
    assert record.record_id == result.call_id
    assert record.status == ("success" if result.is_success else "failed")
    return result, record


@pytest.mark.parametrize(
    "name", [None, 5, b"show", ["show"], {"a": 1}, Silent(), Leaving(), object], ids=lambda value: type(value).__name__
)
async def test_a_name_that_is_no_text_is_a_validation_error_with_a_record(name):
    for make in (lambda: ToolEngine(CONFIG), lambda: UnifiedToolLibrary(engine=ToolEngine(CONFIG))):
        async with make() as caller:
            engine = caller if isinstance(caller, ToolEngine) else caller.engine
            engine.register(show)
            result = await caller.execute(name, {"value": 1})
            odd: Any = name or 5
            action = await caller.execute("show", {"value": 1}, action=odd)
            assert len(await engine.query_call_records()) == 2
        assert (result.error_type, action.error_type) == ("validation_error", "validation_error")
        assert "name of the tool must be text" in result.text
        assert "name of the action must be text" in action.text


@pytest.mark.parametrize(
    "params",
    [5, "x", [1], Silent(), Leaving(), BrokenMapping(), {1: 2}, {Silent: 1}, {"value": Leaving()}],
    ids=lambda value: type(value).__name__,
)
async def test_odd_arguments_have_a_result_and_a_record(params):
    events: list[ToolEngineEvent] = []
    async with engine_with(show, config=CONFIG) as engine:
        engine.subscribe(events.append)
        result, _ = await call_once(engine, "show", params)
    assert result.is_success or result.error_type == "validation_error"
    assert [e.event_type for e in events][-1] is ToolEngineEventType.AFTER_TOOL_CALL


@pytest.mark.parametrize(
    "value",
    [Silent(), Leaving(), [Silent()], {"a": Leaving()}, {Silent()}, ValueError(Silent()), count()],
    ids=lambda value: type(value).__name__,
)
async def test_a_value_without_a_text_keeps_the_record_of_its_call(value):
    @tool
    async def keep(value: Any = None, password: str = "") -> Any:
        """Give it back."""
        return value

    async with engine_with(keep, config=CONFIG) as engine:
        result, record = await call_once(engine, "keep", {"value": value, "password": "hunter2 hunter2"})
    assert result.call_id and "hunter2" not in str(record.params)


async def test_unknown_names_with_odd_arguments_are_recorded():
    async with ToolEngine(CONFIG) as engine:
        result, record = await call_once(engine, "nothing", {Silent: 1, 5: Silent()})
    assert (result.error_type, record.tool_name) == ("tool_not_found", "nothing")


@pytest.mark.parametrize(
    "timeout",
    ["5", math.nan, 0, -1, Decimal(5), [1], 10**400, 10**9000, object()],
    ids=lambda value: type(value).__name__,
)
async def test_a_timeout_that_is_no_positive_number_is_a_clear_error(timeout):
    async with engine_with(show, config=CONFIG) as engine:
        with pytest.raises(SetupError, match="timeout must be more than 0 seconds"):
            await engine.execute("show", timeout=timeout)
        with pytest.raises(SetupError, match="timeout must be more than 0 seconds"):
            await engine.execute("show", context=ToolExecutionContext(timeout=timeout))
        assert (await engine.execute("show", timeout=math.inf)).is_success


async def test_a_context_or_batch_of_another_type_is_a_clear_error():
    other: Any = {"caller_id": "me"}
    async with ToolEngine(CONFIG) as engine:
        with pytest.raises(SetupError, match="ToolExecutionContext"):
            await engine.execute("show", {}, other)
        calls: list[Any] = [("show",), 5, {"tool": "show"}]
        for call in calls:
            with pytest.raises(SetupError, match="call of a batch"):
                await engine.execute_batch([call])


# What is raised


@pytest.mark.parametrize("raised", [SystemExit(1), GeneratorExit(), asyncio.CancelledError(), BaseException("x")])
@pytest.mark.parametrize("isolation", [None, "thread", "inline"])
async def test_no_exception_of_a_tool_leaves_its_call(raised, isolation):
    async def leave_later() -> None:
        """Raise."""
        raise raised

    def leave() -> None:
        """Raise."""
        raise raised

    async with ToolEngine(CONFIG) as engine:
        engine.register(
            tool(name="leave")(leave_later) if isolation is None else tool(name="leave", isolation=isolation)(leave)
        )
        result, _ = await call_once(engine, "leave")
    assert result.error_type == "execution_error"


async def test_a_thread_that_raises_keyboard_interrupt_is_not_ctrl_c():
    @tool(isolation="thread")
    def leave() -> None:
        """Raise."""
        raise KeyboardInterrupt

    async with engine_with(leave, config=CONFIG) as engine:
        result, _ = await call_once(engine, "leave")
    assert "KeyboardInterrupt" in result.error


async def test_ctrl_c_in_a_tool_reaches_the_caller_and_is_recorded():
    @tool
    async def leave() -> None:
        """Raise."""
        raise KeyboardInterrupt

    async with engine_with(leave, config=CONFIG) as engine:
        with pytest.raises(KeyboardInterrupt):
            await engine.execute("leave")
        [record] = await engine.query_call_records()
    assert record.status == "cancelled"


async def test_a_caller_whose_coroutine_is_closed_is_recorded():
    started = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait."""
        started.set()
        await asyncio.Event().wait()

    async with engine_with(wait, config=CONFIG) as engine:

        async def call() -> None:
            await engine.execute("wait")

        coroutine = call()
        task = asyncio.current_task()
        assert task is not None
        # Run by hand up to its first wait, then closed, as the garbage collector closes a coroutine of a lost task.
        coroutine.send(None)
        assert started.is_set()
        await asyncio.to_thread(coroutine.close)
        [record] = await engine.query_call_records()
    assert record.status == "cancelled"


@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, asyncio.CancelledError, BaseException, ValueError])
@pytest.mark.parametrize("kind", ["sync", "async", "filter"])
async def test_nothing_that_a_subscriber_raises_ends_the_call(raised, kind):
    seen: list[ToolEngineEventType] = []

    def watch(event: ToolEngineEvent) -> bool:
        seen.append(event.event_type)
        raise raised("from the subscriber")

    async def watch_later(event: ToolEngineEvent) -> None:
        watch(event)

    async with engine_with(show, config=CONFIG) as engine:
        if kind == "filter":
            engine.subscribe(lambda event: None, watch)
        else:
            engine.subscribe(watch if kind == "sync" else watch_later)
        result, _ = await call_once(engine, "show", {"value": 1})
        await until(lambda: ToolEngineEventType.AFTER_TOOL_CALL in seen)
    assert result.is_success


async def test_progress_callbacks_and_memories_that_leave_do_not_end_the_call():
    class LeavingMemory:
        def find_result(self, *args: Any) -> None:
            raise SystemExit

        def record_result(self, *args: Any) -> None:
            raise SystemExit

    def leave(progress: Any) -> None:
        raise SystemExit

    @tool
    async def report(context: ToolExecutionContext) -> str:
        """Report."""
        context.progress(0.5)
        return "done"

    async with engine_with(report, config=CONFIG) as engine:
        assert (await engine.execute("report", on_progress=leave)).text == "done"
        assert (await engine.execute("report", context=ToolExecutionContext(memory=LeavingMemory()))).text == "done"


# Depth


@pytest.mark.parametrize("levels", [260, 20_000])
@pytest.mark.parametrize("kind", [list, dict, tuple])
async def test_arguments_nested_too_deep_are_a_validation_error_everywhere(levels, kind):
    memory, events = RunMemory(), list[ToolEngineEvent]()
    async with UnifiedToolLibrary(engine=ToolEngine(CONFIG)) as library:
        engine = library.engine
        engine.register(show, walk)
        engine.subscribe(events.append)
        agent = ToolSubAgent("agent", engine, caller=library, memory=memory)
        deep = nest(levels, kind)
        results = [
            await engine.execute("show", {"value": deep}),
            await library.execute("show", {"value": deep}),
            await library.execute("show", {"values": deep}),
            await library.execute("walk", {"tree": {"a": deep}, "items": [deep]}),
            await engine.execute("show", {"value": deep}, ToolExecutionContext(memory=memory)),
            await agent.execute("show", {"value": deep}),
            await agent.execute("nothing", {"value": deep}),
        ]
        records = await engine.query_call_records()
    assert len(records) == len(results)
    *checked, unknown = results
    assert {r.error_type for r in checked if not r.is_success} == {"validation_error"}
    assert sum(r.is_success for r in checked) <= 1  # `values` is no parameter of `show`: it is dropped
    assert "nested deeper than 250 levels" in checked[0].text
    assert unknown.error_type == "tool_not_found"
    assert len(events) >= 2 * len(results)


async def test_a_schema_that_contains_itself_does_not_crash_on_deep_arguments():
    tree: dict[str, Any] = {"children": []}
    for _ in range(20_000):
        tree = {"children": [tree]}
    async with engine_with(plant, config=CONFIG) as engine:
        result, _ = await call_once(engine, "plant", {"tree": tree})
        assert (await engine.execute("plant", {"tree": {"children": [{"children": []}]}})).is_success
    assert result.error_type == "validation_error"


@pytest.mark.parametrize("levels", [260, 20_000])
def test_deep_values_are_encoded_copied_and_redacted(levels):
    for kind in (list, dict, tuple):
        deep = nest(levels, kind)
        assert encode_json(deep) and encode_json({"password": "x", "a": deep}, sort_keys=True)
        plain_json(deep)
        copy_json({"a": deep})
        redaction = Redaction()
        cleaned = redaction.redact_params({"a": deep, "token": "abcdefgh"}, frozenset({"token"}), ("abcdefgh",))
        assert cleaned["token"] == "[redacted]"
        assert redaction.find_secrets({"a": deep}, frozenset({"a"})) is not None


ODD_VALUES: list[Any] = [
    *(Silent(), Leaving(), BrokenMapping(), nest(1_500), nest(400, dict), nest(400, tuple), object, math.nan, 10**5000),
    *("\0", "\ud800", b"x", {Silent()}, lambda: 1),
]
# A failing example shows the number and not the value.
ODD = st.integers(0, len(ODD_VALUES) - 1).map(lambda number: ODD_VALUES[number])
VALUES = st.recursive(
    st.one_of(ODD, st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(
    name=st.one_of(st.sampled_from(["show", "walk", "sync"]), VALUES),
    params=st.one_of(VALUES, st.fixed_dictionaries({"value": VALUES})),
    action=st.one_of(st.none(), VALUES),
    strict=st.booleans(),
)
def test_whatever_is_passed_there_is_one_result_and_one_record(name, params, action, strict):
    @tool(isolation="inline")
    def sync(value: Any = None) -> Any:
        """Give it back."""
        return value

    async def main() -> None:
        config = ToolEngineConfig(
            builtin_tools=False, auto_reload=False, tools_directory="no-such-folder", strict_validation=strict
        )
        async with UnifiedToolLibrary(engine=ToolEngine(config)) as library:
            library.engine.register(show, walk, sync)
            library.engine.subscribe(lambda event: None)
            for caller in (library.engine, library):
                before = len(await library.engine.query_call_records())
                result = await caller.execute(name, params, action=action)
                records = await library.engine.query_call_records()
                assert len(records) == before + 1
                assert result.is_success or result.error

    asyncio.run(main())


DEEP_TUPLES = """
import asyncio
from ferrule import ToolEngine, ToolEngineConfig, ToolExecutionContext, tool
from ferrule.core.content import Output
from ferrule.store import ToolCallRecord

deep = 1
for _ in range(20_000):
    deep = (deep,)

@tool(isolation="inline")
async def answer(value=deep):
    "Return a value."
    return Output(data={"value": deep})

async def main():
    config = ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory="no-such-folder")
    async with ToolEngine(config) as engine:
        engine.register(answer)
        [capability] = engine.registry.get("answer").spec.capabilities
        assert "default" not in capability.schema["properties"]["value"]
        assert (await engine.execute("answer", {})).is_success
        await engine.execute("answer", {"value": deep})
        record = ToolCallRecord("call", "answer", {"value": deep}, result={"a": deep}, metadata={"a": deep})
        engine.store.record_finished(record)
        context = ToolExecutionContext(caller_id=deep, conversation_id=deep, workflow_id=deep, tool_call_id=deep)
        assert (await engine.execute("answer", {}, context)).call_id
        assert (await engine.execute("answer", {}, ToolExecutionContext(caller_type=deep))).call_id
        engine.store.write_entry("stream", "key", deep)
        assert len(await engine.query_call_records()) == 5
        assert list(await engine.store.read_entries("stream")) == ["key"]

asyncio.run(main())
print("done")
"""


@pytest.mark.integration
def test_tuples_nested_thousands_deep_do_not_crash_the_process():
    child = run_python("-c", DEEP_TUPLES, cwd=ROOT)
    assert (child.returncode, child.stdout) == (0, "done\n"), child.stderr[-2000:]
