"""The steps of a call that ask the policy about the call, and that find, request and use an approval."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ferrule.catalog.registry import RegistrySnapshot
from ferrule.core.call import CallOrigins, ToolExecutionContext
from ferrule.core.names import did_you_mean
from ferrule.core.permission import LOCAL_USER, CallPolicy, Decision, Principal
from ferrule.engine.call_state import PreparedAction, RunningCall, make_record
from ferrule.errors import NeedsApproval, PermissionDenied, SetupError, StoreError, ToolNotFound, error_text
from ferrule.policy.approvals import Approvals, CallBinding, explain_mismatch
from ferrule.policy.policy import CombinedPolicy, Permissions, Policy
from ferrule.store import ToolKnowledgeStore

T = TypeVar("T")

logger = logging.getLogger("ferrule.engine")

_MAX_CACHED_PERMISSIONS = 1_000
"""Principals."""


class Authorizer:
    """Decides whether calls may run."""

    def __init__(self, policy: CallPolicy, approvals: Approvals, store: ToolKnowledgeStore) -> None:
        self._policy, self._approvals, self._redaction = policy, approvals, store.redaction
        self._permissions: dict[Principal, Permissions] = {}
        """Under the engine's policy; kept, because it takes some time to ask about every tool."""

    def permissions(self, principal: Principal, policy: CallPolicy | None) -> Permissions:
        """Return what a principal may do, under its own policy or else the engine's."""
        if policy is not None and policy is not self._policy:
            return Permissions(policy, principal)
        permissions = self._permissions.get(principal)
        if permissions is None:
            if len(self._permissions) >= _MAX_CACHED_PERMISSIONS:
                self._permissions.clear()
            permissions = self._permissions[principal] = Permissions(self._policy, principal)
        return permissions

    def context_of_nested_call(self, context: ToolExecutionContext, parent: RunningCall | None) -> ToolExecutionContext:
        """Return the context of a call that a tool makes by any way: the call may do no more than the tool's caller.

        A mark of approval that did not come from the engine does not count. The call belongs to the same run.
        """
        if parent is not None and context.origins is not parent.context.origins:
            context = replace(context, origins=parent.context.origins)
        if parent is None or (context.principal is parent.principal and context.policy is parent.policy):
            return replace(context) if context.is_approved else context
        if parent.principal is LOCAL_USER and parent.policy is None:
            return replace(context)
        policy = parent.policy
        if context.policy is not None and context.policy is not parent.policy:
            policy = CombinedPolicy(context.policy, self._policy if parent.policy is None else parent.policy)
        return replace(context, principal=context.principal.nested_in(parent.principal), policy=policy)

    def check_policy(self, call: RunningCall, action: PreparedAction) -> Decision:
        """Return what the policy says about calls of an action by this caller. Raises PermissionDenied if none is
        allowed.

        For callers from outside such an action does not exist: by the error they could learn its name.

        The last decision is kept, because most calls of an action have the same caller; but not that of a policy of
        the user's own, which may decide otherwise at any time.
        """
        principal, policy = call.principal, self._policy if call.policy is None else call.policy
        last = action.last_decision
        if last is None or last[0] is not principal or last[1] is not policy or type(policy) is not Policy:
            decision = Permissions(policy, principal).decide(action.tool, action.capability)
            if type(policy) is not Policy:
                decision = replace(decision, depends_on_arguments=True)
            last = action.last_decision = (principal, policy, decision)
        call.decision = last[2]
        if last[2].verdict == "deny":
            if not _is_external(principal):
                raise PermissionDenied(last[2].reason)
            # The record of the call, which its caller may read, does not differ from one of an unknown tool.
            tool_name, call.prepared, call.decision = call.tool_name, None, None
            logger.info(
                "principal=<%s>, tool=<%s> | hidden from the caller: %s", principal.label, tool_name, last[2].reason
            )
            raise ToolNotFound(f"There is no tool {tool_name!r} here.")
        return last[2]

    def decide_with_arguments(
        self, call: RunningCall, action: PreparedAction, arguments: Mapping[str, Any]
    ) -> Decision:
        """Return what the policy says about this very call. Raises PermissionDenied if the call is not allowed."""
        permissions, origins = self.permissions(call.principal, call.policy), _origins_of(call, action)
        if origins is not None:
            arguments = origins.mark(action.tool, action.capability, arguments)
        decision = permissions.decide(action.tool, action.capability, arguments)
        if origins is not None:
            decision = origins.decide(decision, action.tool, action.capability, arguments)
        call.decision = decision
        if decision.verdict == "deny":
            raise PermissionDenied(decision.reason)
        return decision

    def remove_hidden_tool_names(
        self, call: RunningCall, error: ToolNotFound, snapshot: RegistrySnapshot
    ) -> ToolNotFound:
        """Return the error without names of tools that the caller may not see."""
        permissions = self.permissions(call.principal, call.policy)
        actions = [(tool, capability) for tool in snapshot for capability in tool.spec.capabilities]
        try:
            permitted = [entry for entry in actions if permissions.may_call(*entry)]
        except Exception:  # a policy of the user's own
            logger.exception("tool=<%s> | the policy failed", call.tool_name)
            permitted = []
        named = [entry for entry in actions if call.tool_name in (entry[0].id, entry[0].name)]
        if len(permitted) == len(actions) or (named and all(entry in permitted for entry in named)):
            return error
        names = [tool.spec.model_name(capability) for tool, capability in permitted]
        return ToolNotFound(f"There is no tool {call.tool_name!r} here.{did_you_mean(call.tool_name, names)}")

    async def find_approval(
        self, call: RunningCall, action: PreparedAction, reason: str, *, is_required: bool, **details: Any
    ) -> Mapping[str, Any] | None:
        """Find the approval that covers a call; returns the arguments that the person wants instead, if any.

        Raises NeedsApproval, with the id of a stored request, while nobody has approved the call, and
        PermissionDenied when somebody has refused it.
        """
        binding = _make_binding(call, action)
        request = await _await_store_reply(call, self._approvals.find_decision(binding, call.context.approval_id))
        is_named = request is not None and request.approval_id == call.context.approval_id
        if not is_required and not is_named:
            return None
        if request is not None and request.state == "refused" and not is_named and _is_external(call.principal):
            request = None  # a client's calls are no run: what was refused once may be asked for again
        if request is None:
            raise await self._request_approval(call, action, binding, reason, details)
        if request.state == "refused":
            text = request.refusal
            if not is_named:
                text = "The user has refused the same call before in this run and was not asked again."
                text = f"{text} {request.decision_reason}".strip()
                text += " Do not repeat it: find another way, or say what is missing."
            raise PermissionDenied(text, refused=True)
        call.approval = (request, binding)
        if request.edited_arguments is not None:
            call.add_metadata(arguments_edited=True)
        return self._approvals.edit_arguments(request, call.params)

    async def use_approval(self, call: RunningCall, action: PreparedAction) -> None:
        """Use up the approval of a call, immediately before the call runs, and record that it starts."""
        assert call.approval is not None, "an approval was found before"
        request, binding = call.approval
        record = call.record = make_record(call)
        record.metadata = {**record.metadata, "approval_id": request.approval_id}
        use = self._approvals.use(request, binding, record, secret_names=action.capability.secret_names)
        if not await _await_store_reply(call, use):
            current = await self._approvals.get(request.approval_id)
            if current.state == "used":  # by an identical call; this one was not approved yet
                raise await self._store_request(call, binding, request.arguments, request.reason)
            refused = {"refused": True} if current.state == "refused" else {}
            raise PermissionDenied(f"{explain_mismatch(current, binding)} The call was not executed.", **refused)
        call.add_metadata(approval_id=request.approval_id)

    async def _request_approval(
        self, call: RunningCall, action: PreparedAction, binding: CallBinding, reason: str, details: Mapping[str, Any]
    ) -> NeedsApproval:
        """Store a request; returns the error that ends the call, with the details of the tool that asked for it."""
        if call.context.approval_id is not None:
            try:
                unusable = explain_mismatch(await self._approvals.get(call.context.approval_id), binding)
            except SetupError as error:
                unusable = str(error)
            reason = f"{unusable} {reason}"
        secrets = self._redaction.find_secrets(call.params, action.capability.secret_names)
        arguments = self._redaction.redact_params(call.params, action.capability.secret_names, secrets)
        reason = self._redaction.redact_text(reason, secrets)
        hidden = [
            name
            for name in arguments
            if name not in action.capability.secret_names and arguments[name] != call.params[name]
        ]
        if hidden:  # a model could hide anything in what looks like a secret
            reason += (
                f" Parts of {', '.join(hidden)} look like a secret and are not shown: find out what they are first."
            )
        return await self._store_request(call, binding, arguments, reason, **details)

    async def _store_request(
        self, call: RunningCall, binding: CallBinding, arguments: Mapping[str, Any], reason: str, **details: Any
    ) -> NeedsApproval:
        call_id, action = call.context.tool_call_id or "", call.prepared
        origins = None
        if action is not None and (texts := _origins_of(call, action)) is not None:
            origins = texts.describe(action.tool, action.capability, call.params)
        requesting = self._approvals.request(
            binding, call_id=call_id, arguments=arguments, reason=reason, origins=origins
        )
        request = await _await_store_reply(call, requesting)
        with_id = "" if binding.run_id else f" with the approval_id {request.approval_id!r}"
        repeat = f" Then make the same call again{with_id}." if _is_external(call.principal) else ""
        return NeedsApproval(
            f"{reason} It was not executed: a person must approve it first, for example with "
            f"`ferrule approvals approve {request.approval_id}`.{repeat}",
            **{**details, "approval_id": request.approval_id},
        )


def _origins_of(call: RunningCall, action: PreparedAction) -> CallOrigins | None:
    """Return what decides about the targets of a call that a model chose, once its run has seen untrusted text."""
    origins = call.context.origins
    if origins is None or not origins.has_untrusted or call.principal.kind != "agent":
        return None
    return None if call.principal.owns(action.tool) else origins


def _is_external(principal: Principal) -> bool:
    return principal.kind in ("client", "token")


def _make_binding(call: RunningCall, action: PreparedAction) -> CallBinding:
    context, callers, parent = call.context, [], call.parent
    while parent is not None:
        callers.append(parent.tool_name)
        parent = parent.parent
    run_id = context.conversation_id or context.workflow_id
    return CallBinding.of_call(call.principal, run_id, action.tool, action.capability, call.params, callers)


async def _await_store_reply(call: RunningCall, reply: Awaitable[T]) -> T:
    try:
        return await reply
    except StoreError as error:  # without the store nobody can have approved the call
        raise PermissionDenied(
            f"Tool {call.tool_name!r} needs a person's approval, and approvals cannot be stored: {error_text(error)}."
        ) from error
