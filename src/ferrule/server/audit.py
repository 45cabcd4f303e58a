"""Who administered the server: tokens, tools, what was accepted and forgotten. Entries are only ever added.

Calls and approvals have records of their own, with who made and who decided them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias
from uuid import uuid4

from ferrule.core.permission import Principal
from ferrule.store import ToolKnowledgeStore
from ferrule.store.entry_streams import find_last_entries

STREAM: Final = "audit"
AuditedAction: TypeAlias = Literal[
    "create_token",
    "revoke_token",
    "enable_tool",
    "disable_tool",
    "register_tool",
    "accept_changes",
    "pin_failure",
    "unpin_failure",
    "forget_failures",
]


class AuditLog:
    """The entries of a store."""

    def __init__(self, store: ToolKnowledgeStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    async def write(self, principal: Principal, action: AuditedAction, subject: str, **details: Any) -> None:
        """Add what somebody has done. It is stored when this returns."""
        now, tenant = self._clock(), principal.tenant
        entry = {"at": now, "by": principal.label, "tenant": tenant, "action": action, "subject": subject}
        entry["details"] = details
        stream = f"{STREAM}:{tenant}" if tenant else STREAM
        self._store.write_entry(stream, f"{now:017.6f}-{uuid4().hex[:8]}", self._store.redaction.redact(entry))
        await self._store.flush()

    async def read(self, *, tenant: str | None, limit: int) -> list[dict[str, Any]]:
        """The latest entries of a tenant, or of all with None, the newest first."""
        stream = f"{STREAM}:{tenant}" if tenant else STREAM
        return await self._store.query(find_last_entries, stream, limit, with_children=tenant is None)
