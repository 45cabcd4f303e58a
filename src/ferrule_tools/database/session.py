"""What all databases have in common: configuration, address, session, timer, and parameters in SQL."""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ferrule.core.patterns import lazy_pattern
from ferrule.core.secrets import Secrets
from ferrule.core.variables import expand_variables, find_variables
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry, SetupError, TimedOut, Transient
from ferrule_tools._tool_setup import describe_missing_package, require_positive
from ferrule_tools.data.limits import Column

if TYPE_CHECKING:
    from sqlalchemy import URL


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseConfig:
    """One database, and what may be done with it."""

    url: str = field(default="", repr=False)
    """As for SQLAlchemy: `sqlite:///shop.db`, `postgresql://reader:${DB_PASSWORD}@db.example.com/shop`."""
    read_only: bool = True
    """True: nothing can be changed. False: adds the action `execute`, which can change data."""
    description: str = ""
    """The content of the database; shown to models."""
    max_rows: int = 1_000
    """The most rows that a call can ask for."""
    timeout: float = 30.0
    """Seconds a query may take before the database stops it."""
    allow_superuser: bool = False
    """Allow a role that can read and write files of the server, which a read-only transaction does not prevent."""

    def __post_init__(self) -> None:
        if "://" not in self.url and not self.url.startswith("${"):
            raise SetupError('a database needs a url, such as url = "sqlite:///shop.db"')
        require_positive(max_rows=self.max_rows, timeout=self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseQueryConfig:
    """The databases that can be queried, by name."""

    databases: dict[str, DatabaseConfig] = field(default_factory=dict)


READ_ONLY_KINDS: Final = frozenset({"sqlite", "postgresql", "mysql", "mariadb"})
"""The kinds of databases for which Ferrule can enforce read-only access."""
_KIND_ALIASES: Final = {"postgres": "postgresql", "sqlite3": "sqlite"}
_USER: Final = lazy_pattern(r"(?<=://)[^/?#]*(?=@)")
_KIND: Final = lazy_pattern(r"([A-Za-z]\w*)(?:\+\w+)?://")
_MIN_SECRET: Final = 4
"""Characters of a password that can be redacted: a shorter one would match anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAddress:
    """A named database. Its variables are expanded only here, so that no message shows them."""

    name: str
    config: DatabaseConfig
    root: Path
    """Base of relative file paths."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables used in the URL."""

    @classmethod
    def of(cls, name: str, config: DatabaseConfig, root: Path, environ: Mapping[str, str]) -> DatabaseAddress:
        variables = {each: environ[each] for each in find_variables(config.url) if each in environ}
        return cls(name=name, config=config, root=root, variables=variables)

    @property
    def kind(self) -> str:
        """Return `sqlite`, `postgresql` …"""
        match = _KIND.match(self._text())
        if match is None:  # the URL is not shown: all of it may be a password
            raise SetupError('its url does not begin with a kind of database, as in "sqlite:///shop.db"')
        kind = match[1].lower()
        return _KIND_ALIASES.get(kind, kind)

    def problem(self) -> str:
        """Return why the database cannot be used, and what to do about it; an empty text if it can."""
        try:
            kind = self.kind
        except SetupError as error:
            return str(error)
        if kind == "sqlite" and self._text().partition("://")[2] in ("", "/", "/:memory:"):
            return 'a database in memory is always empty: name a file, url = "sqlite:///shop.db"'
        if kind == "postgresql" and (missing := describe_missing_package("psycopg", "postgres")):
            return missing
        if self.config.read_only and kind not in READ_ONLY_KINDS:
            return (
                f"read-only access cannot be enforced for {kind}: use a database user that may only read, and set "
                "read_only = false, so that each statement needs approval"
            )
        return ""

    def url(self) -> URL:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        if problem := self.problem():
            raise Refuse(f"the database {self.name!r} cannot be used: {problem}.")
        try:
            url = make_url(self._text())
        except (ArgumentError, ValueError):  # its message may contain the password
            raise Refuse(f"the database {self.name!r} cannot be used: SQLAlchemy cannot parse its url.") from None
        if self.kind == "postgresql":
            return url.set(drivername="postgresql+psycopg")
        if self.kind == "sqlite":
            return url.set(drivername="sqlite", database=str(self.root / str(url.database)))
        return url

    def secrets(self) -> Secrets:
        """Return what must not appear in any message."""
        url = self.url()
        options = [value for key, value in url.query.items() if "pass" in key.lower() and isinstance(value, str)]
        secrets = Secrets.from_template(self.config.url, self.variables)
        secrets.add(value for value in (url.password, *options) if value and len(value) >= _MIN_SECRET)
        return secrets

    def _text(self) -> str:
        """Return the URL with its variables, which are quoted in user and password: they may have any character."""
        user = _USER.search(self.config.url)
        if user is None:
            return expand_variables(self.config.url, self.variables)
        quoted = {name: quote(value, safe="") for name, value in self.variables.items()}
        before, after = self.config.url[: user.start()], self.config.url[user.end() :]
        credentials = expand_variables(user[0], quoted)
        return expand_variables(before, self.variables) + credentials + expand_variables(after, self.variables)


# Sessions

FETCH_ROWS: Final = 200
"""Rows per fetch."""
TOO_LARGE: Final = "the result needs more memory than a query may use: select fewer or shorter values."
_PERMANENT_ERRORS: Final = lazy_pattern(
    r"authentication|does not exist|connection option|permission|no pg_hba|password"
)
"""Connection errors that a retry does not fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementResult:
    columns: list[Column]
    """Empty if it returns no rows."""
    rows: Iterator[tuple[Any, ...]]
    changed: int | None = None
    """Number of rows changed, where the database reports it."""


class DatabaseSession(ABC):
    """An open database with one transaction. All failures are raised as errors of the call."""

    errors: tuple[type[Exception], ...]
    """What the driver raises."""

    def __init__(self, connection: Any, timer: StatementTimer, *, writes: bool = False) -> None:
        self.connection, self.timer, self.writes = connection, timer, writes

    @abstractmethod
    def run_statement(self, sql: str, parameters: Mapping[str, Any], /) -> StatementResult: ...

    @abstractmethod
    def convert_error(self, error: Any, /) -> CallError:
        """Return the error of the call for an error of the driver."""

    @contextmanager
    def convert_errors(self) -> Iterator[None]:
        try:
            yield
        except self.errors as error:
            raise self.convert_error(error) from None

    @contextmanager
    def inspect_connection(self) -> Iterator[Any]:
        """Return a SQLAlchemy connection, to inspect the tables."""
        with self.convert_errors():
            yield self.connection

    def fetch_rows(self, cursor: Any) -> Iterator[tuple[Any, ...]]:
        while True:
            if self.timer.has_expired():
                raise self.timer.timeout_error()
            with self.convert_errors():
                rows = cursor.fetchmany(FETCH_ROWS)
            if not rows:
                return
            yield from map(tuple, rows)


@contextmanager
def open_connection(address: DatabaseAddress, **arguments: Any) -> Iterator[Any]:
    """Open a connection of SQLAlchemy. What is not committed is undone, because the connection is not used again."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError, NoSuchModuleError
    from sqlalchemy.pool import NullPool

    try:
        engine = create_engine(address.url(), poolclass=NullPool, connect_args=arguments)
        connection = engine.connect()
    except NoSuchModuleError:
        raise Refuse(
            f"the database {address.name!r} cannot be used: {address.kind} is unknown to SQLAlchemy."
        ) from None
    except ModuleNotFoundError as error:
        raise Refuse(f"the database {address.name!r} needs the package {error.name}: install it first.") from None
    except DBAPIError as error:
        reason = (str(error.orig).strip().splitlines() or ["no answer"])[0][:300]
        # Not a TransportFault: its circuit breaker would block the other databases too.
        kind = ExecutionFailed if _PERMANENT_ERRORS.search(reason) else Transient
        raise kind(f"the database {address.name!r} cannot be reached: {reason}.") from None
    try:
        yield connection
    finally:
        with suppress(Exception):  # the connection may be lost, which undoes the transaction too
            connection.invalidate()
        connection.close()
        engine.dispose()


class StatementTimer:
    """How long a statement may take."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        return self._end - time.monotonic()

    def has_expired(self) -> bool:
        return self.remaining() <= 0

    def timeout_error(self) -> TimedOut:
        return TimedOut(
            f"the statement took longer than {self.seconds:g} seconds and was stopped in the database. Ask for less: "
            "a WHERE, fewer joins, or an aggregate over fewer rows."
        )


# Parameters: `:name` in SQL stands for a value that is sent beside it, except in string literals, quoted names and
# comments. The difference is a matter of security with drivers that write values into the SQL themselves, as those of
# MySQL do: a value put inside quotes could end them.

_TOKENS: Final = lazy_pattern(
    r"""
      (?P<quoted>
          [eE]'(?:[^'\\]|''|\\.)*'?        # with escapes; may continue on the next line
          (?:[ \t\f\v]*+[\n\r]\s*+(?:--[^\n\r]*+\s*+)*'(?:[^'\\]|''|\\.)*'?)*
        | '(?:[^']|'')*'?
        | "(?:[^"]|"")*"?
        | `(?:[^`]|``)*`?
        | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z)
        | --[^\n\r]*
        | /\*.*?(?:\*/|\Z)
      )
    | (?P<cast>::)
    | (?<![\w:\[]):(?P<name>[A-Za-z_]\w*)
    | (?P<code>\w[\w$]*|.)
    """,
    re.VERBOSE | re.DOTALL,
)

_QUERY_KEYWORDS: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"})


def tokenize_sql(sql: str) -> Iterator[re.Match[str]]:
    """Return the tokens of SQL; string literals, quoted names and comments are `quoted`."""
    return _TOKENS.finditer(sql)


def to_psycopg_placeholders(sql: str) -> str:
    """Write `:name` as `%(name)s`, with percent signs doubled."""
    return "".join(
        f"%({token['name']})s" if token["name"] else token[0].replace("%", "%%") for token in tokenize_sql(sql)
    )


def escape_for_sqlalchemy(sql: str) -> str:
    """Escape colons in literals and comments, in which SQLAlchemy's `text` looks for parameters too."""
    return "".join(token[0] if token["name"] else token[0].replace(":", "\\:") for token in tokenize_sql(sql))


def bind_values(sql: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the parameters in the SQL. Raises Retry if a value is missing."""
    names = {token["name"]: None for token in tokenize_sql(sql) if token["name"]}
    missing = [f":{name}" for name in names if name not in parameters]
    if missing:
        raise Retry(f"give a value in parameters for {', '.join(missing)}.")
    return {name: parameters[name] for name in names}


def encode_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Encode lists and objects as JSON, for databases that have no such values."""
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
        for name, value in parameters.items()
    }


def is_query(sql: str) -> bool:
    """Return whether SQL begins like a query."""
    parsed = list(tokenize_sql(sql))
    if any(token[0].startswith(("/*!", "/*M!")) for token in parsed):
        return False  # MySQL runs the content of such comments
    words = (token[0] for token in parsed if not token["quoted"] and not token[0].isspace() and token[0] != "(")
    return next(words, "").upper() in _QUERY_KEYWORDS
