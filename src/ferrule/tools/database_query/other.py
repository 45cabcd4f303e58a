"""Any other database that SQLAlchemy knows; MySQL and MariaDB can be held to reading, the rest is only written to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, Transient
from ferrule.tools.data_analyzer.rows import Column
from ferrule.tools.database_query.address import ENFORCED, Address
from ferrule.tools.database_query.placeholders import for_sqlalchemy
from ferrule.tools.database_query.session import AT_ONCE, Answer, Clock

_REACHING_FILES: Final = re.compile(r"\bGRANT\b.*\b(ALL PRIVILEGES|FILE|SUPER)\b.*\bON \*\.\*", re.IGNORECASE)
_TOO_LONG: Final = re.compile(r"max_statement_time|max_execution_time|maximum statement execution time", re.IGNORECASE)
_READ_ONLY: Final = re.compile(r"READ ONLY transaction", re.IGNORECASE)


class OtherSession:
    """One transaction."""

    def __init__(self, connection: Any, clock: Clock, *, writes: bool) -> None:
        self._connection, self._clock, self._writes = connection, clock, writes

    def ask(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        from sqlalchemy import text

        with told(self._clock):
            if parameters:
                result = self._connection.execute(text(for_sqlalchemy(sql)), _bound(parameters))
            else:
                # As it is written: a colon in it is a colon.
                result = self._connection.exec_driver_sql(sql, execution_options={"no_parameters": True})
        if not result.returns_rows:
            changed = result.rowcount
            return Answer(columns=[], rows=iter(()), changed=changed if changed >= 0 else None)
        return Answer(
            columns=[Column(name=str(name), type="") for name in list(result.keys())], rows=self._rows(result)
        )

    @contextmanager
    def inspected(self) -> Iterator[Any]:
        with told(self._clock):
            yield self._connection

    def _rows(self, result: Any) -> Iterator[tuple[Any, ...]]:
        while True:
            if self._clock.is_over():
                raise self._clock.time_out()
            with told(self._clock):
                rows = result.fetchmany(AT_ONCE)
            if not rows:
                return
            yield from (tuple(row) for row in rows)


def _bound(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Lists and objects as JSON."""
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
        for name, value in parameters.items()
    }


@contextmanager
def open_other(address: Address, clock: Clock, *, writes: bool) -> Iterator[OtherSession]:
    """A connection with one transaction, which is kept only if something was to be written and all went well."""
    if not writes and address.kind not in ENFORCED:
        raise Refuse(
            f"{address.kind} cannot be held to reading: ask the database {address.name!r} with execute, which is made "
            "for statements that change something."
        )
    connection, engine = _connected(address)
    try:
        with told(clock):
            if address.kind in ENFORCED:
                _prepare(connection, address, clock, writes=writes)
        yield OtherSession(connection, clock, writes=writes)
        if writes:
            with told(clock):
                connection.commit()
    finally:
        with suppress(Exception):  # the connection may be lost, and what was not committed with it
            connection.invalidate()
        connection.close()
        engine.dispose()


def _connected(address: Address) -> tuple[Any, Any]:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError, NoSuchModuleError
    from sqlalchemy.pool import NullPool

    try:
        engine = create_engine(address.url(), poolclass=NullPool)
        return engine.connect(), engine
    except NoSuchModuleError:
        raise Refuse(f"the database {address.name!r} cannot be used: SQLAlchemy knows no {address.kind}.") from None
    except ModuleNotFoundError as error:
        raise Refuse(f"the database {address.name!r} needs the package {error.name}: install it first.") from None
    except DBAPIError as error:
        said = str(error.orig)[:300]
        raise Transient(f"the database {address.name!r} cannot be reached: {said}.") from None


def _prepare(connection: Any, address: Address, clock: Clock, *, writes: bool) -> None:
    """MySQL and MariaDB: who may reach files is refused, how long it may take is told, and that it only reads."""
    grants = " ".join(str(row[0]) + "\n" for row in connection.exec_driver_sql("SHOW GRANTS"))
    if _REACHING_FILES.search(grants) and not address.config.allow_superuser:
        raise Refuse(
            f"the database {address.name!r} is not used: its user can reach the files of the server, which a read-only "
            "transaction does not forbid. Use one that may only read: GRANT SELECT ON shop.* TO reader. Where that "
            "cannot be, set allow_superuser = true."
        )
    version = str(connection.exec_driver_sql("SELECT version()").scalar())
    if "mariadb" in version.lower():
        connection.exec_driver_sql(f"SET SESSION max_statement_time = {clock.seconds:f}")
    else:
        connection.exec_driver_sql(f"SET SESSION max_execution_time = {int(clock.seconds * 1000)}")
    if not writes:
        connection.exec_driver_sql(f"SET SESSION sql_select_limit = {address.config.max_rows + 1}")
        connection.exec_driver_sql("SET SESSION TRANSACTION READ ONLY")
        connection.exec_driver_sql("START TRANSACTION READ ONLY")


@contextmanager
def told(clock: Clock) -> Iterator[None]:
    """Raise what the database says as our errors."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        raise _failure(error, clock) from None
    except SQLAlchemyError as error:
        raise Retry(str(error).splitlines()[0][:500]) from None


def _failure(error: Any, clock: Clock) -> CallError:
    text = str(error.orig)[:500]
    if _TOO_LONG.search(text):
        return clock.time_out()
    if _READ_ONLY.search(text) or "denied" in text:
        return Refuse(f"that is not allowed here: {text}")
    if error.connection_invalidated:
        return Transient(f"the connection to the database was lost: {text}")
    mendable = ("ProgrammingError", "DataError", "IntegrityError", "OperationalError", "NotSupportedError")
    return Retry(text) if type(error).__name__ in mendable else ExecutionFailed(text)
