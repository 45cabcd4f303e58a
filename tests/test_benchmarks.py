"""The benchmarks run for Ferrule and the baseline, with a minimal workload. No test asserts a duration."""

import argparse
import json
from pathlib import Path

import pytest
from benchmarks.agent_runs import measure_failing_call
from benchmarks.contestants import (
    CONTESTANTS,
    FERRULE,
    FLEET,
    GATEWAY,
    IMPORT,
    MCP,
    PAGE,
    PROMPT,
    SEARCH,
    SERVER,
    START,
)
from benchmarks.interface import Workload
from benchmarks.measure import measure
from benchmarks.processes import ProcessError, environment_of, run
from benchmarks.reports import REPORTS, is_met, table_of
from benchmarks.rounds import Results, run_module, run_rounds
from benchmarks.run import _benchmarks, _contestants, _to_json
from benchmarks.summary import summarize, table_of_summary, write_summary
from benchmarks.tools import read_count

import ferrule
from ferrule.errors import SetupError
from ferrule_tools.browser.chromium import find_chromium
from tests.catalog.search.searchable_tools import DATA

TINY = Workload(samples=1, seconds=0.0, calls=3, functions=3, extra_tools=3, max_model_calls=25, memory_calls=100)
BASELINE = next(contestant for contestant in CONTESTANTS if contestant.name == "baseline")
OTHERS = (IMPORT, START, PROMPT)
"""They are not measured in this process, or count tokens."""
LOCAL = [(each, name) for each in (FERRULE, BASELINE) for name in each.benchmarks if name not in OTHERS]


@pytest.mark.long
@pytest.mark.parametrize(("contestant", "benchmark"), LOCAL, ids=[f"{name}-{c.name}" for c, name in LOCAL])
def test_benchmark_runs(contestant, benchmark):
    samples = measure(contestant.module, benchmark, TINY)
    assert samples and all(len(variant) == 1 for variant in samples.values())
    assert all(sample["cpu"] > 0 for variant in samples.values() for sample in variant)
    report = REPORTS[benchmark]
    rows = [report.reference, *(goal.row for goal in report.goals), *(goal.relative_to for goal in report.goals)]
    assert {variant for name, variant in filter(None, rows) if name == contestant.name} <= set(samples)


@pytest.mark.long
@pytest.mark.parametrize("benchmark", [MCP, SERVER, GATEWAY, FLEET, PAGE, SEARCH])
def test_a_benchmark_measures_all_rows_of_its_report_in_one_process(benchmark):
    if benchmark == PAGE and (reason := why_no_page()):
        pytest.skip(reason)
    if benchmark == SEARCH and not DATA.exists():
        pytest.skip("needs shared/data beside the project")
    results = Results()
    run_module(benchmark, rounds=2, workload=TINY, results=results)
    assert results.failures == {} and len(results.rounds) == 2
    report = REPORTS[benchmark]
    rows = [report.reference, *(goal.row for goal in report.goals), *(goal.relative_to for goal in report.goals)]
    assert {row for row in rows if row} <= set(results.rows())
    assert f"| {benchmark} " in table_of(benchmark, results, TINY)


def why_no_page() -> str:
    if not (Path(ferrule.__file__).parent / "web" / "static" / "index.html").is_file():
        return "the web page is not built: make web"
    try:
        find_chromium()
    except SetupError as error:
        return str(error)
    return ""


@pytest.mark.long
def test_rounds_run_in_separate_processes_and_are_shown_as_a_table():
    results = Results()
    progress: list[str] = []
    environments = {contestant: environment_of(contestant) for contestant in (FERRULE, BASELINE)}
    run_rounds("record", environments, rounds=2, workload=TINY, results=results, progress=progress.append)
    assert progress[:2] == ["record, round 1 of 2: ferrule", "record, round 1 of 2: baseline"]
    assert progress[2:] == ["record, round 2 of 2: baseline", "record, round 2 of 2: ferrule"]
    assert "| ferrule: store, start and end of a call" in table_of("record", results, TINY)
    assert json.dumps(_to_json({"record": results}))


@pytest.mark.long
def test_commands_are_measured_in_processes_of_their_own():
    results = Results()
    environments = {BASELINE: environment_of(BASELINE)}
    run_rounds(START, environments, rounds=1, workload=TINY, results=results, progress=lambda _: None)
    assert results.failures == {} and len(results.rounds[0]["baseline", "python -c pass"]) == 5


