"""The benchmarks run: Ferrule's side of each and the floors, with next to no effort. Nothing here is timed."""

import argparse
import json

import pytest
from benchmarks.contestants import CONTESTANTS, FERRULE, IMPORT
from benchmarks.effort import Effort
from benchmarks.environments import environment_for
from benchmarks.goals import REPORTS
from benchmarks.measure import measure
from benchmarks.processes import Failure, run
from benchmarks.rounds import Results, run_rounds
from benchmarks.run import _benchmarks, _plain
from benchmarks.samples import read_count
from benchmarks.stubborn import measure_stubborn
from benchmarks.tables import judge, table_of

TINY = Effort(samples=1, seconds=0.0, calls=3, functions=3, further=3, patience=25, replayed=100)
FLOOR = next(contestant for contestant in CONTESTANTS if contestant.name == "floor")


OURS = [(contestant, name) for contestant in (FERRULE, FLOOR) for name in contestant.benchmarks if name != IMPORT]


@pytest.mark.parametrize(("contestant", "benchmark"), OURS, ids=[f"{name}-{c.name}" for c, name in OURS])
def test_a_benchmark_runs(contestant, benchmark):
    measured = measure(contestant.module, benchmark, TINY)
    assert measured and all(len(samples) == 1 for samples in measured.values())
    assert all(sample["cpu"] > 0 for samples in measured.values() for sample in samples)
    report = REPORTS[benchmark]
    named = [report.compared_to, *(goal.row for goal in report.goals), *(goal.times for goal in report.goals)]
    assert {way for name, way in filter(None, named) if name == contestant.name} <= set(measured)


def test_rounds_are_measured_in_processes_of_their_own_and_become_a_table():
    results = Results()
    said: list[str] = []
    contestants = {contestant: environment_for(contestant) for contestant in (FERRULE, FLOOR)}
    run_rounds("record", contestants, rounds=2, effort=TINY, results=results, progress=said.append)
    assert said[:2] == ["record, round 1 of 2: ferrule", "record, round 1 of 2: floor"]
    assert said[2:] == ["record, round 2 of 2: floor", "record, round 2 of 2: ferrule"]
    assert "| ferrule: store, start and end of a call" in table_of("record", results, TINY)
    assert json.dumps(_plain({"record": results}))


def test_a_ratio_is_taken_round_by_round():
    row, other = ("ferrule", ""), ("floor", "")
    results = Results(
        rounds=[{row: [{"cpu": 2.0}], other: [{"cpu": 1.0}]}, {row: [{"cpu": 60.0}], other: [{"cpu": 20.0}]}]
    )
    assert results.ratio(row, other, "cpu") == 2.5
    assert (results.median(row, "cpu"), results.least(row, "cpu")) == (31.0, 2.0)


def test_a_goal_is_met_missed_or_not_measured():
    goal = REPORTS["call"].goals[0]
    measured = [Results(rounds=[{goal.row: [{goal.figure: seconds}]}]) for seconds in (24e-6, 26e-6)]
    assert [judge(results, goal) for results in (*measured, Results())] == [True, False, None]


def test_a_process_that_fails_is_quoted():
    with pytest.raises(Failure, match="^ValueError: no such thing$"):
        run(["python3", "-c", "raise ValueError('no such thing')"])


def test_a_process_that_takes_too_long_is_ended():
    with pytest.raises(Failure, match="longer than 0.2 s"):
        run(["sleep", "60"], timeout=0.2)


def test_an_unknown_benchmark_is_refused():
    with pytest.raises(argparse.ArgumentTypeError, match="no benchmark 'speed'; write some of call,"):
        _benchmarks("call,speed")


def test_a_stubborn_model_gets_its_failing_call_once():
    measured = measure("ferrule", "stubborn", TINY)
    assert [measured[way][0]["executions"] for way in ("Agent.run", "Agent.run, memory=False")] == [1, 20]
    table = table_of("stubborn", Results(rounds=[{("ferrule", way): found for way, found in measured.items()}]), TINY)
    assert "| ferrule: Agent.run               | 1          | 20          | answer: I could not finish this" in table


async def test_a_run_without_end_is_ended_and_says_so():
    def make(mind):
        async def for_ever():
            while mind.wish():
                pass

        async def fails_at_once():
            await read_count(**mind.wish()[1])

        return {"for ever": for_ever, "fails at once": fails_at_once}

    measured = await measure_stubborn(make, TINY, sync=False)
    assert measured["for ever"][0]["ending"] == "no end in 25 model calls"
    assert (measured["fails at once"][0]["ending"], measured["fails at once"][0]["executions"]) == (
        "aborted: ValueError",
        1,
    )


def test_good_calls_are_compared_with_what_they_give_without_a_memory():
    measured = measure("ferrule", "replay", TINY)
    with_memory, without = measured["with RunMemory"][0], measured["without"][0]
    assert with_memory["good"] == without["good"] >= TINY.replayed
    assert without["false_blocks"] == without["spared"] == without["recalled"] == 0
    undeclared = measured["with RunMemory, polls of a tool that does not say it polls"][0]
    assert undeclared["recalled"] > undeclared["false_blocks"] >= 0
