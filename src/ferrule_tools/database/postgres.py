"""PostgreSQL: a query is a cursor in a read-only transaction that is always rolled back.

A query is sent by the protocol that accepts only one statement, behind `DECLARE … CURSOR FOR`, which accepts only
queries. The server enforces the timeout; it also checks whether the client still exists, so that a query ends with its
killed process.

A read-only transaction does not keep a superuser from files of the server. So roles with access to files are refused,
and so are functions that reach beyond the database, by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, Transient
from ferrule_tools.data.limits import Column
from ferrule_tools.database.session import (
    FETCH_ROWS,
    TOO_LARGE,
    DatabaseAddress,
    DatabaseSession,
    StatementResult,
    StatementTimer,
    open_connection,
    to_psycopg_placeholders,
    tokenize_sql,
)

_CURSOR: Final = "ferrule_rows"
_FETCH_BYTES: Final = 20_000_000
_CLIENT_CHECK_INTERVAL: Final = "500"
"""Milliseconds between the server's checks that the client still exists (version 14 and later)."""
_CONNECT_TIMEOUT: Final = 10
"""Seconds."""
_FILE_ROLES: Final = ("pg_execute_server_program", "pg_read_server_files", "pg_write_server_files")
_UNSAFE_FUNCTIONS: Final = lazy_pattern(
    r"dblink\w*|lo_\w+|pg_(read|write)_\w*file|pg_read_binary_file|pg_ls_\w+|pg_stat_file|pg_file_\w+|pg_logdir_ls"
    r"|pg_(terminate|cancel)_backend|pg_reload_conf|pg_rotate_logfile|pg_switch_wal|pg_create_\w+|pg_drop_\w+"
    r"|pg_promote|pg_wal_replay_\w+|pg_backup_\w+|pg_(start|stop)_backup|pg_advisory_\w*lock\w*|pg_try_advisory_\w+"
    r"|pg_notify|pg_logical_\w+|pg_replication_\w+|set_config|query_to_xml\w*|cursor_to_xml\w*|ts_stat|ts_rewrite"
    r"|crosstab\w*|connectby|xpath_table",
    re.IGNORECASE,
)
"""Functions that access other databases, files, connections or settings, or run a text as SQL."""
_UNICODE_NAME: Final = lazy_pattern(r"\bu&\"", re.IGNORECASE)
_ADVICE: Final = (
    "Use a role that may only read: CREATE ROLE reader LOGIN PASSWORD '…'; GRANT pg_read_all_data TO reader. If "
    "that is not possible, set allow_superuser = true"
)


