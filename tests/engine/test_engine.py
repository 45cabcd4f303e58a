"""One call through the engine: every step, and every way it can end. All tests run in virtual time."""

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ferrule import (
    ConcurrencyConfig,
    Image,
    Invocation,
    NeedsApproval,
    Progress,
    Refuse,
    Retry,
    SetupError,
    Tool,
    ToolCapability,
    ToolEngine,
    ToolEngineConfig,
    ToolEngineEvent,
    ToolEngineEventType,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSpec,
    Transient,
    report_progress,
    tool,
)
from ferrule.core.permission import Principal
from ferrule.engine.resilience import BreakerConfig, RetryPolicy
from ferrule.kinds.function.tools import tool_of
from tests.support.engines import engine_with
from tests.support.virtual_time import loop_time, virtual_time

anyio_backend = virtual_time
AT_ONCE = RetryPolicy(first_delay=0.0)


@tool
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def make_nap(**options: Any) -> Any:
    """A tool of its own: options of a decorator stay with the function that is decorated."""

    async def nap(seconds: float = 5) -> str:
        """Sleep."""
        await asyncio.sleep(seconds)  # virtual
        return "rested"

    return tool(**options)(nap)


nap = make_nap()


async def call(thing: Any, params: dict[str, Any] | None = None, *, config: ToolEngineConfig | None = None, **how: Any):
    async with ToolEngine(config) as engine:
        [tool] = engine.register(thing)
        return await engine.execute(tool.id, params, **how)


async def test_a_good_call_gives_its_output_its_time_and_its_record():
    async with engine_with(add) as engine:
        result = await engine.execute("add", {"a": 2, "b": "3"})
        [record] = await engine.query_call_records(tool_name="add")
    assert (result.is_success, result.output, result.text) == (True, {"result": 5}, "5")
    assert result.execution_time > 0
    assert (record.record_id, record.params, record.result) == (result.call_id, {"a": 2, "b": 3}, {"result": 5})
    assert record.fingerprint == engine.registry.candidates("add")[0].spec.fingerprint


async def test_tool_not_found_names_near_tools():
    result = await ToolEngine().execute("calculater", {})
    assert (result.error_type, result.error) == (
        "tool_not_found",
        "There is no tool 'calculater'. List the tools to see which exist. "
        "The engine was not started: write `async with engine`.",
    )
    async with ToolEngine() as engine:
        result = await engine.execute("calculater", {})
    assert result.error == "There is no tool 'calculater'. Did you mean 'calculate' or 'calculator'?"


async def test_validation_error_lists_every_problem():
    result = await call(add, {"b": "x"})
    assert result.error_type == "validation_error"
    assert result.error == ("Invalid arguments for 'add': a: is required. b: must be a whole number, not 'x'.")
    assert [e["path"] for e in result.validation_errors] == ["a", "b"]


async def test_a_validation_error_names_the_action_and_quotes_the_description_of_the_parameter():
    @tool(name="office")
    class Office:
        """An office."""

        async def greet(self, name: str) -> str:
            """Greet somebody.

            Args:
                name: the name of a person
            """
            return name

        async def leave(self) -> str:
            """Go home."""
            return "bye"

    async with engine_with(Office()) as engine:
        result = await engine.execute("office", {}, action="greet")
    assert result.error == (
        "Invalid arguments for 'office__greet': name: is required. It is described as “the name of a person”."
    )


async def test_executor_not_found_says_how_to_register_one():
    spec = ToolSpec(tool_id="t", capabilities=[ToolCapability(name="t", description="")])
    result = await call(Tool(spec=spec, handler="calculater"))
    assert result.error_type == "executor_not_found"
    assert "Did you mean 'calculator'?" in result.error
    assert "engine.register_executor('calculater', …)" in result.error


async def test_execution_error_tells_what_the_tool_raised():
    @tool
    async def broken() -> None:
        """Break."""
        raise ValueError("no luck")

    result = await call(broken)
    assert (result.error_type, result.error) == ("execution_error", "ValueError: no luck")


async def test_timeout_stops_an_async_tool_and_says_so():
    ended = []

    @tool
    async def slow() -> None:
        """Be slow."""
        try:
            await asyncio.sleep(5)  # virtual
        finally:
            ended.append(True)

    result = await call(slow, timeout=2)
    assert result.error_type == "timeout"
    assert result.error == (
        "Tool 'slow' did not finish within 2 s and was stopped. Ask for less in one call, or allow it more time."
    )
    assert ended == [True]


