"""Where a database is. The variables in its URL are known only here, and to nobody who reads a message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ferrule.errors import Refuse, SetupError
from ferrule.executors.secrets import Secrets
from ferrule.executors.variables import expand_variables, variables_in
from ferrule.tools.database_query.config import DatabaseConfig

if TYPE_CHECKING:
    from sqlalchemy import URL

ENFORCED: Final = frozenset({"sqlite", "postgresql", "mysql", "mariadb"})
"""The kinds of databases that can be held to reading."""
_OTHER_NAMES: Final = {"postgres": "postgresql", "sqlite3": "sqlite"}
_USER: Final = re.compile(r"(?<=://)[^/?#]*(?=@)")
_KIND: Final = re.compile(r"([A-Za-z]\w*)(?:\+\w+)?://")
_SHORTEST: Final = 4
"""Characters of a password that can be hidden: a shorter one would turn up anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A database by name."""

    name: str
    config: DatabaseConfig
    root: Path
    """Relative paths of files start here."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those that the URL asks for."""

    @classmethod
    def of(cls, name: str, config: DatabaseConfig, root: Path, environ: Mapping[str, str]) -> Address:
        asked = {each: environ[each] for each in variables_in(config.url) if each in environ}
        return cls(name=name, config=config, root=root, variables=asked)

    @property
    def kind(self) -> str:
        """`sqlite`, `postgresql` …"""
        said = _KIND.match(self._text())
        if said is None:  # it is not shown: all of it may be a password
            raise SetupError('its url does not begin with a kind of database, as in "sqlite:///shop.db"')
        named = said[1].lower()
        return _OTHER_NAMES.get(named, named)

    def problem(self) -> str:
        """Why it cannot be used, and what to do about it; empty: it can."""
        try:
            kind = self.kind
        except SetupError as error:
            return str(error)
        if kind == "sqlite" and self._text().partition("://")[2] in ("", "/", "/:memory:"):
            return 'a database in memory is empty: name a file, url = "sqlite:///shop.db"'
        if kind == "postgresql" and find_spec("psycopg") is None:
            return "the package psycopg: pip install 'ferrule[postgres]'"
        if self.config.read_only and kind not in ENFORCED:
            return (
                f"{kind} cannot be held to reading: give a user that may only read, and set read_only = false, so that "
                "each statement is asked about"
            )
        return ""

    def url(self) -> URL:
        """For SQLAlchemy."""
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        if problem := self.problem():
            raise Refuse(f"the database {self.name!r} cannot be used: {problem}.")
        try:
            url = make_url(self._text())
        except (ArgumentError, ValueError):  # what it says may show the password
            raise Refuse(
                f"the database {self.name!r} cannot be used: its url is not one that SQLAlchemy reads."
            ) from None
        if self.kind == "postgresql":
            return url.set(drivername="postgresql+psycopg")
        if self.kind == "sqlite":
            return url.set(drivername="sqlite", database=str(self.root / str(url.database)))
        return url

    def secrets(self) -> Secrets:
        """What must not show in any message."""
        url = self.url()
        options = [value for key, value in url.query.items() if "pass" in key.lower() and isinstance(value, str)]
        hidden = Secrets(self.config.url, self.variables)
        hidden.add(value for value in (url.password, *options) if value and len(value) >= _SHORTEST)
        return hidden

    def _text(self) -> str:
        """The URL with its variables. In the place of a user and a password they may hold any characters."""
        user = _USER.search(self.config.url)
        if user is None:
            return expand_variables(self.config.url, self.variables)
        quoted = {name: quote(value, safe="") for name, value in self.variables.items()}
        before, after = self.config.url[: user.start()], self.config.url[user.end() :]
        said = expand_variables(user[0], quoted)
        return expand_variables(before, self.variables) + said + expand_variables(after, self.variables)
