"""Calls that are cancelled or raced, odd exceptions, shared values, closed loops. All tests run in virtual time."""

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pydantic
import pytest

from ferrule import (
    ConcurrencyConfig,
    Refuse,
    Secret,
    ToolCapability,
    ToolEngine,
    ToolEngineConfig,
    ToolEngineEvent,
    ToolExecutionContext,
    ToolSubAgent,
    Transient,
    tool,
)
from ferrule.catalog.registry import ToolRegistry
from ferrule.engine.resilience import BreakerConfig, RetryPolicy
from ferrule.errors import ToolNotFound
from ferrule.kinds.function.tools import tool_of
from tests.support.engines import engine_with
from tests.support.virtual_time import virtual_time
from tests.support.waiting import until

anyio_backend = virtual_time


def make_nap(**options: Any) -> Any:
    """A tool of its own: options of a decorator stay with the function that is decorated."""

    async def nap(seconds: float = 0.0) -> str:
        """Sleep."""
        await asyncio.sleep(seconds)  # virtual
        return "rested"

    return tool(**options)(nap)


nap = make_nap()


async def test_the_deadline_of_an_ended_call_never_comes_back():
    nested_calls = []

    @tool(timeout=1)
    async def outer(context: ToolExecutionContext) -> str:
        """Leave a call behind."""
        nested_calls.append(asyncio.create_task(context.call_tool("nap")))
        await asyncio.sleep(0.5)  # virtual
        return "ok"

    async with engine_with(
        outer, make_nap(bucket="bed"), concurrency=ConcurrencyConfig(max_concurrent=2, bucket_limits={"bed": 1})
    ) as engine:
        hog = asyncio.create_task(engine.execute("nap", {"seconds": 3}))
        await asyncio.sleep(0.1)  # virtual: it has the slot
        assert (await engine.execute("outer")).is_success
        await asyncio.sleep(15)  # virtual: cancelled here, if the deadline came back
        await asyncio.gather(hog, *nested_calls)


async def test_a_cancellation_is_not_lost_when_the_tool_fails_while_it_is_cancelled():
    @tool
    async def untidy() -> None:
        """Fail while cleaning up."""
        try:
            await asyncio.sleep(5)  # virtual
        finally:
            raise RuntimeError("cleaning up failed")

    async with engine_with(untidy) as engine:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await engine.execute("untidy")


async def test_a_call_made_while_its_task_is_being_cancelled_still_gives_a_result():
    async with engine_with(nap) as engine:

        async def clean_up() -> Any:
            try:
                await asyncio.sleep(5)  # virtual
            except asyncio.CancelledError:
                return await engine.execute("nap", {"seconds": 5}, timeout=1)

        task = asyncio.create_task(clean_up())
        await asyncio.sleep(1)  # virtual
        task.cancel()
        assert (await task).error_type == "timeout"


class Odd(Refuse):
    def __init__(self, code: int) -> None:
        self.code = code


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Base(BaseException):
    pass


@pytest.mark.parametrize(
    "raised", [Odd(5), Mute(), Base("x"), ExceptionGroup("g", [ValueError("a")]), StopIteration(1)]
)
async def test_whatever_a_tool_raises_is_a_result_with_a_record(raised):
    @tool
    async def odd() -> None:
        """Raise."""
        raise raised

    async with engine_with(odd) as engine:
        result = await engine.execute("odd")
        [record] = await engine.query_call_records()
    assert (result.is_success, record.status) == (False, "failed")
    assert result.error


async def test_what_a_tool_or_caller_does_to_its_arguments_and_results_stays_its_own():
    @tool(cacheable=True)
    async def first(items: list[int]) -> dict[str, Any]:
        """Take the first."""
        value = items[0]
        items.sort()
        return {"value": value, "all": items}

    async with engine_with(first) as engine:
        mine = {"items": [3, 1, 2]}
        result = await engine.execute("first", mine)
        result.output["all"].append("spoilt")
        again = await engine.execute("first", {"items": [3, 1, 2]})
        other = await engine.execute("first", {"items": [1, 2, 3]})
    assert mine == {"items": [3, 1, 2]}
    assert again.output == {"value": 3, "all": [1, 2, 3]}
    assert (other.output["value"], other.metadata.get("cached")) == (1, None)


