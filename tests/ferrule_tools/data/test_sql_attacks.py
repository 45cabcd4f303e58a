"""SQL that wants more than to read the tables it was given."""

import os

import pytest

from ferrule import ToolEngine
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, TimedOut
from ferrule_tools.data import DataAnalyzerConfig, data_analyzer_tools
from ferrule_tools.data.files import DataFile, TypeDetection
from ferrule_tools.data.query import TABLE_FUNCTIONS, open_database
from ferrule_tools.files.workspace import Workspace
from tests.ferrule_tools.data.data_files import SALES, analyzer_in

NOT_A_QUERY = [
    "COPY (SELECT 1) TO 'stolen.csv'",
    "COPY t FROM '/etc/passwd'",
    "ATTACH 'x.db' AS x",
    "ATTACH ':memory:' AS x",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "SET VARIABLE x = 1",
    "CREATE TABLE x AS SELECT 1",
    "CREATE MACRO f() AS TABLE FROM read_text('/etc/passwd')",
    "CREATE SECRET s (TYPE s3)",
    "INSERT INTO t VALUES (1)",
    "DELETE FROM t RETURNING *",
    "DROP VIEW t",
    "CALL pragma_version()",
    "CHECKPOINT",
    "EXPORT DATABASE 'x'",
    "IMPORT DATABASE 'x'",
    "USE memory",
    "BEGIN",
    "EXPLAIN ANALYZE SELECT 1",
    "PREPARE p AS SELECT 1",
    "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
    "SELECT 1; COPY (SELECT 1) TO 'stolen.csv'",
    "SELECT 1; SELECT 2",
    "/* SELECT */ DROP VIEW t -- SELECT",
    "PIVOT t ON day",
]
OUTSIDE = [
    "FROM read_csv('/etc/passwd')",
    "FROM read_text('/etc/passwd')",
    "SELECT content FROM READ_BLOB('/etc/passwd')",
    "FROM \"read_text\"('/etc/passwd')",
    "FROM system.main.read_text('/etc/passwd')",
    "FROM read_text('/proc/self/environ')",
    "FROM read_text('/proc/self/fd/3')",
    "FROM glob('/etc/*')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM parquet_metadata('/etc/passwd')",
    "FROM read_duckdb('/etc/passwd')",
    "FROM query('FROM read_text(''/etc/passwd'')')",
    "FROM query_table(['/etc/passwd'])",
    "FROM json_execute_serialized_sql('{}')",
    "FROM duckdb_settings()",
    "FROM duckdb_logs()",
    "FROM arrow_scan(1, 2, 3)",
    "FROM pandas_scan(1)",
    "FROM histogram('/etc/passwd', x)",
    "SELECT (SELECT max(content) FROM read_text('/etc/passwd'))",
    "SELECT 1 WHERE EXISTS (FROM read_text('/etc/passwd'))",
    "WITH x AS (FROM read_text('/etc/passwd')) FROM x",
    "SELECT * FROM t, LATERAL (FROM read_text(t.region))",
    "(SELECT 'a') UNION ALL (SELECT content FROM read_text('/etc/passwd'))",
    "SELECT 1 ORDER BY (SELECT content FROM read_text('/etc/passwd'))",
    "PIVOT (FROM read_text('/etc/passwd')) ON size IN (1)",
    "SUMMARIZE FROM read_text('/etc/passwd')",
    "DESCRIBE FROM read_text('/etc/passwd')",
    "SELECT write_log('x')",
    "SELECT getvariable('x')",
    "SELECT finalize('x'::BLOB)",
    "SELECT json_serialize_plan('SELECT getvariable(''x'')', optimize := true)",
    "SELECT json_serialize_plan('FROM duckdb_settings()')",
    "SELECT * FROM json_each(JSON_Serialize_Plan('FROM t'))",
    "SELECT json_deserialize_sql(json_serialize_sql('SELECT 1'))",
    "SELECT current_setting('temp_directory')",
    "FROM '/etc/passwd'",
    "FROM '/etc/passwd.csv'",
    "FROM '../secret.csv'",
    "FROM 'x/../../secret.csv'",
    "FROM '*.csv'",
    "SUMMARIZE '../secret.csv'",
    "FROM '/proc/self/environ'",
    "FROM 'file:///etc/passwd.csv'",
    "FROM 's3://bucket/a.parquet'",
    "SELECT getenv('HOME')",
]


def test_only_one_select_is_run(tmp_path):
    (tmp_path / "t.csv").write_text(SALES)
    for sql in NOT_A_QUERY:
        with pytest.raises((Refuse, Retry), match="only SELECT is allowed|statements in the SQL"):
            analyzer_in(tmp_path).query(sql, files=["t.csv"])
    assert os.listdir(tmp_path) == ["t.csv"]


