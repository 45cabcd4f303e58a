"""What a client is shown of calls, runs and approvals: its own, and those of others in its tenant that it might make.

What a client may not call is not shown to it, and that includes the calls of others. Whoever approves or administers
for a tenant sees everything in it. Every route and the stream of events ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ferrule.catalog.registry import RegistrySnapshot
from ferrule.core.events import ToolEngineEvent
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import ToolNotFound
from ferrule.memory.conversation import Turn
from ferrule.policy.approvals import ApprovalRequest
from ferrule.policy.policy import Permissions
from ferrule.server.access import Client
from ferrule.store.queries import ERRORS_THAT_NAME_TOOLS, VisibleCalls
from ferrule.store.record import ToolCallRecord


class Visibility:
    """What one client may see, with the tools that there are now."""

    def __init__(self, client: Client, permissions: Permissions, snapshot: RegistrySnapshot) -> None:
        self._client, self._permissions, self.snapshot = client, permissions, snapshot
        principals = (client.principal, client.agent_principal)
        self._own = frozenset(each.label for each in principals if each is not None)

    @property
    def tenant(self) -> str | None:
        """The only tenant whose data the client sees; None for all."""
        return None if self._client.sees_all_tenants else self._client.tenant

    @cached_property
    def calls(self) -> VisibleCalls | None:
        """The calls of the tenant that it sees; None for all."""
        principal = self._client.principal
        if self._client.sees_all_tenants or self._client.may("approve"):
            return None
        actions = [(tool, capability) for tool in self.snapshot for capability in tool.spec.capabilities]
        visible = [(tool, capability) for tool, capability in actions if self._may_always_call(tool, capability)]
        if len(visible) == len(actions) and principal.tools is None and principal.max_effect == "destructive":
            return None
        return VisibleCalls(
            principals=self._own,
            actions=frozenset((tool.id, capability.name, tool.source) for tool, capability in visible),
        )

    def _may_always_call(self, tool: Tool, capability: ToolCapability) -> bool:
        """Whether an action may be called with any arguments: a rule about arguments is about what others pass too."""
        decision = self._permissions.decide(tool, capability)
        return decision.verdict != "deny" and not decision.depends_on_arguments

    def shows_call(self, record: ToolCallRecord) -> bool:
        return self._is_of_tenant(record.tenant) and (self.calls is None or self.calls.shows(record))

    def describe_call(self, record: ToolCallRecord) -> dict[str, Any]:
        """A record that is shown. Metadata of another's call may name any tool: one to try instead, one of a rule."""
        described = record.to_dict()
        if self.calls is not None and record.principal not in self._own:
            described["metadata"] = {}
        return described

    def shows_action(self, name: str, action: str | None) -> bool:
        """Whether calls by others are shown, which may be of any tool with this name and action."""
        if self.calls is None:
            return True
        try:
            tool, capability = self.snapshot.find(name, action)
        except ToolNotFound:
            return False
        candidates = self.snapshot.by_id[tool.id]
        return all((tool.id, capability.name, each.source) in self.calls.actions for each in candidates)

    def shows_event(self, event: ToolEngineEvent) -> bool:
        if self._client.sees_all_tenants:
            return True
        if event.principal is None:
            tool = event.data.get("tool")  # that was loaded, changed or removed; what went wrong is for administrators
            return tool is not None and self._permissions.may_use(tool)
        request = event.data.get("request")
        if isinstance(request, ApprovalRequest):
            return self.shows_request(request)
        if not self._is_of_tenant(event.principal.tenant):
            return False
        if event.principal.label in self._own or self.calls is None:
            return True
        if event.tool_name is None or event.error_type in ERRORS_THAT_NAME_TOOLS:  # without a tool it is about a run
            return False
        return self.shows_action(event.tool_name, event.data.get("action"))

    def shows_request(self, request: ApprovalRequest) -> bool:
        # What follows the label, if anything: a digest of restrictions, or the tools that make the call.
        own = tuple(f"{label}{end}" for label in self._own for end in ("#", " "))
        is_own = f"{request.principal} ".startswith(own)
        is_plain = " " not in request.principal  # or else it names the tools that make the call
        is_permitted = is_plain and self.shows_action(request.tool_id, request.action)
        return self._is_of_tenant(request.tenant) and (is_own or self.calls is None or is_permitted)

    def shows_run(self, binding: Mapping[str, Any]) -> bool:
        """Whether a run is shown, by what was stored when it began.

        It may be about any tool, and the messages to its model name many: of others, only a client that may call all
        tools sees it. Runs belong to the tenant of their conversation; those made in a terminal to none.
        """
        tenant, separator, _ = str(binding.get("conversation_id", "")).partition("/")
        if not self._is_of_tenant(tenant if separator else ""):
            return False
        return self.calls is None or binding.get("principal") in self._own

    def shows_conversation(self, turns: Sequence[Turn]) -> bool:
        """Whether a conversation of the tenant is shown and may be continued; the questions of others name any tool."""
        return self.calls is None or all(turn.principal in self._own for turn in turns)

    def _is_of_tenant(self, tenant: str | None) -> bool:
        return self.tenant in (None, tenant or "")
