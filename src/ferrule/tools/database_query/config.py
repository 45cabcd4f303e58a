"""What `[tools.database_query]` in `ferrule.toml` says."""

from __future__ import annotations

from dataclasses import dataclass, field

from ferrule.errors import SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseConfig:
    """One database, and what may be done with it."""

    url: str = field(default="", repr=False)
    """As SQLAlchemy has it: `sqlite:///shop.db`, `postgresql://reader:${DB_PASSWORD}@db.example.com/shop`."""
    read_only: bool = True
    """Nothing can be changed. False: there is an action `execute`, which can."""
    description: str = ""
    """What is in it, for models."""
    max_rows: int = 1_000
    """The most rows that a call can ask for."""
    timeout: float = 30.0
    """Seconds a query may take; then it is stopped in the database."""
    allow_superuser: bool = False
    """Let queries run as a role that can read and write the files of the server, whatever a transaction forbids."""

    def __post_init__(self) -> None:
        if "://" not in self.url and not self.url.startswith("${"):
            raise SetupError('a database needs a url, such as url = "sqlite:///shop.db"')
        if self.max_rows < 1:
            raise SetupError(f"max_rows must be at least 1, not {self.max_rows!r}")
        if not self.timeout > 0:
            raise SetupError(f"timeout must be more than 0 seconds, not {self.timeout!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseQueryConfig:
    """The databases that can be asked, by the names they are called by."""

    databases: dict[str, DatabaseConfig] = field(default_factory=dict)