@pytest.mark.long
def test_prompt_of_a_thousand_tools_is_shorter_than_that_of_a_hundred():
    samples = measure("ferrule", PROMPT, TINY)[REPORTS[PROMPT].reference[1]]
    assert samples[0]["tokens_1000"] < samples[0]["tokens_100"]


def test_summary_has_least_median_and_spread_and_keeps_other_benchmarks(tmp_path):
    path = tmp_path / "benchmarks.json"
    for name, seconds in (("record", (2e-6, 4e-6)), ("sync", (1e-6, 1e-6))):
        row = REPORTS[name].reference
        results = Results(rounds=[{row: [{"cpu": each, "wall": each, "own": each}]} for each in seconds])
        write_summary(path, summarize({name: results}, TINY, machine="2 processors", load=[1.0, 2.0], versions={}))
    data = json.loads(path.read_text())
    figures = data["benchmarks"]["record"]["rows"][0]["figures"]
    assert figures["cpu"] == {"least": 2.0, "median": 3.0, "spread": 0.471}
    assert [*data["benchmarks"]] == ["record", "sync"]
    table = table_of_summary("record", data["benchmarks"]["record"])
    assert "| ferrule: store, start and end of a call | 3.00 (2.00; ±47%)" in table and "load 1.0 to 2.0" in table


def test_ratio_is_the_median_of_the_ratios_within_rounds():
    row, other = ("ferrule", ""), ("baseline", "")
    results = Results(
        rounds=[{row: [{"cpu": 2.0}], other: [{"cpu": 1.0}]}, {row: [{"cpu": 60.0}], other: [{"cpu": 20.0}]}]
    )
    assert results.ratio(row, other, "cpu") == 2.5
    assert results.median(row, "cpu") == 31.0


def test_goal_is_met_missed_or_not_measured():
    goal = REPORTS["call"].goals[0]
    measurements = [Results(rounds=[{goal.row: [{goal.figure: seconds}]}]) for seconds in (24e-6, 26e-6)]
    assert [is_met(results, goal) for results in (*measurements, Results())] == [True, False, None]


@pytest.mark.integration
def test_error_of_a_failed_process_has_the_last_line_of_its_output():
    with pytest.raises(ProcessError, match="^ValueError: no such thing$"):
        run(["python3", "-c", "raise ValueError('no such thing')"])


@pytest.mark.integration
def test_process_is_killed_on_timeout():
    with pytest.raises(ProcessError, match=r"timed out after 0\.2 s"):
        run(["sleep", "60"], timeout=0.2)


def test_unknown_benchmark_or_contestant_is_rejected():
    with pytest.raises(argparse.ArgumentTypeError, match="no benchmark 'speed'; use some of call,"):
        _benchmarks("call,speed")
    with pytest.raises(argparse.ArgumentTypeError, match="no contestant 'other'; use some of ferrule,baseline,"):
        _contestants("other")


@pytest.mark.long
def test_failing_call_is_executed_once_with_a_memory():
    samples = measure("ferrule", "failing_call", TINY)
    assert [samples[variant][0]["executions"] for variant in ("Agent.run", "Agent.run, memory=False")] == [1, 20]
    results = Results(rounds=[{("ferrule", variant): rows for variant, rows in samples.items()}])
    table = table_of("failing_call", results, TINY)
    assert "| ferrule: Agent.run               | 1          | 4           | answer: I could not finish this" in table


async def test_endless_run_is_stopped_and_reported():
    def make(script):
        async def endless():
            while script.next_call():
                pass

        async def fail():
            await read_count(**script.next_call()[1])

        return {"endless": endless, "fail": fail}

    samples = await measure_failing_call(make, TINY, sync=False)
    assert samples["endless"][0]["ending"] == "no end after 25 model calls"
    assert samples["fail"][0]["ending"] == "aborted: ValueError"
    assert samples["fail"][0]["executions"] == 1


@pytest.mark.long
def test_legitimate_calls_are_compared_with_their_results_without_a_memory():
    samples = measure("ferrule", "memory", TINY)
    with_memory, without = samples["with RunMemory"][0], samples["without"][0]
    assert with_memory["successes"] == without["successes"] >= TINY.memory_calls
    assert without["false_blocks"] == without["refused"] == without["recalled"] == 0
    undeclared = samples["with RunMemory, polling a tool that does not declare it"][0]
    assert undeclared["recalled"] > undeclared["false_blocks"] >= 0
