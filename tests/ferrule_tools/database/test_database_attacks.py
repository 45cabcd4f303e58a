"""SQL that wants to write, to leave the database, or never to end."""

import os
import sqlite3

import pytest

from ferrule import ToolEngine
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, TimedOut, Transient
from ferrule_tools.database import DatabaseConfig, DatabaseQueryConfig, database_query_tools
from tests.ferrule_tools.database.conftest import databases, timeout_of

WRITING = [
    "INSERT INTO orders VALUES (99, 1, 1)",
    "UPDATE orders SET pieces = 0",
    "DELETE FROM orders",
    "DROP TABLE orders",
    "CREATE TABLE stolen (a INTEGER)",
    "CREATE TEMPORARY TABLE stolen (a INTEGER)",
    "ALTER TABLE orders ADD COLUMN x INTEGER",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SELECT 1; DELETE FROM orders",
    "SELECT 1; COMMIT; DELETE FROM orders",
    "SELECT 1;\n-- \nDROP TABLE orders; SELECT 1",
    "WITH x AS (SELECT 1) DELETE FROM orders",
    "EXPLAIN DELETE FROM orders",
    "/* SELECT */ DELETE FROM orders",
    "VACUUM",
    "REINDEX",
    "SELECT * FROM orders WHERE id = 1\0; DROP TABLE orders",
]
IN_SQLITE = [
    "ATTACH '{folder}/stolen.db' AS s",
    "VACUUM INTO '{folder}/stolen.db'",
    "SELECT load_extension('/tmp/x.so')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT writefile('{folder}/stolen.db', 'x')",
    "SELECT readfile('/etc/passwd')",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_journal_mode",
    "PRAGMA query_only = OFF",
    "PRAGMA writable_schema = ON",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA temp_store_directory = '/tmp'",
    "SELECT * FROM sqlite_dbpage",
    "EXPLAIN ATTACH 'x' AS y",
    "REPLACE INTO orders VALUES (1, 1, 1)",
    "SELECT randomblob(2000000000)",
    "SELECT hex(zeroblob(45000000))",
    "SELECT replace(hex(zeroblob(20000000)), '0', 'aaaaaaaaaa')",
    "SELECT '" + "a" * 60_000 + "'",
    "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
]
IN_POSTGRES = [
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT \"pg_read_file\" /* x */ ('/etc/passwd')",
    "SELECT PG_CATALOG.pg_read_binary_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT ('/etc/passwd'::text).pg_read_file",
    "SELECT (ARRAY['/etc/passwd'])[1] . \"pg_read_file\"",
    "SELECT /* /* */ ' */ pg_read_file('/etc/passwd') -- '",
    "SELECT 1 AS a$$, pg_read_file('/etc/passwd') AS b",
    "SELECT E'a' \n --\n 'b\\' ', pg_read_file('/etc/passwd') --'",
    "SELECT 1 --\r, pg_read_file('/etc/passwd')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT lo_export(1, '{folder}/stolen.db')",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT * FROM dblink('host=/tmp', 'DELETE FROM orders') AS t(a int)",
    "SELECT query_to_xml('DELETE FROM orders', true, true, '')",
    "SELECT U&\"pg\\005fread_file\"('/etc/passwd')",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT set_config('statement_timeout', '0', false)",
    "SELECT pg_terminate_backend(pg_backend_pid())",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_notify('a', 'b')",
    "SELECT nextval('counter')",
    "SELECT setval('counter', 5)",
    "SELECT sneaky()",
    "SELECT * FROM orders FOR UPDATE",
    "SELECT 1 AS a INTO stolen",
    "WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone",
    "COPY orders TO '{folder}/stolen.db'",
    "COPY orders TO PROGRAM 'touch {folder}/stolen.db'",
    "COPY orders FROM '/etc/passwd'",
    "DO $$ BEGIN DELETE FROM orders; END $$",
    "CALL sneaky()",
    "SET ROLE ferrule",
    "SET TRANSACTION READ WRITE",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "RESET ALL",
    "LISTEN x",
    "LOAD 'auto_explain'",
    "EXPLAIN ANALYZE DELETE FROM orders",
    "PREPARE p AS DELETE FROM orders",
    "TABLE pg_authid",
    "SELECT * FROM pg_shadow",
    "CREATE EXTENSION dblink",
    "ALTER SYSTEM SET log_statement = 'all'",
    "LOCK TABLE orders",
    "SELECT 1) ; DELETE FROM orders; --",
    "FETCH ALL FROM ferrule_rows",
]


