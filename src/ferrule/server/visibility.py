"""What a client is shown of calls, runs, conversations, approvals, costs and events: what it did itself.

Whoever approves or administers for a tenant sees everything in it, and an administrator without a tenant everything.
Every route and the stream of events ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.catalog.registry import RegistrySnapshot
from ferrule.core.events import ToolEngineEvent
from ferrule.errors import ToolNotFound
from ferrule.memory.conversation import Turn
from ferrule.policy.approvals import ApprovalRequest
from ferrule.policy.policy import Permissions
from ferrule.server.authentication import Client
from ferrule.store.record import ToolCallRecord


class Visibility:
    """What one client may see."""

    def __init__(self, client: Client, permissions: Permissions) -> None:
        self._client, self._permissions = client, permissions
        own = frozenset(each.label for each in (client.principal, client.agent_principal) if each is not None)
        self.principals = None if client.may("approve") else own
        """The only ones in the tenant whose data the client sees, by their labels; None for all."""

    @property
    def tenant(self) -> str | None:
        """The only tenant whose data the client sees; None for all."""
        return None if self._client.sees_all_tenants else self._client.tenant

    def shows_call(self, record: ToolCallRecord) -> bool:
        return self._shows(record.principal, record.tenant)

    def shows_failure(self, name: str, action: str | None, snapshot: RegistrySnapshot) -> bool:
        """Whether a client is shown what was learned from anybody's calls: patterns without values.

        It may call any tool with this name and action, with any arguments: a rule about arguments is about what others
        pass too.
        """
        if self.principals is None:
            return True
        try:
            tool, capability = snapshot.find(name, action)
        except ToolNotFound:
            return False
        decisions = [
            self._permissions.decide(each, same)
            for each in snapshot.by_id[tool.id]
            for same in each.spec.capabilities
            if same.name == capability.name
        ]
        return all(each.verdict != "deny" and not each.depends_on_arguments for each in decisions)

    def shows_event(self, event: ToolEngineEvent) -> bool:
        if self._client.sees_all_tenants:
            return True
        if event.principal is None:
            tool = event.data.get("tool")  # that was loaded, changed or removed; what went wrong is for administrators
            return tool is not None and self._permissions.may_use(tool)
        request = event.data.get("request")
        if isinstance(request, ApprovalRequest):
            return self.shows_request(request)
        return self._shows(event.principal.label, event.principal.tenant)

    def shows_request(self, request: ApprovalRequest) -> bool:
        # What follows the label, if anything: a digest of restrictions, or the tools that make the call.
        return self._shows(request.principal.partition(" ")[0].partition("#")[0], request.tenant)

    def shows_run(self, binding: Mapping[str, Any]) -> bool:
        """Whether a run is shown, by what was stored when it began."""
        return self._shows(binding.get("principal"), binding.get("tenant"))

    def shows_conversation(self, turns: Sequence[Turn]) -> bool:
        """Whether a conversation of the tenant is shown and may be continued."""
        return all(self._shows(turn.principal, self._client.tenant) for turn in turns)

    def _shows(self, principal: str | None, tenant: str | None) -> bool:
        is_of_tenant = self.tenant in (None, tenant or "")
        return is_of_tenant and (self.principals is None or principal in self.principals)
