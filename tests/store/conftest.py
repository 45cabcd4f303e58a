"""The stores that every conformance test runs on. Postgres is a private cluster that runs during the tests."""

import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

HOW_TO_GET_POSTGRES = (
    "no Postgres server programs (initdb, pg_ctl) in PATH or /usr/lib/postgresql/*/bin; "
    "install them to run these tests, on Debian with: apt-get install postgresql"
)


@dataclass
class PostgresServer:
    """A Postgres server that was started for the tests."""

    url: str
    restart: Callable[[], None]


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[str]:
    """The address of a Postgres server."""
    with run_postgres() as server:
        yield server.url


@contextmanager
def run_postgres(addresses: str = "") -> Iterator[PostgresServer]:
    """A server of its own, for tests that restart it. `addresses` are those that it listens on beside its socket."""
    if not (programs := _postgres_programs()):
        pytest.skip(HOW_TO_GET_POSTGRES)
    home = Path(tempfile.mkdtemp(prefix="ferrule-pg-"))  # a short path: it has to fit into a socket's name
    as_postgres: list[str] = []
    if os.geteuid() == 0:  # Postgres refuses to run as root
        shutil.chown(home, "postgres", "postgres")
        as_postgres = ["runuser", "-u", "postgres", "--"]
    data = home / "data"
    options = f"-c listen_addresses='{addresses}' -c unix_socket_directories='{home}' -c fsync=off"
    control = [*as_postgres, f"{programs}/pg_ctl", "-D", str(data), "-w", "-s"]
    try:
        _run([*as_postgres, f"{programs}/initdb", "-D", str(data), "-U", "ferrule", "-A", "trust", "-E", "UTF8", "-N"])
        if addresses:
            with (data / "pg_hba.conf").open("a") as permissions:
                permissions.write("host all all samenet trust\n")
        start = [*control, "-o", options, "-l", str(home / "log"), "start"]

        def restart() -> None:
            _run([*control, "-m", "immediate", "stop"])
            _run(start)

        _run(start)
        try:
            yield PostgresServer(f"postgresql://ferrule@/postgres?host={home}", restart)
        finally:
            _run([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_cluster: str) -> str:
    """An empty schema, which is as good as an own database and much faster to create."""
    import psycopg

    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgres_cluster, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"{postgres_cluster}&options=-csearch_path%3D{name}"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """One test, three stores."""
    if request.param == "memory":
        return None
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/calls.db"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return str(request.getfixturevalue("postgres_url"))


def _postgres_programs() -> str | None:
    in_path = shutil.which("initdb")
    directories = (
        [os.path.dirname(in_path)] if in_path else sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    )
    return next((directory for directory in directories if os.path.exists(f"{directory}/pg_ctl")), None)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60)
    assert done.returncode == 0, f"{command} failed: {done.stdout}{done.stderr}"
