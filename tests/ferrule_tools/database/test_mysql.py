"""MySQL and MariaDB, where there is one: its address, as somebody who may do all, stands in FERRULE_TEST_MYSQL."""

import os

import pytest
import sqlalchemy

from ferrule.errors import Refuse, Retry, TimedOut
from ferrule_tools.database import DatabaseConfig
from tests.ferrule_tools.database.conftest import SHOP, databases

VARIABLE = "FERRULE_TEST_MYSQL"
pytestmark = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"no MySQL: write mysql+pymysql://root@localhost/ into {VARIABLE}"
)


@pytest.fixture(scope="module")
def shop():
    """`main` may be read, `open` be written to; `root` may do all."""
    root = sqlalchemy.make_url(os.environ[VARIABLE])
    engine = sqlalchemy.create_engine(root)
    with engine.connect() as connection:
        for statement in (
            "DROP DATABASE IF EXISTS ferrule_shop",
            "CREATE DATABASE ferrule_shop CHARACTER SET utf8mb4",
            "USE ferrule_shop",
        ):
            connection.exec_driver_sql(statement)
        for statement in SHOP.replace("name TEXT", "name VARCHAR(40)").strip().split(";\n"):
            connection.exec_driver_sql(statement)
        for role, right in (("reader", "SELECT"), ("writer", "ALL")):
            connection.exec_driver_sql(f"DROP USER IF EXISTS {role}@localhost")
            connection.exec_driver_sql(f"CREATE USER {role}@localhost IDENTIFIED BY 'a secret of ours'")
            connection.exec_driver_sql(f"GRANT {right} ON ferrule_shop.* TO {role}@localhost")
        connection.commit()
    engine.dispose()
    root = root.set(database="ferrule_shop")
    urls = {role: root.set(username=role, password="a secret of ours") for role in ("reader", "writer")}
    addresses = {role: url.render_as_string(hide_password=False) for role, url in (urls | {"root": root}).items()}
    return databases(
        main=DatabaseConfig(url=addresses["reader"], timeout=2),
        open=DatabaseConfig(url=addresses["writer"], read_only=False, timeout=2),
        root=DatabaseConfig(url=addresses["root"]),
    )


def test_mysql_is_asked_with_bound_values(shop):
    sql = "SELECT id, name, price FROM products WHERE name = :name OR name LIKE 'S%' OR name = ':name'"
    output = shop.query(sql, {"name": "x' OR '1'='1"}, database="main")
    assert output["rows"] == [[2, "Salt", 0.75]]
    assert shop.query("SELECT 100 % 7, ':x'", database="main")["rows"] == [[2, ":x"]]


def test_mysql_tables_are_listed(shop):
    assert {each["name"] for each in shop.schema(database="main")["tables"]} == {"products", "orders", "cheap"}
    assert shop.schema("orders", database="main")["primary_key"] == ["id"]


@pytest.mark.parametrize("database", ["main", "open"])
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM orders",
        "SELECT 1; DELETE FROM orders",
        "WITH x AS (SELECT 1) DELETE FROM orders",
        "SELECT 1 INTO OUTFILE '/tmp/ferrule-stolen'",
        "SELECT /*!50000 1 INTO OUTFILE '/tmp/ferrule-stolen' */",
        "SELECT * FROM orders FOR UPDATE; COMMIT",
        "EXPLAIN DELETE FROM orders; DELETE FROM orders",
        "DROP TABLE orders",
        "SET TRANSACTION READ WRITE",
    ],
)
def test_a_query_changes_nothing_in_mysql(shop, sql, database):
    with pytest.raises((Refuse, Retry)):
        shop.query(sql, database=database)
    assert shop.query("SELECT count(*) FROM orders", database="main")["rows"] == [[3]]
    assert not os.path.exists("/tmp/ferrule-stolen")


def test_mysql_stops_a_query_that_takes_too_long(shop):
    with pytest.raises(TimedOut):
        shop.query("SELECT benchmark(1000000000, md5('x'))", database="main")


def test_mysql_commits_what_is_executed(shop):
    sql = "INSERT INTO orders VALUES (:id, 1, 1)"
    assert shop.execute(sql, {"id": 7}, database="open") == {"database": "open", "changed": 1}
    assert shop.execute("DELETE FROM orders WHERE id = 7", database="open")["changed"] == 1
    with pytest.raises(Retry, match="Duplicate"):
        shop.execute(sql, {"id": 1}, database="open")


def test_a_mysql_user_with_access_to_files_is_refused(shop):
    with pytest.raises(Refuse, match="has access to files of the server"):
        shop.query("SELECT 1", database="root")