async def test_a_tools_own_timeout_holds_against_a_caller_who_wants_more():
    result = await call(make_nap(timeout=0.05), timeout=60)
    assert (result.error_type, result.metadata["timeout"]) == ("timeout", 0.05)


async def test_a_tool_that_swallows_its_cancellation_is_cancelled_again():
    swallowed = []

    @tool
    async def stubborn() -> str:
        """Refuse to stop once."""
        try:
            await asyncio.sleep(5)  # virtual
        except asyncio.CancelledError:
            swallowed.append(1)
            await asyncio.sleep(5)  # virtual
        return "done"

    result = await call(stubborn, timeout=0.05)
    assert (result.error_type, swallowed) == ("timeout", [1])


async def test_a_call_after_a_timeout_in_the_same_task_is_not_disturbed():
    async with engine_with(nap, add) as engine:
        assert (await engine.execute("nap", timeout=2)).error_type == "timeout"
        assert (await engine.execute("add", {"a": 1})).is_success
        await asyncio.sleep(60)  # virtual: a timer that was left behind would cancel it


async def test_cancelling_the_caller_ends_the_tool_and_is_recorded():
    async with engine_with(nap) as engine:
        task = asyncio.create_task(engine.execute("nap"))
        await asyncio.sleep(1)  # virtual: the tool runs
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [record] = await engine.query_call_records()
        assert engine.concurrency.get_metrics().current_concurrent == 0
    assert (record.status, record.error_type) == ("cancelled", "cancelled")


async def test_a_tool_that_cancels_itself_has_failed_and_the_caller_lives():
    @tool
    async def suicidal() -> None:
        """Cancel."""
        raise asyncio.CancelledError

    result = await call(suicidal)
    assert (result.error_type, result.error) == ("execution_error", "Tool 'suicidal' cancelled itself.")


@pytest.mark.parametrize(
    ("signal", "error_type", "advice"),
    [
        (Retry, "execution_error", "change_arguments"),
        (Refuse, "permission_denied", "give_up"),
        (NeedsApproval, "approval_required", "ask_approval"),
        (Transient, "execution_error", "try_later"),
    ],
)
async def test_a_tool_can_say_what_to_do_about_its_failure(signal, error_type, advice):
    @tool
    async def picky() -> None:
        """Raise on purpose."""
        raise signal("because", field="x")

    result = await call(picky)
    assert str(result.error).startswith("because") and result.error_type == error_type
    assert (result.metadata["advice"], result.metadata["field"]) == (advice, "x")


async def test_transient_failures_of_idempotent_tools_are_tried_again():
    tries = []

    @tool(idempotent=True)
    async def flaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("gone")
        return "here"

    result = await call(flaky, config=ToolEngineConfig(retry=AT_ONCE))
    assert (result.output, result.metadata["attempts"]) == ({"result": "here"}, 3)


async def test_a_failure_that_lasts_longer_than_the_call_may_is_told_at_once():
    @tool(idempotent=True)
    async def busy() -> None:
        """Be busy."""
        raise Transient("come back tomorrow", retry_after=86_400)

    result = await call(busy, timeout=5)
    assert (result.error, result.metadata["retry_after"], loop_time()) == ("come back tomorrow", 86_400, 0)


async def test_what_is_not_idempotent_is_never_tried_again():
    tries = []

    @tool
    async def pay() -> None:
        """Pay."""
        tries.append(1)
        raise Transient("try later")

    result = await call(pay, config=ToolEngineConfig(retry=AT_ONCE))
    assert (len(tries), result.metadata["transient"]) == (1, True)


async def test_transport_faults_open_the_circuit_and_ordinary_errors_do_not():
    kind: list[type[Exception]] = [ValueError]

    @tool
    async def remote() -> None:
        """Fail."""
        raise kind[0]("x")

    async with engine_with(remote, config=ToolEngineConfig(breaker=BreakerConfig(threshold=2))) as engine:
        for _ in range(5):
            assert (await engine.execute("remote")).error_type == "execution_error"
        kind[0] = ConnectionError
        for _ in range(2):
            await engine.execute("remote")
        refused = await engine.execute("remote")
    assert (refused.error_type, refused.metadata["reason"]) == ("rejected", "circuit_open")


