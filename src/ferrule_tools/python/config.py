"""The section `[tools.python_executor]` of `ferrule.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ferrule.core.names import did_you_mean
from ferrule.errors import SetupError

INSTALL_BUBBLEWRAP: Final = "apt install bubblewrap, dnf install bubblewrap or apk add bubblewrap"
_ISOLATIONS: Final = ("auto", "bubblewrap")
_SANDBOX_MEMORY_MB: Final = 256
_FULL_MEMORY_MB: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonExecutorConfig:
    """Where scripts run, which tools they may call, and how much they may use."""

    full: bool = False
    """Run scripts in a real CPython in a process of its own instead of the sandbox. They cannot call tools then."""
    interpreter: str = ""
    """With `full`: the Python to run; empty: the one that Ferrule runs on."""
    isolation: str = "auto"
    """With `full`: `bubblewrap`, or `auto`, which means the same."""
    tools: list[str] | None = None
    """The tools that scripts may call, by id, name or pattern (`files__*`); left out: all read-only tools."""
    calls: int = 100
    """How many tool calls one script may make."""
    seconds: float = 20.0
    """Seconds a script may compute; waiting for tools does not count. With `full`: seconds it may run."""
    timeout: float = 300.0
    """Seconds the whole call may take, including the tools that the script calls."""
    memory_mb: int | None = None
    """Megabytes a script may use; left out: 256, with `full` 1024."""
    printed_bytes: int = 100_000
    """Bytes a script may print."""
    processes: int = 32
    """With `full`: processes and threads that a script may have."""
    files_mb: int = 64
    """With `full`: megabytes a script may write, in all files together."""

    def __post_init__(self) -> None:
        if self.isolation == "limits":
            raise SetupError(
                "python_executor: isolation = 'limits' does not exist any more. Use 'bubblewrap' and install it: "
                f"{INSTALL_BUBBLEWRAP}; or set full = false to use the sandbox"
            )
        if self.isolation not in _ISOLATIONS:
            hint = did_you_mean(self.isolation, _ISOLATIONS) or f" Use one of: {', '.join(_ISOLATIONS)}."
            raise SetupError(f"python_executor: there is no isolation {self.isolation!r}.{hint}")
        for name in ("calls", "seconds", "timeout", "memory", "printed_bytes", "processes", "files_mb"):
            if not getattr(self, name) > 0:
                raise SetupError(f"python_executor: {name} must be more than 0, not {getattr(self, name)!r}")

    @property
    def memory(self) -> int:
        """In bytes."""
        default = _FULL_MEMORY_MB if self.full else _SANDBOX_MEMORY_MB
        return (default if self.memory_mb is None else self.memory_mb) * 1_000_000