async def test_each_attempt_gets_the_arguments_as_they_came():
    batch_sizes = []

    @tool(idempotent=True)
    async def eat(items: list[int]) -> int:
        """Use up the list."""
        batch_sizes.append(len(items))
        items.clear()
        if len(batch_sizes) < 3:
            raise Transient("again")
        return 0

    async with engine_with(eat, config=ToolEngineConfig(retry=RetryPolicy(first_delay=0))) as engine:
        await engine.execute("eat", {"items": [1, 2, 3]})
    assert batch_sizes == [3, 3, 3]


async def test_the_clocks_of_all_outer_calls_stand_still_while_an_inner_one_waits():
    @tool
    async def middle(context: ToolExecutionContext) -> str:
        """Call one that waits."""
        return (await context.call_tool("nap", {"seconds": 0.01})).text

    @tool
    async def outer(context: ToolExecutionContext) -> list[str]:
        """Call two that wait, through others."""
        results = await asyncio.gather(context.call_tool("middle"), context.call_tool("middle"))
        return [r.text for r in results]

    limits = ConcurrencyConfig(max_concurrent=4, bucket_limits={"bed": 1})
    async with engine_with(outer, middle, make_nap(bucket="bed"), concurrency=limits) as engine:
        hog = asyncio.create_task(engine.execute("nap", {"seconds": 15}))
        await asyncio.sleep(1)  # virtual: it has the slot
        result = await engine.execute("outer", timeout=10)
        await hog
    assert result.output == {"result": ["rested", "rested"]}


async def test_calls_in_the_queue_learn_that_the_circuit_has_opened():
    runs = []

    @tool
    async def remote() -> None:
        """Be unreachable."""
        runs.append(1)
        raise ConnectionError("down")

    config = ToolEngineConfig(breaker=BreakerConfig(threshold=3))
    async with engine_with(remote, config=config, concurrency=ConcurrencyConfig(max_concurrent=1)) as engine:
        results = await asyncio.gather(*(engine.execute("remote") for _ in range(20)))
    assert len(runs) == 3
    assert sum(r.metadata.get("reason") == "circuit_open" for r in results) == 17


async def test_a_subscriber_cannot_change_the_call_it_watches():
    def meddle(event: ToolEngineEvent) -> None:
        event.data.get("params", {}).clear()
        if "result" in event.data:
            event.data["result"].output.clear()

    @tool
    async def add(a: int) -> int:
        """Add one."""
        return a + 1

    mine = {"a": 1}
    async with engine_with(add) as engine:
        engine.subscribe(meddle)
        assert (await engine.execute("add", mine)).output == {"result": 2}
    assert mine == {"a": 1}


async def test_what_a_subscriber_calls_is_not_part_of_the_call_it_watches():
    async with engine_with(nap, concurrency=ConcurrencyConfig(max_concurrent=2)) as engine:

        async def react(event: ToolEngineEvent) -> None:
            if event.tool_name == "nap":
                await engine.execute("echo", {"message": "seen"})

        engine.subscribe(react, {"execution_started"})  # type: ignore[arg-type]
        await engine.execute("nap", {"seconds": 0.05})
        await engine.events.drain(60)
        records = await engine.query_call_records(tool_name="echo")
    assert [r.parent_id for r in records] == [None]


async def test_a_subscriber_that_ends_its_own_subscription_finishes_what_it_does():
    done: list[ToolEngineEvent] = []
    async with ToolEngine() as engine:

        async def once(event: ToolEngineEvent) -> None:
            unsubscribe()
            await asyncio.sleep(1)  # virtual
            done.append(event)

        unsubscribe = engine.subscribe(once)
        await engine.execute("echo", {"message": "x"})
        await until(lambda: done)
    assert len(done) == 1


class Who(pydantic.BaseModel):
    name: str
    pin: Annotated[str, Secret]


