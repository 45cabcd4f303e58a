"""PostgreSQL: a query is a cursor in a transaction that reads only and is always taken back.

What is asked for goes to the server by the protocol that takes one statement and no more, and stands behind
`DECLARE … CURSOR FOR`, where nothing but a query may stand. How long it may take is for the server to keep to; it also
looks by itself whether we are still there, so that a query whose process was killed ends with it.

A transaction that only reads does not keep a superuser from the files of the server. So roles that can reach them are
refused, and functions that reach beyond the database are, by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, Transient
from ferrule.tools.data_analyzer.rows import Column
from ferrule.tools.database_query.address import Address
from ferrule.tools.database_query.placeholders import pieces, with_percent_signs
from ferrule.tools.database_query.session import AT_ONCE, TOO_LARGE, Answer, Clock

_CURSOR: Final = "ferrule_rows"
_AT_ONCE_BYTES: Final = 20_000_000
_LOOK_EVERY: Final = "500"
"""Milliseconds after which the server looks whether we are still there (from version 14 on)."""
_CONNECTING: Final = 10
"""Seconds."""
_POWERFUL: Final = ("pg_execute_server_program", "pg_read_server_files", "pg_write_server_files")
_REACHING_OUT: Final = re.compile(
    r"dblink\w*|lo_\w+|pg_(read|write)_\w*file|pg_read_binary_file|pg_ls_\w+|pg_stat_file|pg_file_\w+|pg_logdir_ls"
    r"|pg_(terminate|cancel)_backend|pg_reload_conf|pg_rotate_logfile|pg_switch_wal|pg_create_\w+|pg_drop_\w+"
    r"|pg_promote|pg_wal_replay_\w+|pg_backup_\w+|pg_(start|stop)_backup|pg_advisory_\w*lock\w*|pg_try_advisory_\w+"
    r"|pg_notify|pg_logical_\w+|pg_replication_\w+|set_config|query_to_xml\w*|cursor_to_xml\w*|ts_stat|ts_rewrite"
    r"|crosstab\w*|connectby|xpath_table",
    re.IGNORECASE,
)
"""Functions that reach other databases, files, other connections or settings, or run a text as SQL."""
_NOT_FOR_US: Final = re.compile(r"authentication|does not exist|connection option|permission|no pg_hba|password")
"""What waiting does not mend."""
_UNICODE: Final = re.compile(r"\bu&\"", re.IGNORECASE)
_ADVICE: Final = (
    "Use a role that may only read: CREATE ROLE reader LOGIN PASSWORD '…'; GRANT pg_read_all_data TO reader. Where "
    "that cannot be, set allow_superuser = true"
)


class PostgresSession:
    """One transaction."""

    def __init__(self, connection: Any, raw: Any, clock: Clock, *, writes: bool) -> None:
        self._connection, self._raw, self._clock, self._writes = connection, raw, clock, writes

    def ask(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        _require_inside(sql)
        return self._change(sql, parameters) if self._writes else self._read(sql, parameters)

    @contextmanager
    def inspected(self) -> Iterator[Any]:
        with told(self._clock):
            yield self._connection

    def _read(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        with told(self._clock):
            # As binary, else it would go by the protocol that takes several statements at once.
            text, values = _bound(f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR {sql}", parameters)
            self._raw.execute(text, values, binary=True)
        first = self._fetch(1)
        return Answer(columns=_columns(first), rows=self._rows(first))

    def _fetch(self, count: int) -> Any:
        if self._clock.is_over():
            raise self._clock.time_out()
        with told(self._clock):
            return self._raw.execute(f"FETCH FORWARD {count} FROM {_CURSOR}")

    def _rows(self, fetched: Any) -> Iterator[tuple[Any, ...]]:
        while rows := self._all_of(fetched):
            yield from rows
            fetched = self._fetch(_how_many(rows))

    def _all_of(self, fetched: Any) -> list[tuple[Any, ...]]:
        with told(self._clock):
            found: list[tuple[Any, ...]] = fetched.fetchall()
            return found

    def _change(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        with told(self._clock):
            text, values = _bound(sql, parameters)
            cursor = self._raw.execute(text, values, prepare=True)
            rows = cursor.fetchall() if cursor.description else []
        changed = cursor.rowcount if cursor.rowcount >= 0 else None
        return Answer(columns=_columns(cursor), rows=iter(rows), changed=changed)


def _how_many(rows: list[tuple[Any, ...]]) -> int:
    """Rows to fetch next, if they are as long as the longest of these."""
    longest = max(sum(len(value) for value in row if isinstance(value, (str, bytes))) for row in rows)
    return max(1, min(AT_ONCE, _AT_ONCE_BYTES // (longest + 1)))


@contextmanager
def open_postgres(address: Address, clock: Clock, *, writes: bool) -> Iterator[PostgresSession]:
    """A connection with one transaction, which is kept only if something was to be written and all went well."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    wait = int(max(1, min(_CONNECTING, clock.seconds)))
    engine = create_engine(address.url(), poolclass=NullPool, connect_args={"connect_timeout": wait})
    with _reached(address):
        connection = engine.connect().execution_options(postgresql_readonly=not writes)
    raw: Any = connection.connection.driver_connection
    try:
        with told(clock):
            _prepare(raw, clock)
            _require_weak(raw, address)
        yield PostgresSession(connection, raw, clock, writes=writes)
        if writes:
            with told(clock):
                raw.commit()
    finally:
        raw.close()  # what was not committed is taken back by the server
        connection.invalidate()
        connection.close()
        engine.dispose()


