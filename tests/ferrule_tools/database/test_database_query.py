"""Databases asked and changed in SQL; each test on SQLite and on Postgres where both can do it."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule.agent import Agent
from ferrule.core.call import ToolExecutionContext
from ferrule.errors import ExecutionFailed, Refuse, Retry, SetupError, TimedOut, Transient
from ferrule.testing import ScriptedModel
from ferrule_tools.database import DatabaseConfig, DatabaseQueryConfig, database_query_tools
from ferrule_tools.database.session import (
    DatabaseAddress,
    bind_values,
    escape_for_sqlalchemy,
    is_query,
    to_psycopg_placeholders,
    tokenize_sql,
)
from tests.ferrule_tools.database.conftest import databases
from tests.support.waiting import until


def tools(root=".", environ=None, **configs):
    return database_query_tools(DatabaseQueryConfig(databases=configs), root=root, environ=environ or {})


# Through the engine


@pytest.mark.integration
async def test_an_agent_asks_before_it_changes_a_database(shop_file):
    ask = {"name": "database_query__query", "arguments": {"sql": "SELECT count(*) FROM orders"}}
    change = {"name": "database_query__execute", "arguments": {"sql": "DELETE FROM orders"}}
    async with UnifiedToolLibrary() as library:
        library.register(*tools(main=DatabaseConfig(url=f"sqlite:///{shop_file}", read_only=False)))
        answer = await Agent(library, ScriptedModel([ask, change, "Done."])).run("Delete the orders.")
    assert not answer.is_finished and answer.steps[0].is_success
    only = databases(main=DatabaseConfig(url=f"sqlite:///{shop_file}"))
    assert only.query("SELECT count(*) FROM orders")["rows"] == [[3]]


def test_a_writable_database_adds_the_action_execute():
    (reading,) = tools(main=DatabaseConfig(url="sqlite:///a.db"))
    (writing,) = tools(
        main=DatabaseConfig(url="sqlite:///a.db"), x=DatabaseConfig(url="sqlite:///b.db", read_only=False)
    )
    assert [each.name for each in reading.spec.capabilities] == ["query", "schema"]
    assert [each.name for each in writing.spec.capabilities] == ["query", "schema", "execute"]
    effects = {each.name: writing.spec.effects_of(each) for each in writing.spec.capabilities}
    assert effects["execute"].destructive and not effects["execute"].repeatable
    assert effects["query"].read_only and effects["schema"].read_only


def test_the_description_lists_databases_and_no_addresses():
    (tool,) = tools(
        environ={"PASSWORD": "hunter2hunter2"},
        main=DatabaseConfig(url="postgresql://me:${PASSWORD}@db.example/shop", description="orders since 2020"),
        logs=DatabaseConfig(url="sqlite:///logs.db", read_only=False, timeout=50),
    )
    assert "Databases: main (postgresql): orders since 2020; logs (sqlite, writable)." in tool.spec.description
    assert "hunter2" not in repr(tool) + repr(tool.spec) and "db.example" not in repr(tool.spec)
    assert tool.spec.limits.timeout == 55.0 and tool.needs == ""


# What it needs


@pytest.mark.parametrize(
    ("url", "need"),
    [
        ("postgresql://me:${NOT_SET}@db/shop", "'NOT_SET' is not set"),
        ("sqlite://", "a database in memory is always empty"),
        ("sqlite:///:memory:", "a database in memory is always empty"),
        ("oracle://me@db/shop", "cannot be enforced for oracle"),
    ],
)
def test_a_database_that_cannot_be_used_says_what_it_needs(url, need):
    (tool,) = tools(main=DatabaseConfig(url=url))
    assert need in tool.needs and "'main'" in tool.needs
    (both,) = tools(main=DatabaseConfig(url=url), other=DatabaseConfig(url="sqlite:///a.db"))
    assert both.needs == ""
    with pytest.raises(Refuse, match="the database 'main' cannot be used"):
        databases(main=DatabaseConfig(url=url)).query("SELECT 1")


def test_without_a_database_the_tool_says_how_to_configure_one():
    (tool,) = database_query_tools()
    assert "[tools.database_query.databases.main]" in tool.needs


@pytest.mark.parametrize(
    "settings", [{}, {"url": "shop.db"}, {"url": "sqlite:///a", "max_rows": 0}, {"url": "a://", "timeout": 0}]
)
def test_an_invalid_section_is_a_setup_error(settings):
    with pytest.raises(SetupError):
        DatabaseConfig(**settings)


def test_a_database_without_read_only_mode_is_not_queried():
    (tool,) = tools(main=DatabaseConfig(url="oracle://me@db/shop", read_only=False))
    assert tool.needs == ""
    with pytest.raises(Refuse, match="cannot be enforced for oracle: use execute for the database 'main'"):
        databases(main=DatabaseConfig(url="oracle://me@db/shop", read_only=False)).query("SELECT 1 FROM dual")
    with pytest.raises(Refuse, match="klingon is unknown to SQLAlchemy"):
        databases(main=DatabaseConfig(url="klingon://x", read_only=False)).execute("SELECT 1")


# Asking


def test_rows_come_with_their_columns(shop):
    output = shop.query("SELECT id, name, price FROM products ORDER BY id", database="main")
    assert [each["name"] for each in output["columns"]] == ["id", "name", "price"]
    assert output["rows"] == [[1, "Tea", 3.5], [2, "Salt", 0.75], [3, "茶叶", None]]


def test_values_are_bound_and_never_become_sql(shop):
    sql = "SELECT count(*) FROM products WHERE name = :name OR name = ':name'"
    assert shop.query(sql, {"name": "Tea", "unused": 1}, "main")["rows"] == [[1]]
    assert shop.query(sql, {"name": "x' OR '1'='1"}, "main")["rows"] == [[0]]
    assert shop.query(sql, {"name": "'; DROP TABLE products; --"}, "main")["rows"] == [[0]]
    sql = "SELECT name FROM products WHERE name LIKE '%a%' AND id >= :id -- 100% :done"
    output = shop.query(sql, {"id": 2}, "main")
    assert output["rows"] == [["Salt"]]


def test_a_missing_value_is_reported(shop):
    with pytest.raises(Retry, match="give a value in parameters for :id, :name"):
        shop.query("SELECT 1 FROM products WHERE id = :id AND name = :name", {"nam": 1}, "main")


def test_rows_beyond_the_limit_are_left_out_and_reported(shop_file):
    shop = databases(main=DatabaseConfig(url=f"sqlite:///{shop_file}", max_rows=2))
    output = shop.query("SELECT id FROM products ORDER BY id", limit=50)
    assert output["rows"] == [[1], [2]] and "only the first 2 rows" in output["left_out"]
    assert "left_out" not in shop.query("SELECT id FROM products LIMIT 2")


def test_long_values_are_shortened(shop):
    sql = "SELECT replace('xxxxxxxxxx', 'x', :piece) AS t"
    (row,) = shop.query(sql, {"piece": "长" * 2_000}, "main")["rows"]
    assert row[0].endswith("… (20,000 characters)") and len(row[0]) < 5_100


def test_sql_errors_say_what_to_correct(shop):
    for sql, message in (
        ("SELECT nme FROM products", "nme.*Use schema to list the tables"),
        ("SELECT * FROM product", "product.*Use schema to list the tables"),
        ("SELECT FROM WHERE", "syntax error"),
        ("SELECT 1; SELECT 2", "several statements"),
    ):
        with pytest.raises(Retry, match=message):
            shop.query(sql, database="main")
    with pytest.raises(Retry, match="there is no database 'mian'. Did you mean 'main'"):
        shop.query("SELECT 1", database="mian")
    with pytest.raises(Retry, match="say which database. The databases are: 'main', 'open'"):
        shop.query("SELECT 1")


def test_sqlite_values_become_json(shop_file):
    only = databases(shop=DatabaseConfig(url=f"sqlite:///{shop_file}"))
    sql = "SELECT x'00ff', 1.5, 9223372036854775807, NULL, CAST(x'ff41' AS TEXT), 1e999, json_array(1, 'a')"
    assert only.query(sql)["rows"] == [["AP8=", 1.5, 2**63 - 1, None, "\ufffdA", "inf", '[1,"a"]']]
    actual = only.query("SELECT name FROM products WHERE id IN (SELECT value FROM json_each(:ids))", {"ids": [1, 3]})
    assert actual["rows"] == [["Tea"], ["茶叶"]]
    with pytest.raises(Retry, match="too large"):
        only.query("SELECT :n", {"n": 2**80})


@pytest.mark.integration
def test_postgres_values_become_json(reader_url):
    only = databases(shop=DatabaseConfig(url=reader_url))
    sql = (
        "SELECT 1.50::numeric, 12345678901234567890.5::numeric, 'NaN'::numeric, '\\x00ff'::bytea,"
        " ARRAY[[1,2],[3,NULL]], '{\"a\": [1]}'::jsonb, '2024-01-01 08:00+08'::timestamptz AT TIME ZONE 'UTC',"
        " '12:30'::time, interval '1 day', '[1,5)'::int4range, '10.0.0.0/8'::cidr,"
        " '00000000-0000-0000-0000-000000000001'::uuid,"
        " ROW(1, 'x'), true, 'infinity'::float8"
    )
    (row,) = only.query(sql)["rows"]
    assert row[:6] == [1.5, "12345678901234567890.5", "NaN", "AP8=", [[1, 2], [3, None]], {"a": [1]}]
    assert row[6:12] == [
        "2024-01-01T00:00:00",
        "12:30:00",
        "1 day",
        "[1, 5)",
        "10.0.0.0/8",
        "00000000-0000-0000-0000-000000000001",
    ]
    assert row[13:] == [True, "inf"]


@pytest.mark.integration
def test_dates_beyond_python_are_returned_as_text(reader_url):
    only = databases(shop=DatabaseConfig(url=reader_url))
    sql = (
        "SELECT 'infinity'::timestamptz, '-infinity'::date, '0044-03-15 BC'::date, '12000-01-01'::timestamp,"
        " '24:00'::time, interval '1 month 3 days', ARRAY['infinity'::date]"
    )
    row = [
        "infinity",
        "-infinity",
        "0044-03-15 BC",
        "12000-01-01 00:00:00",
        "24:00:00",
        "1 mon 3 days",
        ["infinity"],
    ]
    assert only.query(sql)["rows"] == [row]


@pytest.mark.integration
@pytest.mark.parametrize("value", [[1, "x"], "a\0b", "\ud800", [{"a": 1}]])
def test_a_value_that_postgres_rejects_can_be_corrected(reader_url, value):
    only = databases(shop=DatabaseConfig(url=reader_url))
    with pytest.raises(Retry):
        only.query("SELECT :value", {"value": value})


@pytest.mark.integration
def test_postgres_takes_lists_and_objects_as_values(reader_url):
    only = databases(shop=DatabaseConfig(url=reader_url))
    actual = only.query("SELECT name FROM products WHERE id = ANY(:ids) ORDER BY 1", {"ids": [1, 2]})
    assert actual["rows"] == [["Salt"], ["Tea"]] and actual["columns"] == [{"name": "name", "type": "text"}]
    assert only.query("SELECT :o::jsonb ->> 'a'", {"o": {"a": "b"}})["rows"] == [["b"]]
    sliced = only.query("SELECT (ARRAY[1,2,3])[:2], $q$ :no $q$, E'it\\'s :no', '%' || :yes", {"yes": "y"})
    assert sliced["rows"] == [[[1, 2], " :no ", "it's :no", "%y"]]


# Schemas


def test_tables_are_listed_with_their_columns(shop):
    output = shop.schema(database="main")
    tables = {each["name"]: each for each in output["tables"]}
    assert set(tables) == {"products", "orders", "cheap"} and tables["cheap"]["kind"] == "view"
    assert tables["products"]["columns"] == ["id INTEGER", "name TEXT", "price NUMERIC(10, 2)"]


def test_a_table_is_described_with_keys_and_indexes(shop):
    output = shop.schema("Orders", database="main")
    assert output["primary_key"] == ["id"] and output["indexes"] == [{"columns": ["product"], "unique": False}]
    (key,) = output["foreign_keys"]
    assert key == {"columns": ["product"], "references": "products", "referenced_columns": ["id"]}
    assert output["columns"][2]["default"] == "1"
    with pytest.raises(Retry, match="there is no table 'order'. Did you mean 'orders'"):
        shop.schema("order", database="main")


@pytest.mark.integration
def test_tables_of_other_schemas_have_the_schema_in_front(shop_server, reader_url):
    import psycopg

    with psycopg.connect(shop_server, autocommit=True) as connection:
        connection.execute(
            "CREATE SCHEMA attic; CREATE TABLE attic.old (a timestamptz); GRANT USAGE ON SCHEMA attic TO reader"
        )
    only = databases(shop=DatabaseConfig(url=reader_url))
    try:
        assert "attic.old" in [each["name"] for each in only.schema()["tables"]]
        assert only.schema("attic.old")["columns"][0]["type"] == "TIMESTAMP WITH TIME ZONE"
    finally:
        with psycopg.connect(shop_server, autocommit=True) as connection:
            connection.execute("DROP SCHEMA attic CASCADE")


def test_many_tables_are_listed_without_columns(tmp_path):
    with sqlite3.connect(tmp_path / "many.db") as connection:
        for number in range(40):
            connection.execute(f'CREATE TABLE "t{number}""; --" (a)')
    connection.close()
    only = databases(many=DatabaseConfig(url=f"sqlite:///{tmp_path}/many.db"))
    output = only.schema()
    assert len(output["tables"]) == 40 and "columns" not in output["tables"][0] and "name a table" in output["columns"]
    assert only.schema('t7"; --')["columns"][0]["name"] == "a"


# Changing


def test_execute_commits_and_counts_rows(shop):
    changed = shop.execute("UPDATE products SET price = :price WHERE id = :id", {"price": 4, "id": 1}, database="open")
    try:
        assert changed == {"database": "open", "changed": 1}
        assert shop.query("SELECT price FROM products WHERE id = 1", database="main")["rows"] == [[4]]
        inserted = shop.execute("INSERT INTO orders VALUES (9, 2, 7) RETURNING id, pieces", database="open")
        assert (inserted["changed"], inserted["rows"]) == (1, [[9, 7]])
    finally:
        shop.execute("UPDATE products SET price = 3.5 WHERE id = 1", database="open")
        shop.execute("DELETE FROM orders WHERE id = 9", database="open")


def test_a_failed_change_is_rolled_back(shop):
    with pytest.raises(Retry, match=r"(?i)unique"):
        shop.execute("INSERT INTO orders VALUES (8, 1, 1), (1, 1, 1)", database="open")
    assert shop.query("SELECT count(*) FROM orders", database="main")["rows"] == [[3]]


def test_a_read_only_database_is_not_changed(shop):
    with pytest.raises(Refuse, match="the database 'main' is read-only"):
        shop.execute("DELETE FROM orders", database="main")
    with pytest.raises(Refuse, match="only queries that change nothing are allowed"):
        shop.query("DELETE FROM orders", database="open")


# Time


ENDLESS = "WITH RECURSIVE x(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM x) SELECT count(*) FROM x"


def test_a_caller_may_give_a_query_less_time(shop_file):
    only = databases(shop=DatabaseConfig(url=f"sqlite:///{shop_file}", timeout=50))
    with pytest.raises(TimedOut, match=r"longer than 0\.45 seconds"):
        only.query(ENDLESS, context=ToolExecutionContext(timeout=0.5))


def test_a_query_with_endless_rows_ends_at_the_limit(shop):
    output = shop.query(ENDLESS.replace("count(*)", "a"), database="main", limit=5)
    assert output["rows"] == [[1], [2], [3], [4], [5]]


@pytest.mark.integration
async def test_a_query_that_is_cancelled_ends_on_the_server(shop_server, reader_url):
    import psycopg

    async with ToolEngine() as engine:
        engine.register(*tools(main=DatabaseConfig(url=reader_url, timeout=240)))
        call = asyncio.create_task(engine.execute("database_query__query", {"sql": "SELECT pg_sleep(200), 'mine'"}))
        with psycopg.connect(shop_server, autocommit=True) as watcher:
            await until(lambda: running(watcher) == 1)
            call.cancel()
            await asyncio.wait([call])
            await until(lambda: running(watcher) == 0)
            assert call.cancelled()


def running(watcher):
    sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state = 'active' AND query LIKE '%FETCH%'"
    return watcher.execute(sql).fetchone()[0]


# What goes wrong outside


def test_a_missing_or_invalid_file_is_reported(tmp_path):
    (tmp_path / "text.db").write_text("This is not a database, it is a text. " * 50)
    for name in ("none.db", "text.db", "no/such/folder/a.db"):
        only = databases(shop=DatabaseConfig(url=f"sqlite:///{tmp_path}/{name}"))
        with pytest.raises(ExecutionFailed, match="the database 'shop' cannot be opened|file is not a database"):
            only.query("SELECT * FROM products")
        with pytest.raises(ExecutionFailed):
            only.schema()
    assert not (tmp_path / "none.db").exists()


def test_a_writable_database_is_created_on_first_use(tmp_path):
    only = databases(shop=DatabaseConfig(url=f"sqlite:///{tmp_path}/new.db", read_only=False))
    only.execute("CREATE TABLE a (b)")
    assert only.execute("INSERT INTO a VALUES (1), (2)")["changed"] == 2
    assert only.query("SELECT sum(b) FROM a")["rows"] == [[3]]


@pytest.mark.integration
def test_an_unreachable_server_is_reported_without_the_password():
    environ = {"DB_PASSWORD": "p@ss/word:1"}
    (tool,) = tools(environ=environ, main=DatabaseConfig(url="postgresql://me:${DB_PASSWORD}@127.0.0.1:1/shop"))
    reader = tool.target.function("query")
    with pytest.raises(Transient, match="the database 'main' cannot be reached") as failure:
        reader("SELECT 1")
    assert "p@ss" not in str(failure.value) and "p%40ss" not in str(failure.value)


def test_a_password_may_have_any_characters_and_is_hidden_in_every_form():
    config = DatabaseConfig(url="postgresql://${USER_NAME}:${DB_PASSWORD}@db/shop?application_name=a%20b")
    address = DatabaseAddress.of("main", config, Path(), {"USER_NAME": "me", "DB_PASSWORD": "p@ss/wo:rd#%1"})
    assert (address.url().username, address.url().password, address.url().host) == ("me", "p@ss/wo:rd#%1", "db")
    hidden = address.secrets().hide("it was p@ss/wo:rd#%1 or p%40ss%2Fwo%3Ard%23%251")
    assert hidden == "it was [redacted] or [redacted]" and "p@ss" not in repr(address) + repr(config)


def test_a_whole_address_may_come_from_a_variable(shop_file):
    environ = {"DATABASE_URL": f"sqlite:///{shop_file}"}
    (tool,) = tools(environ=environ, main=DatabaseConfig(url="${DATABASE_URL}"))
    assert tool.needs == "" and tool.target.function("query")("SELECT 1")["rows"] == [[1]]


@pytest.mark.parametrize(
    "url", ["reader:hunter2@host/shop", "hunter2", "postgresql//u:hunter2@h/shop", "postgresql://u:x@hunter2:y@h/shop"]
)
@pytest.mark.parametrize("read_only", [True, False])
def test_an_invalid_address_is_not_shown(url, read_only):
    (tool,) = tools(environ={"DATABASE_URL": url}, main=DatabaseConfig(url="${DATABASE_URL}", read_only=read_only))
    with pytest.raises(Refuse, match="the database 'main' cannot be used: .*its url") as refusal:
        tool.target.function("query")("SELECT 1")
    assert "hunter2" not in f"{refusal.value} {tool.needs} {tool.spec.description}"


@pytest.mark.integration
async def test_records_hold_no_password(shop_server, tmp_path):
    url = shop_server.replace("ferrule@/", "reader:${DB_PASSWORD}@/").replace("host=", "password=${DB_PASSWORD}&host=")
    async with ToolEngine(store=f"sqlite:///{tmp_path}/calls.db") as engine:
        engine.register(*tools(environ={"DB_PASSWORD": "hunter2hunter2"}, main=DatabaseConfig(url=url)))
        for sql in ("SELECT 1", "SELECT nothing", "DROP TABLE x"):
            result = await engine.execute("database_query__query", {"sql": sql})
            assert "hunter2" not in json.dumps(result.to_dict())
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes()


# SQL as text


@given(st.text(), st.text(alphabet="abc:%'\"$-/*\\ \n"))
def test_parameters_in_literals_and_comments_are_ignored(first, second):
    import sqlalchemy
    from sqlalchemy.dialects import mysql

    quoted = "'" + (first + second).replace("'", "''") + "'"
    named = '"' + (first + second).replace('"', '""') + '"'
    sql = f"SELECT {quoted}, {named}, :v /* :no {second.replace('*', '')} */ -- :no %"
    assert to_psycopg_placeholders(sql) % {"v": "1"} == sql.replace(":v /*", "1 /*")
    as_mysql = str(sqlalchemy.text(escape_for_sqlalchemy(sql)).compile(dialect=mysql.dialect(paramstyle="pyformat")))
    assert as_mysql % {"v": "1"} == sql.replace(":v /*", "1 /*")
    assert bind_values(sql, {"v": 5, "no": 6}) == {"v": 5}


@pytest.mark.parametrize("rest", ["\n", "\n-- ", "-- ", "\n''", "\n'", "$", "$a", "/*", "'\\"])
def test_unterminated_literals_are_parsed_in_linear_time(rest):
    sql = f"SELECT E'a'{rest * 20_000} x"
    assert "".join(piece[0] for piece in tokenize_sql(sql)) == sql


def test_a_query_is_recognized_by_its_first_word():
    assert is_query(" /* DROP */ (SELECT 1)") and is_query("-- x\nwith a as (select 1) select 1")
    for sql in ("DROP TABLE a -- SELECT", "/* SELECT */ DELETE FROM a", "", "'SELECT'", "BEGIN; SELECT 1", "selected"):
        assert not is_query(sql)


def test_executable_comments_of_mysql_are_no_query():
    for sql in ("/*!50000 KILL ( */ SELECT 5 /*! ) */", "SELECT 1 /*M! INTO OUTFILE 'x' */"):
        assert not is_query(sql)