async def test_no_log_has_the_secrets_of_a_call_that_failed(caplog: pytest.LogCaptureFixture):
    @tool
    async def login(pin: Annotated[str, Secret]) -> str:
        """Log in."""
        raise ValueError(f"no user has the number {pin}")

    @tool
    def login_slowly(pin: Annotated[str, Secret]) -> str:
        """Log in."""
        raise ValueError(f"no user has the number {pin}")

    @tool(read_only=True)
    async def login_again(pin: Annotated[str, Secret]) -> str:
        """Log in."""
        raise ConnectionError(f"no user has the number {pin}")

    caplog.set_level(logging.DEBUG)
    async with engine_with(login, login_slowly, login_again) as engine:
        for name in ("login", "login_slowly", "login_again"):
            assert "swordfish" in str((await engine.execute(name, {"pin": "swordfish-77"})).error)
    logged = caplog.text
    assert "no user has the number" in logged and "attempt=<1>" in logged and "Traceback" in logged
    assert "swordfish" not in logged


async def test_secrets_inside_other_parameters_are_not_recorded_either(tmp_path: Path):
    @tool(max_output=100)
    async def login(who: Who) -> str:
        """Log in."""
        return f"{who.pin} " * 50

    async with engine_with(login, store=f"sqlite:///{tmp_path / 'calls.db'}") as engine:
        good = await engine.execute("login", {"who": {"name": "ann", "pin": "zebra-4711"}})
        await engine.execute("login", {"who": {"name": "ann", "pin": ["zebra-4711"]}})
        await engine.execute("logn", {"who": {"name": "ann", "pin": "zebra-4711"}})
        agent = ToolSubAgent("a", engine)
        await agent.execute("login", {"who": {"name": "ann", "pin": "zebra-4711"}})
        summary = str(agent.get_execution_summary())
        artifact = engine.get_artifact(good.metadata["artifact_id"])
    assert good.is_success
    assert "zebra-4711" not in summary
    assert b"zebra-4711" not in artifact
    assert all(b"zebra-4711" not in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


async def test_a_tool_may_call_others_while_the_engine_waits_for_it_to_finish():
    has_begun = asyncio.Event()

    @tool
    async def slow(context: ToolExecutionContext) -> str:
        """Call another, late."""
        has_begun.set()
        await asyncio.sleep(1)  # virtual
        return (await context.call_tool("nap")).text

    engine = ToolEngine()
    await engine.start()
    engine.register(slow, nap)
    task = asyncio.create_task(engine.execute("slow"))
    await has_begun.wait()
    await engine.aclose(grace=30)
    assert (await task).output == {"result": "rested"}


def test_an_engine_may_be_used_by_one_loop_after_another(tmp_path: Path):
    engine = ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path), watch_for_changes=True))
    engine.register(nap)
    event_list = []

    async def watch(event: ToolEngineEvent) -> None:
        event_list.append(event.event_type)
        await asyncio.sleep(0)  # the loop goes on in between

    engine.subscribe(watch, {"execution_completed"})  # type: ignore[arg-type]
    asyncio.run(engine.start())
    for _ in range(2):
        assert asyncio.run(engine.execute("nap")).is_success
    asyncio.run(engine.aclose())
    assert len(event_list) == 2


async def test_a_disabled_tool_stays_disabled_when_its_file_changes(tmp_path: Path):
    path = tmp_path / "greet.yaml"
    text = "name: greet\ndescription: {}\ncategory: custom\nentry:\n  type: builtin\n  handler: echo\n"
    path.write_text(text.format("one"))
    async with ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path), auto_reload=False)) as engine:
        engine.registry.disable("greet")
        path.write_text(text.format("two"))
        await engine.reload()
        assert not engine.load_errors
        [greet] = engine.registry.candidates("greet")
        assert (greet.spec.description, greet.spec.enabled) == ("two", False)
        assert (await engine.execute_candidate(greet)).error_type == "tool_not_found"
        engine.registry.enable("greet")
        path.unlink()
        await engine.reload()
        assert "greet" not in engine.registry


