"""A pytest plugin: the stores that tests run on. Postgres is a private server that runs during the tests."""

import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.waiting import until_sync

HOW_TO_GET_POSTGRES = (
    "no Postgres server programs (initdb, postgres) in PATH or /usr/lib/postgresql/*/bin; "
    "install them to run these tests, on Debian with: apt-get install postgresql"
)
# Ends Postgres at once when a line comes or the process of the tests has ended, however it ended.
RUN_UNTIL_A_LINE_COMES = '"$@" & read line; kill -QUIT $!; wait'


class PostgresServer:
    """A Postgres server that was started for the tests: a child of their process, which does not outlive it."""

    def __init__(self, programs: str, addresses: str = "") -> None:
        self._home = Path(tempfile.mkdtemp(prefix="ferrule-pg-"))  # a short path: it has to fit into a socket's name
        self._user: dict[str, Any] = {"cwd": "/"}
        if os.geteuid() == 0:  # Postgres refuses to run as root
            shutil.chown(self._home, "postgres", "postgres")
            self._user |= {"user": "postgres", "group": "postgres", "extra_groups": []}
        self.url = f"postgresql://ferrule@/postgres?host={self._home}"
        data = self._home / "data"
        make = [f"{programs}/initdb", "-D", str(data), "-U", "ferrule", "-A", "trust", "-E", "UTF8", "-N"]
        done = subprocess.run(make, capture_output=True, text=True, check=False, **self._user)
        assert done.returncode == 0, f"initdb failed: {done.stdout}{done.stderr}"
        if addresses:
            with (data / "pg_hba.conf").open("a") as permissions:
                permissions.write("host all all samenet trust\n")
        settings = {
            "listen_addresses": addresses,
            "unix_socket_directories": self._home,
            "fsync": "off",
            "autovacuum": "off",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._command = ["sh", "-c", RUN_UNTIL_A_LINE_COMES, "sh", f"{programs}/postgres", "-D", str(data), *options]

    def start(self) -> None:
        with (self._home / "log").open("a") as log:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, **self._user
            )
        try:
            until_sync(self._is_ready, 120)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._process.communicate(b"\n")

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    def _is_ready(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            log = self._home / "log"
            assert "FATAL:  could not" not in log.read_text(), log.read_text()
            return False
        return True


@contextmanager
def run_postgres(addresses: str = "") -> Iterator[PostgresServer]:
    """A server of its own, for tests that restart it. `addresses` are those that it listens on beside its socket."""
    if not (programs := find_postgres_programs()):
        pytest.skip(HOW_TO_GET_POSTGRES)
    server = PostgresServer(programs, addresses)
    try:
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        server.remove()


def find_postgres_programs() -> str | None:
    in_path = shutil.which("initdb")
    directories = [os.path.dirname(in_path)] if in_path else glob.glob("/usr/lib/postgresql/*/bin")
    return next((path for path in sorted(directories, reverse=True) if os.path.exists(f"{path}/postgres")), None)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[str]:
    """The address of a Postgres server."""
    with run_postgres() as server:
        yield server.url


@pytest.fixture
def postgres_url(postgres_cluster: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty schema, which is as good as an own database and much faster to create."""
    # On a busy machine a process may be silent for long: neither its leases nor its transactions shall end meanwhile.
    monkeypatch.setattr("ferrule.store.shared_limits.MAX_LOCK_SECONDS", 60)
    monkeypatch.setattr("ferrule.store.leases.LEASE_SECONDS", 100.0)
    monkeypatch.setattr("ferrule.store.leases.MAX_UNCONFIRMED", 60.0)
    import psycopg

    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgres_cluster, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"{postgres_cluster}&options=-csearch_path%3D{name}"


POSTGRES = pytest.param("postgres", marks=pytest.mark.integration)


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """One test, three stores."""
    return None if request.param == "memory" else _shared_store(request, tmp_path)


@pytest.fixture(params=["sqlite", POSTGRES])
def shared_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One test, the two stores that several processes can share."""
    return _shared_store(request, tmp_path)


def _shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/calls.db"
    request.getfixturevalue("monkeypatch").setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return str(request.getfixturevalue("postgres_url"))
