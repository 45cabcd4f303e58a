"""Databases with a small shop in them: a SQLite file, and a Postgres server that lives as long as the tests do."""

import os
import sqlite3
from pathlib import Path

import pytest

from ferrule.errors import TimedOut, Transient
from ferrule_tools.database import DatabaseConfig
from ferrule_tools.database.query import DatabaseWriter
from ferrule_tools.database.session import DatabaseAddress
from tests.support.postgres import POSTGRES

SHOP = """
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price NUMERIC(10, 2));
CREATE TABLE orders (id INTEGER PRIMARY KEY, product INTEGER REFERENCES products (id), pieces INTEGER DEFAULT 1);
CREATE INDEX by_product ON orders (product);
CREATE VIEW cheap AS SELECT * FROM products WHERE price < 2;
INSERT INTO products VALUES (1, 'Tea', 3.50), (2, 'Salt', 0.75), (3, '茶叶', NULL);
INSERT INTO orders VALUES (1, 1, 2), (2, 1, 1), (3, 2, 5);
"""


@pytest.fixture
def shop_file(tmp_path):
    """A SQLite file."""
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.executescript(SHOP)
    connection.close()
    return tmp_path / "shop.db"


@pytest.fixture(scope="session")
def shop_server(postgres_cluster):
    """The address of a Postgres database in which `reader` may read and `writer` may write; `ferrule` may do all.

    Other tests have their schemas in another database of the server.
    """
    import psycopg

    with psycopg.connect(postgres_cluster, autocommit=True) as connection:
        connection.execute(b"CREATE DATABASE shop")
    address = postgres_cluster.replace("/postgres?", "/shop?")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(SHOP.encode())
        connection.execute(b"CREATE SEQUENCE counter")
        connection.execute(b"CREATE ROLE reader LOGIN; CREATE ROLE writer LOGIN; CREATE ROLE filer LOGIN")
        connection.execute(b"GRANT pg_read_server_files TO filer")
        connection.execute(b"GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader, filer")
        connection.execute(
            b"GRANT ALL ON ALL TABLES IN SCHEMA public TO writer; GRANT CREATE ON SCHEMA public TO writer"
        )
        connection.execute(b"GRANT ALL ON SEQUENCE counter TO reader")
        connection.execute(b"CREATE FUNCTION sneaky() RETURNS int LANGUAGE sql AS 'DELETE FROM orders RETURNING id'")
    return address


@pytest.fixture
def reader_url(shop_server):
    """The address of the same database for somebody who may only read."""
    return shop_server.replace("ferrule@", "reader@")


@pytest.fixture(params=["sqlite", POSTGRES])
def shop(request):
    """One test, two databases: `main`, which can only be read, and `open`, which can be written to."""
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('shop_file')}"
        return databases(main=DatabaseConfig(url=url), open=DatabaseConfig(url=url, read_only=False))
    server = request.getfixturevalue("shop_server")
    reader, writer = (server.replace("ferrule@", f"{role}@") for role in ("reader", "writer"))
    return databases(main=DatabaseConfig(url=reader), open=DatabaseConfig(url=writer, read_only=False))


def databases(**configs):
    """The tool's own object, to be called without an engine."""
    return DatabaseWriter({name: DatabaseAddress.of(name, each, Path(), os.environ) for name, each in configs.items()})


def timeout_of(url, sql):
    """The error of a query without end. On a busy machine even connecting may take longer than a short timeout."""
    for seconds in (0.1, 1.0, 50.0):
        try:
            databases(main=DatabaseConfig(url=url, timeout=seconds)).query(sql)
        except TimedOut as error:
            assert f"longer than {seconds:g} seconds and was stopped in the database" in str(error)
            return error
        except Transient:
            continue
    raise AssertionError(f"not stopped: {sql}")
