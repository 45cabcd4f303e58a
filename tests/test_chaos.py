"""Every chaos scenario runs with a minimal load and sees no broken promise. `make chaos` runs them with a real one."""

import argparse
import sys

import pytest
from chaos import run
from chaos.run import Report, _scenarios, format_table, run_scenario, write_report
from chaos.scenario import Outcome
from chaos.scenarios import SCENARIOS


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the scenarios use Linux's /proc and limits")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_runs_and_no_promise_is_broken(scenario):
    report = run_scenario(scenario, fraction=0.001, seed=1)
    assert report.outcome.failures == [] and report.outcome.figures


def test_report_is_written_between_the_markers(tmp_path, monkeypatch):
    page = tmp_path / "reliability.md"
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    monkeypatch.setattr(run, "REPORT", page)
    broken = Outcome(figures={"calls": 1234, "growth, MB": 1.25}, failures=["a call is lost"])
    write_report(format_table([Report(scenario=SCENARIOS[0], outcome=broken, seconds=3.2)]))
    text = page.read_text()
    assert text.startswith(f"before\n{run.BEGIN}\n\n| what") and text.endswith(f"{run.END}\nafter\n")
    assert "calls: 1,234; growth, MB: 1.2 | 3 | **1 broken** |" in text and "old" not in text


def test_page_of_the_manual_has_the_markers_and_a_report():
    page = run.REPORT.read_text(encoding="utf-8")
    report = page.partition(run.BEGIN)[2].partition(run.END)[0]
    assert all(f"| {scenario.title} |" in report for scenario in SCENARIOS) and "Broken promises: 0." in report


def test_unknown_scenario_is_rejected():
    with pytest.raises(argparse.ArgumentTypeError, match="no scenario 'flood'; use some of concurrent,"):
        _scenarios("kill,flood")
