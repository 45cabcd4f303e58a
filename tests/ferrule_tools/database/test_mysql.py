"""MySQL, as the MariaDB of the system speaks it: a private server that runs during these tests."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ferrule.errors import Refuse, Retry, TimedOut
from ferrule_tools.database import DatabaseConfig
from tests.ferrule_tools.database.conftest import SHOP, databases
from tests.support.postgres import RUN_UNTIL_A_LINE_COMES
from tests.support.waiting import until_sync

pytestmark = pytest.mark.long

PROGRAMS = "/usr/sbin:/usr/local/sbin:/usr/bin"
"""Where servers are installed, besides PATH."""


@contextmanager
def run_mariadb() -> Iterator[Any]:
    """A server with an empty folder of its own; its address, as somebody who may do all."""
    import sqlalchemy

    path = f"{os.environ.get('PATH', '')}:{PROGRAMS}"
    server, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if server is None or install is None:
        pytest.skip("no MariaDB server programs: on Debian, scripts/system_packages.sh --all installs them")
    home = Path(tempfile.mkdtemp(prefix="ferrule-db-"))  # a short path: it has to fit into a socket's name
    user: dict[str, Any] = {"cwd": "/"}
    if os.geteuid() == 0:  # MariaDB refuses to run as root
        shutil.chown(home, "mysql", "mysql")
        user |= {"user": "mysql", "group": "mysql", "extra_groups": []}
    options = ["--no-defaults", f"--datadir={home}/data"]
    make = [install, *options, "--auth-root-authentication-method=normal", "--skip-test-db"]
    run = [server, *options, f"--socket={home}/socket", "--skip-networking", f"--pid-file={home}/pid"]
    url = sqlalchemy.URL.create("mysql+pymysql", "root", host="localhost", query={"unix_socket": f"{home}/socket"})
    try:
        subprocess.run(make, capture_output=True, check=True, **user)
        with (home / "log").open("wb") as log:
            command = ["sh", "-c", RUN_UNTIL_A_LINE_COMES, "sh", *run]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, **user)
        try:
            until_sync((home / "socket").exists, 120)
            yield url
        finally:
            process.communicate(b"\n")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def shop():
    """`main` may be read, `open` be written to, `hurried` be read for a moment; `root` may do all."""
    import sqlalchemy

    with run_mariadb() as root:
        engine = sqlalchemy.create_engine(root)
        with engine.connect() as connection:
            connection.exec_driver_sql("CREATE DATABASE ferrule_shop CHARACTER SET utf8mb4")
            connection.exec_driver_sql("USE ferrule_shop")
            for statement in SHOP.replace("name TEXT", "name VARCHAR(40)").strip().split(";\n"):
                connection.exec_driver_sql(statement)
            for role, right in (("reader", "SELECT"), ("writer", "ALL")):
                connection.exec_driver_sql(f"CREATE USER {role}@localhost IDENTIFIED BY 'a secret of ours'")
                connection.exec_driver_sql(f"GRANT {right} ON ferrule_shop.* TO {role}@localhost")
            connection.commit()
        engine.dispose()
        root = root.set(database="ferrule_shop")
        roles = {role: root.set(username=role, password="a secret of ours") for role in ("reader", "writer")}
        urls = {role: url.render_as_string(hide_password=False) for role, url in (roles | {"root": root}).items()}
        yield databases(
            main=DatabaseConfig(url=urls["reader"], timeout=60),
            open=DatabaseConfig(url=urls["writer"], read_only=False, timeout=60),
            hurried=DatabaseConfig(url=urls["reader"], timeout=1),
            root=DatabaseConfig(url=urls["root"]),
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
def test_a_query_changes_nothing_in_mysql(shop, database):
    for sql in (
        "DELETE FROM orders",
        "SELECT 1; DELETE FROM orders",
        "WITH x AS (SELECT 1) DELETE FROM orders",
        "SELECT 1 INTO OUTFILE '/tmp/ferrule-stolen'",
        "SELECT /*!50000 1 INTO OUTFILE '/tmp/ferrule-stolen' */",
        "SELECT * FROM orders FOR UPDATE; COMMIT",
        "EXPLAIN DELETE FROM orders; DELETE FROM orders",
        "DROP TABLE orders",
        "SET TRANSACTION READ WRITE",
    ):
        with pytest.raises((Refuse, Retry)):
            shop.query(sql, database=database)
        assert shop.query("SELECT count(*) FROM orders", database="main")["rows"] == [[3]], sql
    assert not os.path.exists("/tmp/ferrule-stolen")


def test_mysql_stops_a_query_that_takes_too_long(shop):
    with pytest.raises(TimedOut):
        shop.query("SELECT benchmark(1000000000000, md5('x'))", database="hurried")


def test_mysql_commits_what_is_executed(shop):
    sql = "INSERT INTO orders VALUES (:id, 1, 1)"
    assert shop.execute(sql, {"id": 7}, database="open") == {"database": "open", "changed": 1}
    assert shop.execute("DELETE FROM orders WHERE id = 7", database="open")["changed"] == 1
    with pytest.raises(Retry, match="Duplicate"):
        shop.execute(sql, {"id": 1}, database="open")


def test_a_mysql_user_with_access_to_files_is_refused(shop):
    with pytest.raises(Refuse, match="has access to files of the server"):
        shop.query("SELECT 1", database="root")