async def test_a_cacheable_tool_runs_once_for_the_same_arguments():
    runs = []

    @tool(cacheable=True)
    async def expensive(a: int, b: int = 2) -> int:
        """Compute."""
        runs.append(1)
        return a + b

    async with engine_with(expensive) as engine:
        results = [await engine.execute("expensive", p) for p in ({"a": 1}, {"a": 1, "b": 2}, {"a": 2})]
        assert len(await engine.query_call_records()) == 3
    assert [r.output["result"] for r in results] == [3, 3, 4]
    assert [r.metadata.get("cached") for r in results] == [None, True, None]
    assert len(runs) == 2


async def test_long_output_is_cut_at_a_sentence_and_kept_whole():
    text = "This is a sentence. " * 100

    @tool(max_output=200)
    async def chatty() -> str:
        """Talk."""
        return text

    async with engine_with(chatty) as engine:
        result = await engine.execute("chatty")
        whole = engine.get_artifact(result.metadata["artifact_id"])
        [record] = await engine.query_call_records()
    artifact_text, note = result.output["result"].split("\n")
    assert artifact_text.endswith("sentence.")
    assert len(artifact_text) <= 200
    assert "2,013 bytes" in note
    assert text in whole.decode()
    assert record.artifact_id == result.metadata["artifact_id"]


async def test_what_is_left_of_a_long_output_of_strangers_is_still_marked():
    @tool(max_output=200)
    async def read() -> dict[str, Any]:
        return {"text": "Do as I say. " * 100, "untrusted": True}

    async with engine_with(read) as engine:
        result = await engine.execute("read")
    assert result.output["truncated"] is True and result.output["untrusted"] is True


async def test_what_is_kept_of_long_output_has_no_secrets():
    @tool(max_output=100)
    async def configuration() -> dict[str, str]:
        """Show it."""
        return {"password": "hunter2-hunter2", "text": "word " * 100}

    async with engine_with(configuration) as engine:
        result = await engine.execute("configuration")
        whole = engine.get_artifact(result.metadata["artifact_id"])
    assert b"hunter2" not in whole
    assert b"word word" in whole


async def test_images_travel_beside_the_output():
    @tool
    async def draw() -> list[Any]:
        """Draw."""
        return ["look", Image(data=b"png")]

    result = await call(draw)
    assert [part.kind for part in result.content] == ["text", "image"]


async def test_parameters_nobody_described_are_named_in_the_result():
    result = await call(add, {"a": 1, "colour": "red"})
    assert result.metadata["ignored_params"] == ["colour"]


async def test_strict_validation_refuses_what_lenient_takes():
    result = await call(add, {"a": "1"}, config=ToolEngineConfig(strict_validation=True))
    assert result.error_type == "validation_error"


async def test_a_batch_keeps_its_order_and_one_failure_harms_no_other():
    async with engine_with(add) as engine:
        results = await engine.execute_batch(
            [("add", {"a": 1}), ("nothing", {}), {"tool_name": "add", "params": {"a": 5}}, ("add", {})]
        )
    assert [r.output.get("result") for r in results] == [2, None, 6, None]
    assert [r.error_type for r in results] == [None, "tool_not_found", None, "validation_error"]


async def test_a_batch_larger_than_all_places_and_the_queue_is_not_rejected():
    async with engine_with(nap, concurrency=ConcurrencyConfig(max_concurrent=3, queue_size=1)) as engine:
        results = await engine.execute_batch([("nap", {"seconds": 0.001})] * 50)
        assert engine.concurrency.get_metrics().total_rejected == 0
    assert all(r.is_success for r in results)


async def test_a_stream_gives_progress_then_the_result():
    @tool
    async def count(to: int):
        """Count."""
        for n in range(to):
            yield n
        report_progress(1.0, "done")

    async with engine_with(count) as engine:
        items = [item async for item in engine.stream("count", {"to": 2})]
    assert [i.data if isinstance(i, Progress) else i.output for i in items] == [0, 1, None, {"result": [0, 1]}]


async def test_a_stream_that_is_not_read_keeps_the_newest_progress_and_the_result(monkeypatch):
    monkeypatch.setattr("ferrule.engine.engine.MAX_QUEUED_PROGRESS", 3)

    @tool
    async def report() -> str:
        """Report much."""
        for n in range(10):
            report_progress(None, str(n))
        return "done"

    async with engine_with(report) as engine:
        items = [item async for item in engine.stream("report")]
    assert [i.message if isinstance(i, Progress) else i.output for i in items] == ["7", "8", "9", {"result": "done"}]


