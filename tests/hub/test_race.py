"""Pick best: the first good answer wins, the others have ended, and nothing is done that should not be.

The tests run in virtual time.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ferrule import Refuse, Tool, ToolEngine, ToolExecutionContext
from ferrule.hub import HubConfig, ToolHub
from tests.hub import slow_tools
from tests.hub.recording_tools import BEST, FOREVER, CallRecorder, engine_with, make_tool
from tests.store.records import finish_record
from tests.support.virtual_time import in_real_time, virtual_time
from tests.support.waiting import is_running, until

anyio_backend = virtual_time
QUICK = HubConfig(stagger=0.01)


async def test_of_three_search_tools_of_which_one_hangs_and_one_fails_the_good_one_answers():
    tasks_before = asyncio.all_tasks()
    recorder = CallRecorder()
    hangs = recorder.search("hangs", seconds=FOREVER, **BEST)
    fails = recorder.search("fails", ValueError("broken"), source="skills", **BEST)
    good = recorder.search("good", "the answer", seconds=0.05, source="mcps", **BEST)
    async with engine_with(hangs, fails, good) as engine:
        result = await ToolHub(engine, config=QUICK).execute_by_capability("search", {"query": "x"})
        assert (result.text, result.tool_name) == ("the answer", "good")
        assert (recorder.started, recorder.stopped) == (["hangs", "fails", "good"], ["hangs"])
        assert asyncio.all_tasks() == tasks_before
        records = {r.tool_name: r.status for r in await engine.query_call_records()}
    assert records == {"hangs": "cancelled", "fails": "failed", "good": "success"}
    assert result.metadata["failures"][0]["candidate"] == "fails (skills)"


@pytest.mark.integration
@in_real_time
async def test_a_loser_that_runs_in_a_worker_process_never_does_its_work(tmp_path: Path):
    pid = tmp_path / "late.pid"

    async def lookup(path: str) -> str:
        """Look something up, but not before the other has begun."""
        await until(lambda: pid.exists() and pid.read_text())
        return "quick"

    quick = make_tool(lookup, source="mcps", read_only=True, tags=["lookup"])
    async with engine_with(quick) as engine:
        engine.register(slow_tools.write_late)
        result = await ToolHub(engine, config=QUICK).execute_by_capability(
            "lookup", {"path": str(tmp_path / "late")}, ToolExecutionContext(timeout=120)
        )
        assert result.text == "quick"
        assert not is_running(int(pid.read_text()))


@pytest.mark.parametrize("nothing", [None, "", " \n", [], {}, {"results": []}, [None, ""]])
async def test_an_empty_answer_does_not_win(nothing: Any):
    recorder = CallRecorder()
    empty = recorder.search("find", nothing, **BEST)
    good = recorder.search("find", "something", source="mcps", **BEST)
    async with engine_with(empty, good) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"})
    assert (result.text, result.metadata["_meta"]["source"]) == ("something", "mcps")


@pytest.mark.parametrize("something", [0, False, "0", {"count": 0}])
async def test_a_zero_and_a_no_are_answers(something: Any):
    recorder = CallRecorder()
    first = recorder.search("find", something, **BEST)
    second = recorder.search("find", "other", source="mcps", **BEST)
    async with engine_with(first, second) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"})
    assert result.metadata["_meta"]["source"] == "tools"
    assert recorder.started == ["find"]


async def test_what_changes_the_world_and_says_nothing_wins():
    recorder = CallRecorder()
    silent = recorder.search("switch", None, read_only=False, idempotent=True, **BEST)
    other = recorder.search("switch", "done", source="mcps", read_only=False, idempotent=True, **BEST)
    async with engine_with(silent, other) as engine:
        result = await ToolHub(engine).execute("switch", {"query": "x"})
    assert (result.is_success, recorder.started) == (True, ["switch"])


async def test_when_all_answers_are_empty_the_result_is_an_empty_success():
    recorder = CallRecorder()
    tools = [recorder.search("find", [], source=source, **BEST) for source in ("tools", "skills", "mcps")]
    async with engine_with(*tools) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"})
    assert (result.is_success, result.output) == (True, {"result": []})
    assert len(recorder.started) == 3


async def test_at_most_three_run_at_once_and_the_rest_follow_one_by_one():
    recorder = CallRecorder()
    sources = ("tools", "skills", "mcps", "builtin", "elsewhere")
    tools = [recorder.search(s, Refuse("no"), seconds=1, source=s, **BEST) for s in sources]
    async with engine_with(*tools) as engine:
        result = await ToolHub(engine, config=QUICK).execute_by_capability("search", {})
    assert not result.is_success
    assert (recorder.max_concurrent, recorder.started) == (3, list(sources))
    assert recorder.at["builtin"] == pytest.approx(recorder.at["mcps"] + 1)
    assert recorder.at["elsewhere"] == pytest.approx(recorder.at["builtin"] + 1)


async def test_the_second_racer_starts_only_after_the_stagger():
    recorder = CallRecorder()
    slow = recorder.search("slow", seconds=FOREVER, **BEST)
    other = recorder.search("other", source="mcps", **BEST)
    async with engine_with(slow, other) as engine:
        await ToolHub(engine, config=HubConfig(stagger=0.2)).execute_by_capability("search", {})
    assert recorder.at["other"] - recorder.at["slow"] == pytest.approx(0.2)


def record_success(engine: ToolEngine, candidate: Tool, seconds: float) -> None:
    """A call of an earlier process that took so long."""
    [capability] = candidate.spec.capabilities
    finish_record(engine.store, candidate.id, action=capability.name, source=candidate.source, execution_time=seconds)


@pytest.mark.parametrize(("seconds", "started"), [(4, ["first"]), (6, ["first", "other"])])
async def test_a_first_racer_within_its_usual_time_is_left_alone(seconds: float, started: list[str]):
    recorder = CallRecorder()
    first = recorder.search("first", seconds=seconds, **BEST)
    other = recorder.search("other", seconds=FOREVER, source="mcps", **BEST)
    async with engine_with(first, other) as engine:
        record_success(engine, first, 5.0)
        result = await ToolHub(engine, config=QUICK).execute_by_capability("search", {})
    assert (result.tool_name, recorder.started) == ("first", started)


async def test_the_times_of_a_tool_of_the_same_name_in_another_source_do_not_count():
    recorder = CallRecorder()
    slow = recorder.search("find", "slow", seconds=2, source="mcps", **BEST)
    hangs = recorder.search("find", "never", seconds=FOREVER, **BEST)
    async with engine_with(slow, hangs) as engine:
        record_success(engine, slow, 20.0)
        result = await ToolHub(engine, config=QUICK).execute("find", {})
    assert result.text == "slow"
    assert recorder.began[1] - recorder.began[0] == pytest.approx(QUICK.stagger)


async def test_a_racer_that_fails_is_replaced_at_once():
    recorder = CallRecorder()
    broken = recorder.search("find", Refuse("no"), **BEST)
    good = recorder.search("find", "good", source="mcps", **BEST)
    async with engine_with(broken, good) as engine:
        hub = ToolHub(engine, config=HubConfig(stagger=FOREVER, hedge_share=0.0, hedge_burst=0))
        assert (await hub.execute("find", {"query": "x"})).text == "good"


async def test_without_budget_nobody_is_started_beside_a_slow_racer():
    recorder = CallRecorder()
    slow = recorder.search("slow", seconds=0.2, **BEST)
    other = recorder.search("other", source="mcps", **BEST)
    async with engine_with(slow, other) as engine:
        hub = ToolHub(engine, config=HubConfig(stagger=0.01, hedge_share=0.0, hedge_burst=0))
        await hub.execute_by_capability("search", {})
    assert recorder.started == ["slow"]


@pytest.mark.parametrize("effects", [{}, {"idempotent": True, "destructive": True}])
async def test_tools_that_must_not_be_repeated_or_that_destroy_are_never_raced(effects: dict[str, bool]):
    recorder = CallRecorder()
    sources = ("tools", "skills", "mcps")
    how = {**BEST, "read_only": False, **effects}
    tools = [recorder.search(s, Refuse("no"), seconds=0.05, source=s, **how) for s in sources]
    async with engine_with(*tools) as engine:
        result = await ToolHub(engine, config=HubConfig(stagger=0.0)).execute_by_capability("search", {})
    assert not result.is_success
    assert (recorder.started, recorder.ended, recorder.max_concurrent) == ([*sources], [*sources], 1)


async def test_a_first_candidate_that_must_not_be_raced_is_called_alone():
    recorder = CallRecorder()
    changes = recorder.search("do", "first", seconds=0.1, read_only=False, metadata={"strategy": "best"})
    others = [recorder.search("do", "other", source=s) for s in ("skills", "mcps")]
    async with engine_with(changes, *others) as engine:
        result = await ToolHub(engine, config=QUICK).execute("do", {})
    assert (result.text, recorder.started) == ("first", ["do"])


async def test_cancelling_the_caller_ends_every_racer():
    recorder = CallRecorder()
    tools = [recorder.search(s, seconds=FOREVER, source=s, **BEST) for s in ("tools", "skills", "mcps")]
    async with engine_with(*tools) as engine:
        job = asyncio.create_task(ToolHub(engine, config=QUICK).execute_by_capability("search", {}))
        await until(lambda: len(recorder.started) == 3)
        job.cancel()
        await asyncio.wait([job])
        assert job.cancelled() and sorted(recorder.stopped) == ["mcps", "skills", "tools"]
        assert [r.status for r in await engine.query_call_records()] == ["cancelled"] * 3


async def test_a_loser_that_swallows_its_cancellation_is_stopped_all_the_same():
    ended: list[str] = []

    async def stubborn() -> str:
        """Sleep on."""
        for _ in range(2):
            try:
                await asyncio.sleep(FOREVER)  # virtual
            except asyncio.CancelledError:
                ended.append("cancelled")
        return "never"

    recorder = CallRecorder()
    good = recorder.search("good", source="mcps", **BEST)
    async with engine_with(make_tool(stubborn, read_only=True, **BEST), good) as engine:
        result = await ToolHub(engine, config=QUICK).execute_by_capability("search", {})
    assert (result.text, ended) == ("found", ["cancelled", "cancelled"])


@pytest.mark.parametrize("by_tool", [True, False])
async def test_in_a_plain_race_up_to_three_start_together_and_the_others_follow_if_all_fail(by_tool: bool):
    recorder = CallRecorder()
    tag = "search" if by_tool else "lookup"
    options: dict[str, Any] = {"tags": [tag], "metadata": {"strategy": "race"} if by_tool else {}}
    slow = [recorder.search(f"slow{number}", seconds=FOREVER, **options) for number in range(2)]
    good = recorder.search("good", "the answer", source="skills", seconds=0.05, **options)
    last = recorder.search("last", "too late", source="mcps", **options)
    config = HubConfig(stagger=FOREVER, hedge_burst=0, strategy="best" if by_tool else "race")
    async with engine_with(*slow, good, last) as engine:
        result = await ToolHub(engine, config=config).execute_by_capability(tag, {"query": "x"})
    assert (result.text, sorted(recorder.started)) == ("the answer", ["good", "slow0", "slow1"])
    assert sorted(recorder.stopped) == ["slow0", "slow1"]
