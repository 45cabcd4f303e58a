"""Tables in files: described, asked in SQL, summarised."""

import json
import math
from decimal import Decimal

import pytest

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule.agent import Agent
from ferrule.errors import ExecutionFailed, Retry, SetupError
from ferrule.testing import ScriptedModel
from ferrule_tools.data import DataAnalyzerConfig, data_analyzer_tools
from ferrule_tools.data.limits import MAX_CELL, MAX_CHARACTERS, Column, rows_output, to_json_cell
from tests.ferrule_tools.data.data_files import SALES, analyzer_in, parquet, workbook


def columns(output):
    return {each["name"]: each for each in output["columns"]}


# Through the doors


@pytest.mark.integration
async def test_a_file_is_described_and_asked_through_the_engine(tmp_path):
    (tmp_path / "sales.csv").write_text(SALES)
    async with ToolEngine() as engine:
        engine.register(*data_analyzer_tools(root=tmp_path))
        output = await engine.execute("data_analyzer__describe", {"file": "sales.csv"})
        answer = await engine.execute(
            "data_analyzer",
            {"sql": "SELECT region, sum(amount) FROM 'sales.csv' GROUP BY 1 ORDER BY 1"},
            action="query",
        )
    assert (output.output["rows"], output.output["table"]) == (4, "sales")
    assert answer.output["rows"] == [["North", 40.5], ["South", 20.0], [None, 7.0]]


@pytest.mark.integration
async def test_an_agent_asks_after_it_has_looked(tmp_path):
    (tmp_path / "sales.csv").write_text(SALES)
    wrong = {"sql": "SELECT max(amount) FROM sales"}
    right = {**wrong, "files": ["sales.csv"]}
    calls = [{"name": "data_analyzer__query", "arguments": arguments} for arguments in (wrong, right)]
    async with UnifiedToolLibrary() as library:
        library.register(*data_analyzer_tools(root=tmp_path))
        answer = await Agent(library, ScriptedModel([*calls, "30."])).run("What was the largest sale?")
    assert [step.is_success for step in answer.steps] == [False, True]
    assert "there is no table 'sales'" in answer.steps[0].text and "30.0" in answer.steps[1].text


def test_each_action_declares_its_effects(tmp_path):
    (tool,) = data_analyzer_tools(DataAnalyzerConfig(timeout=7), root=tmp_path)
    effects = {each.name: tool.spec.effects_of(each) for each in tool.spec.capabilities}
    assert [name for name, effect in effects.items() if effect.read_only] == ["describe", "query", "summarise"]
    assert not any(effect.destructive for effect in effects.values())
    assert (tool.needs, tool.spec.limits.timeout, tool.spec.limits.isolation) == ("", 12.0, "process")


def test_without_duckdb_the_tool_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("ferrule_tools._tool_setup.find_spec", lambda name: None)
    (tool,) = data_analyzer_tools(root=tmp_path)
    assert tool.needs == "the package duckdb: pip install 'ferrule[data]'"


@pytest.mark.parametrize("limits", [{"memory_mb": 1}, {"threads": 0}, {"timeout": 0}, {"max_rows": 0}, {"disk_mb": -1}])
def test_invalid_limits_are_a_setup_error(limits):
    with pytest.raises(SetupError, match=next(iter(limits))):
        DataAnalyzerConfig(**limits)


# Describing


def test_a_description_has_types_nulls_ranges_and_examples(tmp_path):
    (tmp_path / "sales.csv").write_text(SALES)
    output = columns(analyzer_in(tmp_path).describe("sales.csv"))
    assert [each["type"] for each in output.values()] == ["DATE", "VARCHAR", "DOUBLE"]
    assert (output["region"]["nulls"], output["region"]["examples"]) == (1, ["North", "South"])
    assert (output["day"]["min"], output["day"]["max"]) == ("2024-01-05", "2024-02-03")
    assert (output["amount"]["min"], output["amount"]["max"], output["amount"]["distinct_about"]) == (7.0, 30.0, 4)