def _prepare(raw: Any, clock: Clock) -> None:
    _read_every_moment(raw)
    # Else a backslash in a text could end it for us and not for the server.
    raw.execute("SELECT set_config('standard_conforming_strings', 'on', true)")
    milliseconds = str(max(1, int(clock.left() * 1000)))
    for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        raw.execute("SELECT set_config(%s, %s, true)", [setting, milliseconds])
    if raw.info.server_version >= 140_000:
        import psycopg

        with suppress(psycopg.Error), raw.transaction():  # some systems have no way to look
            raw.execute("SELECT set_config('client_connection_check_interval', %s, true)", [_LOOK_EVERY])


def _read_every_moment(raw: Any) -> None:
    """Moments that Python has none for, such as `infinity`, and stretches of time, whose months have no length, are
    told as the server writes them."""
    import psycopg
    from psycopg.types import datetime, string

    def or_as_written(kind: Any) -> Any:
        class OrAsWritten(kind):  # type: ignore[misc]
            def load(self, data: Any) -> Any:
                try:
                    return super().load(data)
                except psycopg.DataError:
                    return bytes(data).decode()

        return OrAsWritten

    for name, kind in (
        ("date", datetime.DateLoader),
        ("time", datetime.TimeLoader),
        ("timetz", datetime.TimetzLoader),
        ("timestamp", datetime.TimestampLoader),
        ("timestamptz", datetime.TimestamptzLoader),
    ):
        raw.adapters.register_loader(name, or_as_written(kind))
    raw.adapters.register_loader("interval", string.TextLoader)


def _require_weak(raw: Any, address: Address) -> None:
    if address.config.allow_superuser:
        return
    rows = raw.execute(
        "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND pg_has_role(current_user, oid, 'MEMBER')",
        [list(_POWERFUL)],
    ).fetchall()
    if rows:
        raise Refuse(
            f"the database {address.name!r} is not used: its role can reach the files of the server, which a read-only "
            f"transaction does not forbid. {_ADVICE}."
        )


def _require_inside(sql: str) -> None:
    """By name: a role that may only read is what really protects, and this tells sooner and better."""
    if _UNICODE.search(sql):
        raise Refuse('names are to be written as they are, without U&"…".')
    written = list(pieces(sql))
    if any(piece[0].startswith("/*") and "/*" in piece[0][2:] for piece in written):
        raise Retry("there is a comment in a comment: leave out comments.")
    found = [piece for piece in written if not piece[0].isspace() and not piece[0].startswith(("--", "/*"))]
    for index, piece in enumerate(found):
        name = piece[0].strip('"')
        if _REACHING_OUT.fullmatch(name) and _is_called(found, index):
            raise Refuse(f"the function {name!r} is not allowed: it reaches beyond the tables of the database.")


def _is_called(found: list[re.Match[str]], index: int) -> bool:
    """As `name(…)`, or as `(…).name`, which is the same to Postgres; `table.name` is a column."""
    if found[index + 1 : index + 2] and found[index + 1][0] == "(":
        return True
    of, dot = ([None, None, *found[:index]])[-2:]
    return dot is not None and dot[0] == "." and of is not None and (of[0] in (")", "]") or bool(of["name"]))


def _bound(sql: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Without values the text is handed on as it is, percent signs and all."""
    if not parameters:
        return sql, None
    from psycopg.types.json import Jsonb

    values = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in parameters.items()}
    return with_percent_signs(sql), values


def _columns(cursor: Any) -> list[Column]:
    return [Column(name=each.name, type=each.type_display) for each in cursor.description or ()]


@contextmanager
def _reached(address: Address) -> Iterator[None]:
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        said = (str(error.orig).strip().splitlines() or ["no answer"])[0][:300]
        # Not a fault of the way: that would close the way to other databases too.
        kind = ExecutionFailed if _NOT_FOR_US.search(said) else Transient
        raise kind(f"the database {address.name!r} cannot be reached: {said}.") from None


@contextmanager
def told(clock: Clock) -> Iterator[None]:
    """Raise what Postgres says as our errors."""
    import psycopg
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise _failure(error, clock) from None
    except DBAPIError as error:
        raise _failure(error.orig, clock) from None


def _failure(error: Any, clock: Clock) -> CallError:
    state = getattr(error, "sqlstate", None) or ""
    text = _said(error)
    if state == "57014":
        return clock.time_out()
    if state in ("25006", "42501", "0A000"):
        return Refuse(f"that is not allowed here: {text}")
    if state in ("40001", "40P01", "55P03") or state.startswith("53"):
        return Transient(text)
    if not state and "memory" in text:  # of ours; what the server says of its own has a state
        return Retry(TOO_LARGE)
    if not state or state.startswith(("08", "57P")):
        kind = Retry if type(error).__name__ in ("ProgrammingError", "DataError", "UnicodeEncodeError") else Transient
        return kind(text or "the connection to the database was lost.")
    if "multiple commands" in text:
        return Retry("there are several statements in the SQL: give one.")
    if state in ("42P01", "42703"):
        return Retry(f"{text} Look at the tables with schema.")
    return Retry(text) if state[:2] in ("42", "22", "23", "21", "2B", "3F") else ExecutionFailed(text)


def _said(error: Any) -> str:
    diagnostics = getattr(error, "diag", None)
    message = getattr(diagnostics, "message_primary", None) or str(error).strip()
    hint = getattr(diagnostics, "message_hint", None)
    said = " ".join(f"{part.rstrip('.')}." for part in (message, hint) if part)
    return said[:500]