async def test_leaving_a_stream_early_ends_the_call():
    ended = []

    @tool
    async def forever():
        """Count without end."""
        try:
            n = 0
            while True:
                yield n
                n += 1
                await asyncio.sleep(1)  # virtual
        finally:
            ended.append(True)

    async with engine_with(forever) as engine:
        stream = engine.stream("forever")
        assert isinstance(await anext(stream), Progress)
        await stream.aclose()  # type: ignore[attr-defined]
        assert ended == [True]


async def test_events_tell_the_whole_story_in_order():
    event_list: list[ToolEngineEvent] = []
    async with engine_with(add) as engine:
        engine.subscribe(event_list.append)
        await engine.execute("add", {"a": 1})
        await engine.execute("add", {})
        await engine.execute("ad", {})
    story = [e.event_type.value for e in event_list]
    assert story == [
        "before_tool_call",
        "execution_started",
        "execution_completed",
        "after_tool_call",
        "before_tool_call",
        "validation_error",
        "after_tool_call",
        "before_tool_call",
        "execution_failed",
        "after_tool_call",
    ]
    assert isinstance(event_list[3].data["result"], ToolExecutionResult)


async def test_async_subscribers_have_seen_a_call_when_it_returns():
    event_list = []

    async def watch(event: ToolEngineEvent) -> None:
        event_list.append(event.event_type)

    async with engine_with(add) as engine:
        engine.subscribe(watch, {ToolEngineEventType.EXECUTION_COMPLETED})
        await engine.execute("add", {"a": 1})
        assert event_list == [ToolEngineEventType.EXECUTION_COMPLETED]


async def test_a_subscriber_that_changes_arguments_changes_no_other_copy_of_them():
    seen: list[Any] = []

    def change(event: ToolEngineEvent) -> None:
        if event.event_type is ToolEngineEventType.EXECUTION_COMPLETED:
            event.data["result"].arguments["a"] = "changed"
        elif event.event_type is ToolEngineEventType.AFTER_TOOL_CALL:
            seen.append(dict(event.data["params"]))
            event.data["params"]["b"] = "changed"
            seen.append(event.data["result"].arguments["b"])

    async with engine_with(add) as engine:
        engine.subscribe(change)
        result = await engine.execute("add", {"a": 1, "b": 2})
    assert seen == [{"a": 1, "b": 2}, 2] and result.arguments == {"a": 1, "b": 2}


def test_the_steps_of_calls_are_shown_without_the_configuration():
    assert "config" not in repr(ToolEngine()._pipeline)


async def test_a_failing_subscriber_or_store_never_breaks_a_call(tmp_path: Path):
    @tool(max_output=10)
    async def chatty() -> str:
        """Talk."""
        return "word " * 100

    def broken(*anything: Any, **more: Any) -> None:
        raise OSError("disk full")

    async with engine_with(add, chatty, store=f"sqlite:///{tmp_path / 'calls.db'}") as engine:
        engine.subscribe(broken)
        shutil.rmtree(tmp_path)
        tmp_path.write_text("a file where the journal and the artifacts should be")
        results = [await engine.execute("add", {"a": 1}), await engine.execute("chatty")]
        assert engine.store.failures > 0
        tmp_path.unlink()
    assert all(r.is_success for r in results)


async def test_a_tool_may_call_a_tool_with_one_place_for_both():
    @tool
    async def outer(context: ToolExecutionContext) -> dict[str, Any]:
        """Call another."""
        results = await asyncio.gather(*(context.call_tool("add", {"a": n}) for n in range(5)))
        return {"sum": sum(r.output["result"] for r in results)}

    async with engine_with(outer, add, concurrency=ConcurrencyConfig(max_concurrent=1)) as engine:
        result = await engine.execute("outer", {}, ToolExecutionContext.for_conversation("a", "c1"), timeout=5)
        records = await engine.query_call_records(conversation_id="c1")
    assert result.output == {"sum": 15}
    assert sum(r.parent_id == result.call_id for r in records) == 5


async def test_tools_that_call_each_other_in_a_circle_are_stopped():
    @tool
    async def ouroboros(context: ToolExecutionContext) -> Any:
        """Call itself."""
        result = await context.call_tool("ouroboros")
        return result.error or result.output["result"]

    result = await call(ouroboros, config=ToolEngineConfig(max_depth=3), timeout=5)
    assert "Is there a cycle?" in result.output["result"]