def test_a_wide_file_is_described_by_its_first_columns(tmp_path):
    (tmp_path / "wide.csv").write_text(",".join(f"c{i}" for i in range(300)) + "\n" + ",".join(["1"] * 300) + "\n")
    output = analyzer_in(tmp_path).describe("wide.csv")
    assert len(output["columns"]) == 200 and output["left_out"].startswith("100 more columns")


def test_a_column_name_with_quotes_is_only_a_name(tmp_path):
    (tmp_path / "odd.csv").write_text('"a""; DROP TABLE x --",c\'d\n1,2\n')
    output = analyzer_in(tmp_path).describe("odd.csv")
    assert [each["name"] for each in output["columns"]] == ['a"; DROP TABLE x --', "c'd"]
    summary = analyzer_in(tmp_path).summarise("odd.csv", group_by=["c'd"])
    assert summary["rows"] == [[2, 1, 1, 1.0, 1, 1]]


# Asking


def test_several_files_are_joined_by_the_names_they_are_given(tmp_path):
    (tmp_path / "orders.csv").write_text("id,customer\n1,7\n2,7\n3,8\n")
    parquet(tmp_path / "who.parquet", "SELECT * FROM (VALUES (7, 'Ann'), (8, 'Bo')) t(id, name)")
    sql = "SELECT who.name, count(*) FROM o JOIN who ON who.id = o.customer GROUP BY 1 ORDER BY 2 DESC"
    output = analyzer_in(tmp_path).query(sql, tables={"o": "orders.csv"}, files=["who.parquet"])
    assert output["rows"] == [["Ann", 2], ["Bo", 1]]


def test_a_table_is_named_like_its_file_in_a_way_that_needs_no_quotes(tmp_path):
    (tmp_path / "2024 销售-final.csv").write_text("a\n1\n2\n")
    output = analyzer_in(tmp_path).query("SELECT count(*) FROM t_2024_销售_final", files=["2024 销售-final.csv"])
    assert output["rows"] == [[2]]
    with pytest.raises(Retry, match="two tables would be called 'a'"):
        analyzer_in(tmp_path).query("SELECT 1", files=["a.csv", "x/a.json"])


def test_a_name_that_the_query_itself_makes_is_no_file(tmp_path):
    output = analyzer_in(tmp_path).query('WITH "a.csv" AS (SELECT 5 AS v) SELECT v FROM "a.csv"')
    assert output["rows"] == [[5]]


def test_more_rows_than_asked_for_are_left_out_and_told(tmp_path):
    output = analyzer_in(tmp_path, max_rows=50).query("SELECT * FROM range(1000000000000)", limit=9999)
    assert output["row_count"] == 50 and "only the first 50 rows" in output["left_out"]
    whole = analyzer_in(tmp_path).query("SELECT * FROM range(3)", limit=3)
    assert whole["row_count"] == 3 and "left_out" not in whole


def test_long_values_and_long_answers_are_cut(tmp_path):
    output = analyzer_in(tmp_path).query("SELECT repeat('长', 20000) AS t FROM range(100)")
    assert output["rows"][0][0].endswith("… (20,000 characters)") and output["row_count"] < 20
    assert len(json.dumps(output, ensure_ascii=False)) < MAX_CHARACTERS + 2 * MAX_CELL


