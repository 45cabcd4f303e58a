"""How an engine is set up."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from ferrule.catalog.tags import DEFAULT_TABLE, TagTable
from ferrule.engine.resilience import BreakerConfig, RetryPolicy
from ferrule.errors import SetupError
from ferrule.kinds.openapi.tool import OpenApiEntry
from ferrule.policy.approvals import DEFAULT_EXPIRY

NO_FOLDER: Final = f"{os.devnull}/none"
"""A path that never exists: a `tools_directory` for engines whose tools are all registered."""
OnStoreFailure: TypeAlias = Literal["refuse", "refuse_destructive", "continue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEngineConfig:
    """Where tools are found and under which rules they are run."""

    tools_directory: str = "tools"
    """YAML and Python files of tools, whose Python files are executed. The folder may be missing."""
    skills_directories: tuple[str, ...] = ()
    """Folders of skills: Python classes and folders with a SKILL.md."""
    mcp_file: str | None = None
    """MCP servers, as Claude Desktop and Cursor write them. A project with a `ferrule.toml` has `mcp.json`."""
    accepted_servers: frozenset[str] | None = None
    """The entries of `mcp_file` that may be started, by their `trust_digest`; None: all."""
    for_untrusted_folder: bool = False
    """Read only YAML files, and call none of their tools: for a folder that is not trusted."""
    openapi: tuple[OpenApiEntry, ...] = ()
    """OpenAPI documents, each of which is a tool."""
    tags: dict[str, list[str]] = field(default_factory=dict)
    """Words and their tags, beside the standard ones, for tools that have no tags of their own."""
    auto_reload: bool = True
    """Look for changed files every `reload_interval` seconds."""
    reload_interval: float = 5.0
    watch_for_changes: bool = False
    """Look for changed files several times a second."""
    strict_validation: bool = False
    """Coerce nothing and refuse unknown parameters."""
    default_timeout: float = 30.0
    """Seconds for a call whose caller and tool name none."""
    stop_timeout: float = 5.0
    """Seconds that a tool has to end after a timeout or a cancellation. Then it is abandoned."""
    max_input: int = 10_000_000
    """Bytes of the arguments of a call. Checking, copying and recording them takes the event loop's time."""
    max_output: int = 100_000
    """Bytes of a result handed on, for tools that name no limit; the rest is kept as an artifact."""
    max_depth: int = 16
    """How deep calls of tools by tools may be nested."""
    approval_expiry: float = DEFAULT_EXPIRY
    """Seconds after which a request for approval, or an approval that was not used, no longer counts."""
    builtin_tools: bool = True
    """Offer the bundled tools, and the tools of other installed packages."""
    on_store_failure: OnStoreFailure = "refuse_destructive"
    """What happens to a call whose start cannot be recorded safely, because the disk is full for example:
    `refuse_destructive` refuses calls of destructive tools, `refuse` all calls, and `continue` none."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)

    @property
    def tag_table(self) -> TagTable:
        return DEFAULT_TABLE.with_words(self.tags) if self.tags else DEFAULT_TABLE

    def __post_init__(self) -> None:
        positive = (
            "reload_interval",
            "default_timeout",
            "stop_timeout",
            "max_input",
            "max_output",
            "max_depth",
            "approval_expiry",
        )
        for name in positive:
            if not getattr(self, name) > 0:
                raise SetupError(f"{name} must be more than 0, not {getattr(self, name)!r}")
        if self.on_store_failure not in get_args(OnStoreFailure):
            choices = ", ".join(get_args(OnStoreFailure))
            raise SetupError(f"on_store_failure must be one of {choices}, not {self.on_store_failure!r}")
