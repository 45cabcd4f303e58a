"""Asks the user of an MCP client to approve a call, where a rule says so.

The request is in the inbox like any other: who answers first decides, here or there. The answer counts for exactly
this call. The holder of a token is asked only if the token may approve calls: a client must not approve what it wants
itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from ferrule.core.call import ToolExecutionResult
from ferrule.core.content import as_text, replace_surrogates
from ferrule.errors import APPROVAL_REQUIRED, SetupError
from ferrule.policy.approvals import Approvals
from ferrule.server.mcp.calls import ClientCall

POLL_INTERVAL: Final = 1.0
"""Seconds between two looks into the inbox while the user is asked."""
MAX_ARGUMENTS_LENGTH: Final = 2_000
_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"allow": {"type": "boolean", "title": "Allow this call", "default": False}},
    "required": ["allow"],
}


class ApprovalQuestions:
    """Turns `approval_required` into a question to the client's user."""

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    async def ask(self, call: ClientCall, result: ToolExecutionResult, name: str) -> str | None:
        """The id of the approval with which the call is to be made again; None to leave the result as it is."""
        approval_id = result.metadata.get("approval_id")
        if result.error_type != APPROVAL_REQUIRED or not approval_id:
            return None
        if not call.request.may_approve or "elicitation" not in call.capabilities:
            return None
        asking = asyncio.ensure_future(self._ask_user(call, str(approval_id), name))
        watching = asyncio.ensure_future(self._wait_for_decision(str(approval_id)))
        try:
            await asyncio.wait({asking, watching}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                is_decided = asking.result()
                return str(approval_id) if is_decided else None
            return str(approval_id)
        finally:
            asking.cancel()
            watching.cancel()

    async def _ask_user(self, call: ClientCall, approval_id: str, name: str) -> bool:
        """Whether the user has decided, by this question; cancelling it leaves the request in the inbox."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import ElicitRequest, ElicitRequestFormParams

        request = await self._approvals.get(approval_id)
        arguments = as_text(request.arguments)
        if len(arguments) > MAX_ARGUMENTS_LENGTH:  # nobody can approve what is not shown: it waits in the inbox
            return False
        action = request.tool_id if request.action == request.tool_id else f"{request.tool_id} ({request.action})"
        through = "" if request.tool_id in name else f", made by {name!r},"
        message = f"Allow the call of {action}{through} with these arguments?\n{request.reason}\nArguments: {arguments}"
        form = ElicitRequestFormParams(message=replace_surrogates(message), requested_schema=_FORM)
        try:
            answer = await call.ask("approval", ElicitRequest(params=form))
        except MCPError:  # the client cannot ask after all
            return False
        if answer.action == "cancel":
            return False
        is_allowed = answer.action == "accept" and (answer.content or {}).get("allow") is True
        with suppress(SetupError):  # somebody else was faster: that decision counts
            await self._approvals.record_decision(approval_id, is_allowed, by=call.request.principal.label)
        return True

    async def _wait_for_decision(self, approval_id: str) -> None:
        while (await self._approvals.get(approval_id)).state == "pending":
            await asyncio.sleep(POLL_INTERVAL)