def test_values_of_every_type_become_json(tmp_path):
    sql = (
        "SELECT 1.50::DECIMAL(10,2), 12345678901234567890.12::DECIMAL(38,2), 170141183460469231731687303715884105727,"
        " DATE '2024-02-29', TIMESTAMPTZ '2024-01-01 08:00:00+08', INTERVAL 1 DAY, 'ab'::BLOB, {'a': [1, NULL]},"
        " 'nan'::DOUBLE, UUID '00000000-0000-0000-0000-000000000001', NULL, true"
    )
    (row,) = analyzer_in(tmp_path).query(sql)["rows"]
    assert row[:3] == [1.5, "12345678901234567890.12", 2**127 - 1]
    assert row[3:7] == ["2024-02-29", "2024-01-01T00:00:00+00:00", "1 day, 0:00:00", "YWI="]
    assert row[7:] == [{"a": [1, None]}, "nan", "00000000-0000-0000-0000-000000000001", None, True]


def test_sql_errors_say_what_to_correct(tmp_path):
    (tmp_path / "sales.csv").write_text(SALES)
    for sql, message in (
        ("SELECT amout FROM 'sales.csv'", "amount"),
        ("SELEC 1", "syntax error"),
        ("", "0 statements"),
    ):
        with pytest.raises(Retry, match=message):
            analyzer_in(tmp_path).query(sql)
    with pytest.raises(ExecutionFailed, match=r"Did you mean 'sales\.csv'"):
        analyzer_in(tmp_path).query("FROM 'sale.csv'")


# Summaries


def test_numbers_texts_and_moments_are_summarised_each_in_its_way(tmp_path):
    (tmp_path / "sales.csv").write_text(SALES)
    output = columns(analyzer_in(tmp_path).summarise("sales.csv"))
    amount = output["amount"]
    assert (amount["count"], amount["mean"], amount["median"], amount["sum"]) == (4, 16.875, 15.25, 67.5)
    assert math.isclose(amount["std"], 10.331, rel_tol=1e-3)
    assert output["region"]["frequent"] == [{"value": "North", "count": 2}, {"value": "South", "count": 1}]
    assert "mean" not in output["day"] and output["day"]["max"] == "2024-02-03"


def test_groups_are_counted_and_their_numbers_summed(tmp_path):
    (tmp_path / "sales.csv").write_text(SALES)
    output = analyzer_in(tmp_path).summarise("sales.csv", columns=["amount"], group_by=["REGION"], limit=2)
    names = [each["name"] for each in output["columns"]]
    assert names == ["region", "rows", "sum of amount", "avg of amount", "min of amount", "max of amount"]
    assert output["rows"] == [["North", 2, 40.5, 20.25, 10.5, 30.0], ["South", 1, 20.0, 20.0, 20.0, 20.0]]
    assert "only the first 2 rows" in output["left_out"]


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path):
    (tmp_path / "sales.csv").write_text(SALES)
    with pytest.raises(Retry, match="has no column 'regon'. Did you mean 'region'"):
        analyzer_in(tmp_path).summarise("sales.csv", group_by=["regon"])


def test_an_empty_table_and_one_row_have_summaries_too(tmp_path):
    (tmp_path / "none.csv").write_text("a,b\n")
    (tmp_path / "one.xlsx").write_bytes(workbook(S=[["a"], [3]]))
    assert analyzer_in(tmp_path).summarise("none.csv")["rows"] == 0
    output = columns(analyzer_in(tmp_path).summarise("one.xlsx"))
    assert (output["a"]["mean"], output["a"]["std"]) == (3.0, None)


# Values as JSON


def test_a_value_that_contains_itself_is_limited_in_depth():
    circle: list[object] = []
    circle.append(circle)
    assert json.dumps(to_json_cell(circle)).count("[") == 20


def test_decimals_that_a_float_may_not_hold_become_text():
    given = ["1.50", "5.00", "12345678901234", "1234567890123456", "0.1234567890123456", "1E+300", "NaN"]
    cells = [to_json_cell(Decimal(text)) for text in given]
    assert cells == [1.5, 5, 12345678901234, *given[3:]]


def test_rows_are_cut_by_their_length_but_one_is_always_there():
    (only,) = rows_output([Column(name="a", type="t")], [["x" * 5_000] * 100], 10, advice="Less.")["rows"]
    assert len(only) == 100
