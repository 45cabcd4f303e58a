"""What `[tools.data_analyzer]` in `ferrule.toml` says."""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.errors import SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAnalyzerConfig:
    """How much one call may use."""

    memory_mb: int = 512
    """What a query may hold in memory; what is more goes to disk. The process may take 1 GB beside it."""
    disk_mb: int = 4096
    """What a query may put on disk for as long as it runs."""
    threads: int = 2
    timeout: float = 60.0
    """Seconds a call may take."""
    max_rows: int = 10_000
    """The most rows that a call can ask for."""

    def __post_init__(self) -> None:
        for name, least in (("memory_mb", 64), ("disk_mb", 0), ("threads", 1), ("max_rows", 1)):
            if getattr(self, name) < least:
                raise SetupError(f"{name} must be at least {least}, not {getattr(self, name)!r}")
        if not self.timeout > 0:
            raise SetupError(f"timeout must be more than 0 seconds, not {self.timeout!r}")
