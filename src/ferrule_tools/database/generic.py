"""Every other database that SQLAlchemy supports.

Read-only access is enforced for MySQL and MariaDB; the others can be used only with `execute`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, Transient
from ferrule_tools.data.limits import Column
from ferrule_tools.database.session import (
    READ_ONLY_KINDS,
    DatabaseAddress,
    DatabaseSession,
    StatementResult,
    StatementTimer,
    encode_parameters,
    escape_for_sqlalchemy,
    open_connection,
)

_FILE_GRANTS: Final = lazy_pattern(r"\bGRANT\b.*\b(ALL PRIVILEGES|FILE|SUPER)\b.*\bON \*\.\*", re.IGNORECASE)
_TIMEOUT_ERRORS: Final = lazy_pattern(
    r"max_statement_time|max_execution_time|maximum statement execution time", re.IGNORECASE
)
_READ_ONLY_ERROR: Final = lazy_pattern(r"READ ONLY transaction", re.IGNORECASE)


class GenericSession(DatabaseSession):
    def __init__(self, connection: Any, timer: StatementTimer) -> None:
        from sqlalchemy.exc import SQLAlchemyError

        super().__init__(connection, timer)
        self.errors = (SQLAlchemyError,)

    def run_statement(self, sql: str, parameters: Mapping[str, Any]) -> StatementResult:
        from sqlalchemy import text

        with self.convert_errors():
            if parameters:
                result = self.connection.execute(text(escape_for_sqlalchemy(sql)), encode_parameters(parameters))
            else:
                # Passed unchanged, so that a colon in the SQL does not become a parameter.
                result = self.connection.exec_driver_sql(sql, execution_options={"no_parameters": True})
        if not result.returns_rows:
            return StatementResult(columns=[], rows=iter(()), changed=result.rowcount if result.rowcount >= 0 else None)
        return StatementResult(
            columns=[Column(name=str(name), type="") for name in list(result.keys())], rows=self.fetch_rows(result)
        )

    def convert_error(self, error: Any) -> CallError:
        from sqlalchemy.exc import DBAPIError

        if not isinstance(error, DBAPIError):
            return Retry(str(error).splitlines()[0][:500])
        text = str(error.orig)[:500]
        if _TIMEOUT_ERRORS.search(text):
            return self.timer.timeout_error()
        if _READ_ONLY_ERROR.search(text) or "denied" in text:
            return Refuse(f"not allowed: {text}")
        if error.connection_invalidated:
            return Transient(f"the connection to the database was lost: {text}")
        correctable = ("ProgrammingError", "DataError", "IntegrityError", "OperationalError", "NotSupportedError")
        return Retry(text) if type(error).__name__ in correctable else ExecutionFailed(text)


@contextmanager
def open_generic(address: DatabaseAddress, timer: StatementTimer, *, writes: bool) -> Iterator[GenericSession]:
    """Open a connection with one transaction, which is committed only if it writes and nothing failed."""
    if not writes and address.kind not in READ_ONLY_KINDS:
        raise Refuse(
            f"read-only access cannot be enforced for {address.kind}: use execute for the database {address.name!r}, "
            "which is for statements that may change something."
        )
    with open_connection(address) as connection:
        session = GenericSession(connection, timer)
        with session.convert_errors():
            if address.kind in READ_ONLY_KINDS:
                _prepare_connection(connection, address, timer, writes=writes)
        yield session
        if writes:
            with session.convert_errors():
                connection.commit()


def _prepare_connection(connection: Any, address: DatabaseAddress, timer: StatementTimer, *, writes: bool) -> None:
    """Refuse users of MySQL and MariaDB with access to files, and set the timeout and the read-only mode."""
    grants = " ".join(str(row[0]) + "\n" for row in connection.exec_driver_sql("SHOW GRANTS"))
    if _FILE_GRANTS.search(grants) and not address.config.allow_superuser:
        raise Refuse(
            f"the database {address.name!r} is not used: its user has access to files of the server, which a read-only "
            "transaction does not prevent. Use one that may only read: GRANT SELECT ON shop.* TO reader. If that is "
            "not possible, set allow_superuser = true."
        )
    version = str(connection.exec_driver_sql("SELECT version()").scalar())
    if "mariadb" in version.lower():
        connection.exec_driver_sql(f"SET SESSION max_statement_time = {timer.seconds:f}")
    else:
        connection.exec_driver_sql(f"SET SESSION max_execution_time = {int(timer.seconds * 1000)}")
    if not writes:
        connection.exec_driver_sql(f"SET SESSION sql_select_limit = {address.config.max_rows + 1}")
        connection.exec_driver_sql("SET SESSION TRANSACTION READ ONLY")
        connection.exec_driver_sql("START TRANSACTION READ ONLY")
