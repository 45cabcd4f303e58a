"""How an engine is set up."""

from __future__ import annotations

from dataclasses import dataclass, field

from ferrule.engine.breaker import BreakerConfig
from ferrule.engine.retry import RetryPolicy
from ferrule.errors import SetupError
from ferrule.sources.openapi_source import OpenApiEntry
from ferrule.tags import DEFAULT_TABLE, TagTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEngineConfig:
    """Where tools are found and under which rules they are run."""

    tools_directory: str = "tools"
    """YAML and Python files of tools; a folder that is not there yet is no error."""
    skills_directories: tuple[str, ...] = ()
    """Folders of skills: Python classes and folders with a SKILL.md."""
    mcp_file: str | None = None
    """MCP servers, as Claude Desktop and Cursor write them. A project with a `ferrule.toml` has `mcp.json`."""
    openapi: tuple[OpenApiEntry, ...] = ()
    """OpenAPI documents, each of which is a tool."""
    tags: dict[str, list[str]] = field(default_factory=dict)
    """Words and their tags, beside those Ferrule knows, for tools that have no tags of their own."""
    auto_reload: bool = True
    """Look for changed files every `reload_interval` seconds."""
    reload_interval: float = 5.0
    watch_for_changes: bool = False
    """Be told of changed files by the system, within a fraction of a second."""
    strict_validation: bool = False
    """Coerce nothing and refuse unknown parameters."""
    default_timeout: float = 30.0
    """Seconds for a call whose caller and tool name none."""
    max_output: int = 100_000
    """Bytes of a result handed on, for tools that do not say; the rest is kept as an artifact."""
    max_depth: int = 16
    """How deep tools may call tools."""
    builtin_tools: bool = True
    """Offer the tools that come in the box."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)

    @property
    def tag_table(self) -> TagTable:
        return DEFAULT_TABLE.extended(self.tags) if self.tags else DEFAULT_TABLE

    def __post_init__(self) -> None:
        for name in ("reload_interval", "default_timeout", "max_output", "max_depth"):
            if not getattr(self, name) > 0:
                raise SetupError(f"{name} must be more than 0, not {getattr(self, name)!r}")