def count_of_orders(shop):
    return shop.query("SELECT count(*) FROM orders", database="main")["rows"]


def not_refused(ask, statements, folder, *errors):
    """The statements that did not end with a refusal, a correctable error, or one of these errors."""
    accepted = []
    for sql in statements:
        try:
            ask(sql.format(folder=folder) if "{folder}" in sql else sql)
        except (Refuse, Retry, *errors) as error:
            assert "root:" not in str(error), sql
        else:
            accepted.append(sql)
    return accepted


@pytest.mark.parametrize("database", ["main", "open"])
def test_a_query_changes_nothing_even_in_a_writable_database(shop, tmp_path, database):
    assert not_refused(lambda sql: shop.query(sql, database=database), WRITING, tmp_path) == []
    assert count_of_orders(shop) == [[3]]
    assert {each["name"] for each in shop.schema(database="main")["tables"]} == {"products", "orders", "cheap"}


def test_sqlite_stays_in_its_file(shop_file):
    shop = databases(main=DatabaseConfig(url=f"sqlite:///{shop_file}"))
    before = shop_file.read_bytes()
    assert not_refused(shop.query, IN_SQLITE, shop_file.parent) == []
    assert os.listdir(shop_file.parent) == ["shop.db"] and shop_file.read_bytes() == before


def test_writing_is_limited_to_the_database_file(shop_file):
    shop = databases(main=DatabaseConfig(url=f"sqlite:///{shop_file}", read_only=False))
    leaving = [each for each in IN_SQLITE if each.startswith(("ATTACH", "VACUUM", "PRAGMA"))]
    assert not_refused(shop.execute, leaving, shop_file.parent) == []
    assert os.listdir(shop_file.parent) == ["shop.db"]


@pytest.mark.integration
def test_postgres_stays_in_its_tables(reader_url, tmp_path):
    tmp_path.chmod(0o777)
    shop = databases(main=DatabaseConfig(url=reader_url))
    assert not_refused(shop.query, IN_POSTGRES, tmp_path, ExecutionFailed) == []
    assert os.listdir(tmp_path) == [] and count_of_orders(shop) == [[3]]


@pytest.mark.integration
def test_functions_cannot_be_called_through_values(shop_server):
    shop = databases(main=DatabaseConfig(url=shop_server, allow_superuser=True))
    with pytest.raises(Refuse, match="'pg_advisory_lock' is not allowed"):
        shop.query("SELECT :key.pg_advisory_lock", {"key": 1})


@pytest.mark.integration
def test_names_that_only_look_like_functions_are_allowed(reader_url):
    shop = databases(main=DatabaseConfig(url=reader_url))
    sql = (
        "SELECT dblink, 'lo_export(1)' AS x, lo.lo_a FROM (SELECT 1 AS dblink) t, (SELECT 2 AS lo_a) lo -- dblink('x')"
    )
    assert shop.query(sql)["rows"] == [[1, "lo_export(1)", 2]]


@pytest.mark.integration
@pytest.mark.parametrize("role", ["ferrule", "filer"])
def test_a_role_with_access_to_files_is_refused(shop_server, role):
    url = shop_server.replace("ferrule@", f"{role}@")
    shop = databases(main=DatabaseConfig(url=url), open=DatabaseConfig(url=url, read_only=False))
    for ask in (shop.query, shop.execute):
        with pytest.raises(Refuse, match="CREATE ROLE reader LOGIN"):
            ask("SELECT 1", database="open")
    with pytest.raises(Refuse, match="has access to files of the server"):
        shop.schema(database="main")


@pytest.mark.integration
def test_a_superuser_that_is_allowed_still_only_reads(shop_server, tmp_path):
    shop = databases(main=DatabaseConfig(url=shop_server, allow_superuser=True))
    assert shop.query("SELECT current_user")["rows"] == [["ferrule"]]
    roles = {"TABLE pg_authid", "SELECT * FROM pg_shadow"}
    assert not_refused(shop.query, [sql for sql in IN_POSTGRES if sql not in roles], tmp_path) == []
    assert count_of_orders(shop) == [[3]]


