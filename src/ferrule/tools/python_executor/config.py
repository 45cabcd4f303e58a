"""What `[tools.python_executor]` in `ferrule.toml` may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ferrule.errors import SetupError
from ferrule.names import did_you_mean

ISOLATIONS: Final = ("auto", "bubblewrap", "limits")
_SANDBOX_MEMORY: Final = 256
_FULL_MEMORY: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonExecutorConfig:
    """Where scripts run, which tools they may call, and how much they may use."""

    full: bool = False
    """Run scripts in a real CPython, in a process of its own, in place of the sandbox. They can call no tools then."""
    interpreter: str = ""
    """With `full`: the Python to run; empty: the one that Ferrule runs on."""
    isolation: str = "auto"
    """With `full`: `bubblewrap`, `limits` (weaker), or `auto`: bubblewrap where it works, else limits."""
    tools: list[str] | None = None
    """The tools that scripts may call, by id, name or pattern (`files__*`); left out: those that change nothing."""
    calls: int = 100
    """How many calls of tools one script may make."""
    seconds: float = 20.0
    """Seconds a script may compute; waiting for tools does not count. With `full`: seconds it may run."""
    timeout: float = 300.0
    """Seconds that all of it may take, with the tools that it calls."""
    memory_mb: int | None = None
    """Megabytes a script may use; left out: 256, with `full` 1024."""
    printed_bytes: int = 100_000
    """Bytes a script may print."""
    processes: int = 32
    """With `full`: processes and threads that a script may have."""
    files_mb: int = 64
    """With `full`: megabytes a script may write, into one file and with bubblewrap into all."""

    def __post_init__(self) -> None:
        if self.isolation not in ISOLATIONS:
            near = did_you_mean(self.isolation, ISOLATIONS) or f" It is one of: {', '.join(ISOLATIONS)}."
            raise SetupError(f"python_executor: there is no isolation {self.isolation!r}.{near}")
        for name in ("calls", "seconds", "timeout", "memory", "printed_bytes", "processes", "files_mb"):
            if not getattr(self, name) > 0:
                raise SetupError(f"python_executor: {name} must be more than 0, not {getattr(self, name)!r}")

    @property
    def memory(self) -> int:
        """In bytes."""
        megabytes = self.memory_mb if self.memory_mb is not None else _FULL_MEMORY if self.full else _SANDBOX_MEMORY
        return megabytes * 1_000_000
