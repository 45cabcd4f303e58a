"""The benchmark `mcp` runs, with next to no effort. Nothing here is timed."""

from benchmarks.effort import Effort
from benchmarks.goals import MCP, REPORTS
from benchmarks.mcp_call import run_mcp
from benchmarks.rounds import Results
from benchmarks.tables import table_of


def test_a_call_is_measured_beside_the_sdk_in_turns():
    results, effort = Results(), Effort(samples=1, seconds=0.0)
    run_mcp(rounds=2, effort=effort, results=results)
    assert results.failures == {} and len(results.rounds) == 2
    report = REPORTS[MCP]
    assert {report.compared_to, report.goals[0].row} <= set(results.rows())
    assert "× Client.call_tool" in table_of(MCP, results, effort)