def test_a_database_file_cannot_run_code(tmp_path):
    with sqlite3.connect(tmp_path / "evil.db") as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("CREATE VIEW v AS SELECT load_extension('/tmp/x.so') AS a")
        connection.execute("CREATE VIEW w AS SELECT * FROM pragma_database_list")
        connection.execute("CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT load_extension('/tmp/x.so'); END")
    connection.close()
    shop = databases(main=DatabaseConfig(url=f"sqlite:///{tmp_path}/evil.db", read_only=False))
    assert not_refused(shop.query, ["SELECT * FROM v", "SELECT * FROM w"], tmp_path) == []
    assert not_refused(shop.execute, ["INSERT INTO t VALUES (1)"], tmp_path) == []
    assert shop.query("SELECT count(*) FROM t")["rows"] == [[0]]


ENDLESS = (
    "WITH RECURSIVE x(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM x) SELECT max(a) FROM x",
    f"SELECT count(*) FROM {', '.join(f'products t{number}' for number in range(40))}",
)


def test_endless_work_is_stopped_in_sqlite(shop_file):
    for sql in ENDLESS:
        assert timeout_of(f"sqlite:///{shop_file}", sql)


@pytest.mark.integration
def test_endless_work_is_stopped_in_postgres(reader_url):
    for sql in ENDLESS:
        assert timeout_of(reader_url, sql)


def test_a_few_steps_with_large_values_are_stopped(shop_file):
    shop = databases(main=DatabaseConfig(url=f"sqlite:///{shop_file}", timeout=0.3))
    large = "WITH RECURSIVE x(a, s) AS (SELECT 1, 0 UNION ALL SELECT a + 1, zeroblob(9000000) FROM x)"
    with pytest.raises(TimedOut):
        shop.query(f"{large} SELECT sum(length(hex(s))) FROM x")


def test_a_change_that_takes_too_long_is_rolled_back(shop_file):
    shop = databases(main=DatabaseConfig(url=f"sqlite:///{shop_file}", read_only=False, timeout=0.5))
    endless = "WITH RECURSIVE x(a) AS (SELECT 100 UNION ALL SELECT a + 1 FROM x) SELECT a, 1, 1 FROM x"
    with pytest.raises(TimedOut):
        shop.execute(f"INSERT INTO orders {endless}")
    assert count_of_orders(shop) == [[3]]


@pytest.mark.integration
def test_a_value_beyond_the_memory_limit_fails_only_its_call(reader_url, monkeypatch):
    shop = databases(main=DatabaseConfig(url=reader_url))
    assert shop.query("SELECT 1")["rows"] == [[1]]  # imports happen before the limit is lowered
    # The usual limit is far larger: receiving that much takes minutes on a busy machine.
    monkeypatch.setattr("ferrule_tools.data.limits._RESERVE_BYTES", 0)
    monkeypatch.setattr("ferrule_tools.database.query._MEMORY_MB", 40)
    with pytest.raises(Retry, match="more memory than a query may use"):
        shop.query("SELECT repeat('x', 60000000)")
    assert shop.query("SELECT 1")["rows"] == [[1]]


@pytest.mark.integration
async def test_long_rows_are_fetched_a_few_at_a_time(reader_url):
    config = DatabaseQueryConfig(databases={"main": DatabaseConfig(url=reader_url)})
    long_rows = "SELECT repeat('x', 10000000) || n FROM generate_series(1, 5) n"
    async with ToolEngine() as engine:
        engine.register(*database_query_tools(config))
        result = await engine.execute("database_query__query", {"sql": long_rows})
    assert result.output["row_count"] == 5 and "… (10,000,00" in result.output["rows"][4][0]


def test_a_locked_database_is_reported_as_busy(shop_file, monkeypatch):
    monkeypatch.setattr("ferrule_tools.database.sqlite._BUSY_TIMEOUT", 0.1)
    shop = databases(main=DatabaseConfig(url=f"sqlite:///{shop_file}", read_only=False))
    other = sqlite3.connect(shop_file, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CallError) as failure:
            shop.execute("DELETE FROM orders")
        with pytest.raises(Transient, match="another process is writing"):
            shop.query("SELECT 1 FROM orders")
    finally:
        other.close()
    assert "locked" in str(failure.value) and count_of_orders(shop) == [[3]]