async def test_two_engines_may_share_a_registry():
    registry = ToolRegistry()
    async with ToolEngine(registry=registry) as first_engine, ToolEngine(registry=registry) as other:
        assert (await first_engine.execute("echo", {"message": "x"})).is_success
        assert (await other.execute("echo", {"message": "x"})).is_success


def test_a_registry_takes_all_of_a_change_or_nothing():
    registry = ToolRegistry()
    with pytest.raises(AttributeError):
        registry.add(tool_of(nap), "junk")  # type: ignore[arg-type]
    assert len(registry) == 0


async def test_an_action_named_twice_and_an_empty_one_are_understood():
    class Notes:
        async def add(self, text: str) -> str:
            """Add a note."""
            return text

        async def drop(self) -> None:
            """Drop all."""

    async with ToolEngine() as engine:
        [notes] = engine.register(Notes())
        name = f"{notes.id}__add"
        assert (await engine.execute(name, {"text": "x"}, action="add")).is_success
        wrong = await engine.execute(name, {"text": "x"}, action="drop")
        assert "is the action 'add'" in str(wrong.error)
        with pytest.raises(ToolNotFound, match="several actions"):
            engine.registry.find(notes.id, "")
        agent = ToolSubAgent("a", engine, tools={notes.id})
        assert (await agent.execute(name, {"text": "x"})).is_success
        refused = await agent.execute("echo", {"message": "x"})
        assert (await engine.store.get_call_record(refused.call_id)) is not None


async def test_a_callback_for_progress_that_fails_harms_nothing():
    @tool
    async def count():
        """Count."""
        yield 1

    def broken(progress: Any) -> None:
        raise RuntimeError("boom")

    async with engine_with(count) as engine:
        assert (await engine.execute("count", on_progress=broken)).output == {"result": [1]}


class Node(TypedDict):
    size: int
    child: NotRequired["Node"]


async def test_recursive_types_and_odd_numbers_are_read_as_they_are_meant():
    @tool
    async def measure(node: Node, top: int | None = 3, weights: dict[str, int] | None = None) -> Any:
        """Measure."""
        return [node["child"]["size"], type(top).__name__, {k: type(v).__name__ for k, v in (weights or {}).items()}]

    async with engine_with(measure) as engine:
        params: dict[str, Any] = {"node": {"size": 1, "child": {"size": 2}}, "top": 5.0, "weights": {"a": 2.0}}
        result = await engine.execute("measure", params)
        wrong = await engine.execute("measure", {"node": {"size": 1}, "top": float("nan")})
    assert result.output == {"result": [2, "int", {"a": "int"}]}
    assert wrong.error_type == "validation_error"


async def test_a_schema_that_describes_its_parameters_elsewhere_is_respected():
    schema = {"type": "object", "allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}]}

    class Echo:
        async def execute(self, invocation: Any) -> Any:
            return invocation.params

    from ferrule import Tool, ToolSpec

    for parameters in (schema, {"properties": {"a": {"type": "string"}}, "required": ["a"]}):
        capability = ToolCapability(name="t", description="", parameters=parameters)
        async with ToolEngine() as engine:
            engine.register_executor("all", Echo())
            engine.register(Tool(spec=ToolSpec(tool_id="t", capabilities=[capability]), handler="all"))
            assert (await engine.execute("t", {"a": "x"})).output == {"a": "x"}
            assert (await engine.execute("t", {})).error_type == "validation_error"


async def test_what_broke_off_may_have_happened_unless_that_does_not_matter():
    @tool
    async def pay() -> None:
        raise ConnectionResetError("reset by peer")

    @tool(idempotent=True)
    async def put() -> None:
        raise ConnectionResetError("reset by peer")

    @tool
    async def call() -> None:
        raise ConnectionRefusedError("nobody there")

    async with engine_with(pay, put, call) as engine:
        context = ToolExecutionContext(max_retries=0)
        outcomes = [
            (await engine.execute(name, {}, context)).metadata.get("outcome") for name in ("pay", "put", "call")
        ]
        assert outcomes == ["unknown", None, None]