async def test_waiting_for_a_place_does_not_eat_the_time_of_anybody():
    """The inner call waits longer than the outer call may run."""

    @tool
    async def outer(context: ToolExecutionContext) -> str:
        """Call one that has to wait."""
        return (await context.call_tool("nap", {"seconds": 0.01})).text

    limits = ConcurrencyConfig(max_concurrent=2, bucket_limits={"bed": 1})
    async with engine_with(outer, make_nap(bucket="bed"), concurrency=limits) as engine:
        busy = asyncio.create_task(engine.execute("nap", {"seconds": 15}))
        await asyncio.sleep(1)  # virtual: it has the only slot
        result = await engine.execute("outer", timeout=10)
        await busy
    assert result.output == {"result": "rested"}


async def test_rejected_calls_say_why():
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> None:
        """Keep the only slot."""
        has_begun.set()
        await may_end.wait()

    limits = ConcurrencyConfig(max_concurrent=1, strategy="reject")
    async with engine_with(nap, hold, concurrency=limits) as engine:
        busy = asyncio.create_task(engine.execute("hold"))
        await has_begun.wait()
        refused = await engine.execute("nap")
        free = await engine.execute("nap", {"seconds": 0}, ToolExecutionContext.for_workflow("w", "n"))
        may_end.set()
        await busy
    assert (refused.error_type, refused.metadata["reason"]) == ("rejected", "concurrency_limit")
    assert free.is_success


async def test_an_executor_of_ones_own_runs_tools():
    class Shout:
        async def execute(self, invocation: Invocation) -> str:
            return str(invocation.params["text"]).upper()

    parameters = {"text": {"type": "string", "required": True}}
    spec = ToolSpec(tool_id="shout", capabilities=[ToolCapability(name="shout", description="", parameters=parameters)])
    async with ToolEngine() as engine:
        engine.register_executor("shouter", Shout())
        engine.register(Tool(spec=spec, handler="shouter"))
        assert (await engine.execute("shout", {"text": "hi"})).output == {"result": "HI"}


async def test_a_tool_replaced_in_mid_call_finishes_as_it_started():
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @tool(name="versioned")
    async def old() -> str:
        """Be old."""
        has_begun.set()
        await may_end.wait()
        return "old"

    @tool(name="versioned")
    async def new() -> str:
        """Be new."""
        return "new"

    async with engine_with(old) as engine:
        running = asyncio.create_task(engine.execute("versioned"))
        await has_begun.wait()
        engine.unregister("versioned")
        engine.register(new)
        assert (await engine.execute("versioned")).output == {"result": "new"}
        may_end.set()
        assert (await running).output == {"result": "old"}


async def test_one_of_several_tools_of_a_name_can_be_called():
    @tool(name="add")
    async def other(a: int) -> str:
        """Add otherwise."""
        return f"{a} and more"

    async with engine_with(add, replace(tool_of(other), source="mcps")) as engine:
        first, second = engine.registry.candidates("add")
        assert (await engine.execute("add", {"a": 1})).output == {"result": 2}
        assert (await engine.execute_candidate(first, "add", {"a": 1})).output == {"result": 2}
        result = await engine.execute_candidate(second, None, {"a": 1})
        assert result.output == {"result": "1 and more"}
        assert (await engine.execute_candidate(second, "nothing", {})).error_type == "tool_not_found"
        assert {r.source for r in await engine.query_call_records(is_success=True)} == {"tools", "mcps"}


async def test_tools_without_tags_get_those_their_words_stand_for():
    @tool
    async def lookup(query: str) -> str:
        """搜索发票."""
        return query

    @tool(tags=["mine"])
    async def other(query: str) -> str:
        """Search the web."""
        return query

    async with engine_with(lookup, other, config=ToolEngineConfig(tags={"发票": ["invoice"]})) as engine:
        assert {"search", "invoice"} <= set(engine.registry.find_tool("lookup").spec.tags)
        assert engine.registry.find_tool("other").spec.tags == ["mine"]


async def test_misuse_is_told_at_once():
    engine = ToolEngine()
    with pytest.raises(SetupError, match="more than 0 seconds"):
        await engine.execute("echo", {}, timeout=0)
    with pytest.raises(SetupError, match="needs a tool_name"):
        await engine.execute_batch([{"params": {}}])
    await engine.aclose()
    with pytest.raises(SetupError, match="closed"):
        await engine.execute("echo", {})


