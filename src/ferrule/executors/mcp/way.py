"""Which server, and how to talk to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ferrule.executors.mcp.config import Kind, McpServerConfig
from ferrule.executors.mcp.elicitation import OnElicit
from ferrule.executors.mcp.listing import Listing
from ferrule.executors.secrets import Secrets

Era: TypeAlias = Literal["auto", "legacy"]
"""`auto` asks a server for the newest protocol first; `legacy` greets it as before 2026."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to one server."""

    tool_id: str
    config: McpServerConfig
    """With its variables filled in."""
    where: str
    """For messages: its command or address."""
    secrets: Secrets
    kind: Kind
    era: Era
    on_elicit: OnElicit | None
    on_listing: Callable[[Listing], None]