class PostgresSession(DatabaseSession):
    def __init__(self, connection: Any, timer: StatementTimer, *, writes: bool) -> None:
        import psycopg
        from sqlalchemy.exc import DBAPIError

        super().__init__(connection, timer, writes=writes)
        self._raw = connection.connection.driver_connection
        self.errors = (psycopg.Error, UnicodeEncodeError, DBAPIError)

    def run_statement(self, sql: str, parameters: Mapping[str, Any]) -> StatementResult:
        _require_safe_functions(sql)
        if not self.writes:
            with self.convert_errors():
                # binary=True selects the extended protocol; the simple one would accept several statements.
                text, values = _bind_parameters(f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR {sql}", parameters)
                self._raw.execute(text, values, binary=True)
            columns, first = self._fetch(1)
            return StatementResult(columns=columns, rows=self._continue(first))
        with self.convert_errors():
            text, values = _bind_parameters(sql, parameters)
            cursor = self._raw.execute(text, values, prepare=True)
            rows = cursor.fetchall() if cursor.description else []
        changed = cursor.rowcount if cursor.rowcount >= 0 else None
        return StatementResult(columns=_result_columns(cursor), rows=iter(rows), changed=changed)

    def convert_error(self, error: Any) -> CallError:
        error = getattr(error, "orig", error)  # SQLAlchemy wraps the errors of its own statements
        state = getattr(error, "sqlstate", None) or ""
        diagnostics = getattr(error, "diag", None)
        message = getattr(diagnostics, "message_primary", None) or str(error).strip()
        hint = getattr(diagnostics, "message_hint", None)
        text = " ".join(f"{part.rstrip('.')}." for part in (message, hint) if part)[:500]
        if state == "57014":
            return self.timer.timeout_error()
        if state in ("25006", "42501", "0A000"):
            return Refuse(f"not allowed: {text}")
        if state in ("40001", "40P01", "55P03") or state.startswith("53"):
            return Transient(text)
        if not state and "memory" in text:  # our own memory; errors of the server have a state
            return Retry(TOO_LARGE)
        if not state or state.startswith(("08", "57P")):
            is_correctable = type(error).__name__ in ("ProgrammingError", "DataError", "UnicodeEncodeError")
            kind = Retry if is_correctable else Transient
            return kind(text or "the connection to the database was lost.")
        if "multiple commands" in text:
            return Retry("there are several statements in the SQL: give one.")
        if state in ("42P01", "42703"):
            return Retry(f"{text} Use schema to list the tables.")
        return Retry(text) if state[:2] in ("42", "22", "23", "21", "2B", "3F") else ExecutionFailed(text)

    def _fetch(self, count: int) -> tuple[list[Column], list[tuple[Any, ...]]]:
        if self.timer.has_expired():
            raise self.timer.timeout_error()
        with self.convert_errors():
            cursor = self._raw.execute(f"FETCH FORWARD {count} FROM {_CURSOR}")
            return _result_columns(cursor), cursor.fetchall()

    def _continue(self, rows: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield these rows and all that follow, assuming that the next ones are as long as the longest before."""
        while rows:
            yield from rows
            longest = max(sum(len(value) for value in row if isinstance(value, (str, bytes))) for row in rows)
            _, rows = self._fetch(max(1, min(FETCH_ROWS, _FETCH_BYTES // (longest + 1))))


@contextmanager
def open_postgres(address: DatabaseAddress, timer: StatementTimer, *, writes: bool) -> Iterator[PostgresSession]:
    """Open a connection with one transaction, which is committed only if it writes and nothing failed."""
    timeout = int(max(1, min(_CONNECT_TIMEOUT, timer.seconds)))
    with open_connection(address, connect_timeout=timeout) as connection:
        connection = connection.execution_options(postgresql_readonly=not writes)
        raw: Any = connection.connection.driver_connection
        session = PostgresSession(connection, timer, writes=writes)
        with session.convert_errors():
            _prepare_connection(raw, timer)
            _require_no_file_access(raw, address)
        yield session
        if writes:
            with session.convert_errors():
                raw.commit()


def _prepare_connection(raw: Any, timer: StatementTimer) -> None:
    _load_unusual_dates(raw)
    # Otherwise a backslash before a quote would end a literal for our tokenizer and not for the server.
    raw.execute("SELECT set_config('standard_conforming_strings', 'on', true)")
    milliseconds = str(max(1, int(timer.remaining() * 1000)))
    for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        raw.execute("SELECT set_config(%s, %s, true)", [setting, milliseconds])
    if raw.info.server_version >= 140_000:
        import psycopg

        with suppress(psycopg.Error), raw.transaction():  # not supported on some systems
            raw.execute("SELECT set_config('client_connection_check_interval', %s, true)", [_CLIENT_CHECK_INTERVAL])


def _load_unusual_dates(raw: Any) -> None:
    """Return as text what Python's types cannot represent: dates such as `infinity`, and intervals, whose months have
    no fixed length.
    """
    import psycopg
    from psycopg.types import datetime, string

    def or_text(kind: Any) -> Any:
        class DateOrTextLoader(kind):  # type: ignore[misc]
            def load(self, data: Any) -> Any:
                try:
                    return super().load(data)
                except psycopg.DataError:
                    return bytes(data).decode()

        return DateOrTextLoader

    for name, kind in (
        ("date", datetime.DateLoader),
        ("time", datetime.TimeLoader),
        ("timetz", datetime.TimetzLoader),
        ("timestamp", datetime.TimestampLoader),
        ("timestamptz", datetime.TimestamptzLoader),
    ):
        raw.adapters.register_loader(name, or_text(kind))
    raw.adapters.register_loader("interval", string.TextLoader)


def _require_no_file_access(raw: Any, address: DatabaseAddress) -> None:
    if address.config.allow_superuser:
        return
    rows = raw.execute(
        "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND pg_has_role(current_user, oid, 'MEMBER')",
        [list(_FILE_ROLES)],
    ).fetchall()
    if rows:
        raise Refuse(
            f"the database {address.name!r} is not used: its role has access to files of the server, which a read-only "
            f"transaction does not prevent. {_ADVICE}."
        )


def _require_safe_functions(sql: str) -> None:
    """Refuse functions by name. A role that may only read protects; this check gives an earlier, clearer error."""
    if _UNICODE_NAME.search(sql):
        raise Refuse('write names as they are, without U&"…".')
    parsed = list(tokenize_sql(sql))
    if any(token[0].startswith("/*") and "/*" in token[0][2:] for token in parsed):
        raise Retry("the SQL has nested comments: leave out comments.")
    code = [token for token in parsed if not token[0].isspace() and not token[0].startswith(("--", "/*"))]
    for index, token in enumerate(code):
        name = token[0].strip('"')
        if _UNSAFE_FUNCTIONS.fullmatch(name) and _is_function_call(code, index):
            raise Refuse(f"the function {name!r} is not allowed: it reaches beyond the tables of the database.")


def _is_function_call(code: list[re.Match[str]], index: int) -> bool:
    """Return whether a name is called: `name(…)`, or `(…).name`, which means the same. `table.name` is a column."""
    if code[index + 1 : index + 2] and code[index + 1][0] == "(":
        return True
    owner, dot = ([None, None, *code[:index]])[-2:]
    return dot is not None and dot[0] == "." and owner is not None and (owner[0] in (")", "]") or bool(owner["name"]))


def _bind_parameters(sql: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Return SQL and values for psycopg. Without parameters the SQL stays unchanged, percent signs included."""
    if not parameters:
        return sql, None
    from psycopg.types.json import Jsonb

    values = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in parameters.items()}
    return to_psycopg_placeholders(sql), values


def _result_columns(cursor: Any) -> list[Column]:
    return [Column(name=each.name, type=each.type_display) for each in cursor.description or ()]