def test_nothing_is_read_but_the_tables(tmp_path):
    (tmp_path / "secret.csv").write_text("key\nhunter2\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "t.csv").write_text(SALES)
    for sql in OUTSIDE:
        try:
            output = analyzer_in(tmp_path / "inner").query(sql, files=["t.csv"])
        except CallError as error:
            assert "root:" not in str(error) and "hunter2" not in str(error), sql
        else:
            raise AssertionError(f"{sql} returned {output}")


def test_duckdb_itself_cannot_open_anything_else_either(tmp_path):
    (tmp_path / "t.csv").write_text(SALES)
    other = os.open("/etc/passwd", os.O_RDONLY)
    try:
        with open_database(Workspace.at(tmp_path), DataAnalyzerConfig(), TypeDetection.SAMPLE) as database:
            database.restrict_to_files({"t": DataFile(path="t.csv")})
            for sql in (
                "FROM read_text('/etc/passwd')",
                f"FROM read_text('/proc/self/fd/{other}')",
                f"FROM read_text('/dev/fd/{other}')",
                "FROM glob('/etc/*')",
                f"COPY (SELECT 1) TO '{tmp_path}/stolen.csv'",
                f"ATTACH '{tmp_path}/x.db'",
                "INSTALL httpfs",
                "LOAD httpfs",
                "SET memory_limit = '1TB'",
                "SET lock_configuration = false",
                "SET allowed_paths = ['/etc/passwd']",
            ):
                with pytest.raises((Refuse, Retry)):
                    database.rows(sql)
            assert len(database.rows("FROM t")) == 4
    finally:
        os.close(other)
    assert os.listdir(tmp_path) == ["t.csv"]


def test_variables_of_the_program_are_no_tables(tmp_path):
    import numpy

    stolen = {"a": numpy.array([1, 2])}
    with pytest.raises(Retry, match="no table 'stolen'"):
        analyzer_in(tmp_path).query("SELECT * FROM stolen")
    assert stolen


def test_files_whose_names_are_one_to_duckdb_are_not_mixed_up(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,small\n")
    (tmp_path / "X.csv").write_text("a,b\n1,LARGE\n")
    with pytest.raises((Retry, ExecutionFailed), match=r"are equal for DuckDB|does not exist"):
        analyzer_in(tmp_path).query("SELECT p.b, q.b FROM 'x.csv' p JOIN 'X.csv' q USING (a)")


def test_functions_that_only_compute_are_allowed(tmp_path):
    assert "range" in TABLE_FUNCTIONS
    for sql, rows in (
        ("SELECT x FROM range(2) t(x)", [[0], [1]]),
        ("SELECT unnest FROM unnest([1, 2])", [[1], [2]]),
        ("SELECT value FROM json_each('[7]')", [["7"]]),
        ("SELECT regexp_extract('a1', '[0-9]'), 'it''s; -- no end'", [["1", "it's; -- no end"]]),
        ("VALUES (1), (2); -- done", [[1], [2]]),
    ):
        assert analyzer_in(tmp_path).query(sql)["rows"] == rows


def test_the_name_of_a_table_is_only_a_name(tmp_path):
    (tmp_path / "t.csv").write_text("a\n1\n")
    for name in ('x"; DROP TABLE y; --', "x' OR 1=1", "a b", "选", "select", "x\ny", "😀"):
        quoted = '"' + name.replace('"', '""') + '"'
        assert analyzer_in(tmp_path).query(f"SELECT a FROM {quoted}", tables={name: "t.csv"})["rows"] == [[1]]
    for names in ([""], ["a", "A"]):
        with pytest.raises(CallError):
            analyzer_in(tmp_path).query("SELECT 1", tables=dict.fromkeys(names, "t.csv"))


def test_sql_that_is_nested_too_deep_or_too_long_is_refused(tmp_path):
    for sql in (
        "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
        "SELECT " + "1+" * 20_000 + "1",
        "SELECT 1" + " " * 60_000,
    ):
        with pytest.raises(Retry):
            analyzer_in(tmp_path).query(sql)


ENDLESS = [
    "WITH RECURSIVE x AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM x) SELECT count(*) FROM x",
    "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = -1",
]


@pytest.mark.parametrize("sql", ENDLESS)
def test_a_query_without_end_is_stopped(tmp_path, sql):
    with pytest.raises(TimedOut, match="took too long"):
        analyzer_in(tmp_path, timeout=0.5).query(sql)


@pytest.mark.integration
async def test_a_query_without_end_is_ended_with_its_process(tmp_path):
    async with ToolEngine() as engine:
        engine.register(*data_analyzer_tools(DataAnalyzerConfig(timeout=240), root=tmp_path))
        result = await engine.execute("data_analyzer__query", {"sql": ENDLESS[0]}, timeout=1.5)
        again = await engine.execute("data_analyzer__query", {"sql": "SELECT 1"})
    assert result.error_type == "timeout" and again.output["rows"] == [[1]]


@pytest.mark.integration
async def test_a_query_that_takes_too_much_memory_fails_and_the_process_lives(tmp_path):
    config = DataAnalyzerConfig(memory_mb=64, disk_mb=20, timeout=240)
    async with ToolEngine() as engine:
        engine.register(*data_analyzer_tools(config, root=tmp_path))
        for sql in (
            "SELECT repeat('x', 2000000000)",
            "SELECT range(1000000000)",
            "SELECT list(range) FROM range(200000000)",
            "SELECT max(b) FROM (SELECT md5(range::VARCHAR) AS b FROM range(9000000) ORDER BY b LIMIT 8000000)",
        ):
            result = await engine.execute("data_analyzer__query", {"sql": sql})
            assert "needs more memory or disk than it may use" in str(result.error), sql
        again = await engine.execute("data_analyzer__query", {"sql": "SELECT 1"})
    assert again.is_success