async def test_closing_lets_running_calls_finish_and_stops_those_that_do_not(tmp_path: Path):
    engine = ToolEngine(store=f"sqlite:///{tmp_path / 'calls.db'}")
    await engine.start()
    engine.register(nap)
    quick = asyncio.create_task(engine.execute("nap", {"seconds": 2}))
    slow = asyncio.create_task(engine.execute("nap", {"seconds": 20}))
    await asyncio.sleep(1)  # virtual: both run
    await engine.aclose(grace=10)
    assert quick.result().is_success
    assert slow.result().error == "Tool 'nap' was stopped, because the engine was closed."
    async with engine:
        assert {r.status for r in await engine.query_call_records()} == {"success", "cancelled"}


async def test_an_engine_can_be_started_again(tmp_path: Path):
    engine = ToolEngine(store=f"sqlite:///{tmp_path / 'calls.db'}")
    for round_ in (1, 2):
        async with engine:
            assert (await engine.execute("echo", {"message": "x"})).is_success
            assert len(await engine.query_call_records()) == round_


async def test_secret_parameters_reach_the_tool_and_nothing_else(tmp_path: Path):
    from typing import Annotated

    from ferrule import Secret

    @tool
    async def login(user: str, pin: Annotated[str, Secret]) -> str:
        """Log in."""
        raise ValueError(f"{pin} is wrong for {user}")

    async with engine_with(login, store=f"sqlite:///{tmp_path / 'calls.db'}") as engine:
        result = await engine.execute("login", {"user": "ann", "pin": "s3cr3t-pin"})
        [record] = await engine.query_call_records()
    assert "s3cr3t-pin" in str(result.error)
    assert "s3cr3t-pin" not in str(record)
    assert all(b"s3cr3t-pin" not in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


async def test_time_is_measured_without_waiting():
    @tool
    async def work() -> None:
        """Take time."""
        await asyncio.sleep(1)  # virtual: the others wait for the slot
        time.sleep(0.02)  # noqa: ASYNC251  real, because durations are measured on the real clock

    async with engine_with(work, concurrency=ConcurrencyConfig(max_concurrent=1)) as engine:
        started = time.perf_counter()  # compared with the sum of parts of the same time, however long that is
        results = await asyncio.gather(*(engine.execute("work") for _ in range(3)))
        took = time.perf_counter() - started  # the same
        first, second, last = sorted(await engine.query_call_records(), key=lambda record: record.wait_time)
    # One runs after the other: with the waiting, their times would be more than all of it.
    assert sum(r.execution_time for r in results) <= took
    assert last.wait_time >= second.execution_time > 0.0 == first.wait_time  # the last one waits while the second runs


async def test_a_caller_restricted_to_some_tools_cannot_reach_others_even_through_them():
    @tool
    async def fetch() -> str:
        """Fetch a page."""
        return "page"

    @tool
    async def report(context: ToolExecutionContext) -> str:
        """Write a report."""
        return (await context.call_tool("fetch")).text

    async with engine_with(fetch, report) as engine:
        only_report = ToolExecutionContext(principal=Principal(tools=frozenset({"report"})))
        direct = await engine.execute("fetch", {}, only_report)
        nested = await engine.execute("report", {}, only_report)
        both = await engine.execute(
            "report", {}, ToolExecutionContext(principal=Principal(tools=frozenset({"report", "fetch"})))
        )
    assert direct.error_type == "permission_denied" and "may be used here: report" in str(direct.error)
    assert "may be used here: report" in nested.text and both.text == "page"


async def test_result_events_and_record_have_the_same_arguments_without_secrets():
    seen: list[Any] = []

    @tool
    async def log_in(user: dict[str, Any], password: str, tries: int = 1) -> int:
        """Log in."""
        user["name"] = "changed by the tool"
        return tries

    async with engine_with(log_in) as engine:
        engine.subscribe(lambda event: seen.append(event.data.get("params")))
        result = await engine.execute("log_in", {"user": {"name": "Ada"}, "password": "xyzzy-12345"})
        refused = await engine.execute("log_in", {"user": 1, "password": "xyzzy-12345"})
        records = await engine.query_call_records()
    shown = {"user": {"name": "Ada"}, "password": "[redacted]", "tries": 1}
    assert result.arguments == records[1].params == shown
    assert refused.arguments == records[0].params == {"user": 1, "password": "[redacted]"}
    as_written = {"user": {"name": "Ada"}, "password": "[redacted]"}
    assert seen == [as_written, shown, None, shown, refused.arguments, None, refused.arguments]
