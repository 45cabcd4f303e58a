"""Calls that need a person's approval, with a person who approves them."""

from typing import Any

from ferrule import ToolExecutionContext, ToolExecutionResult, UnifiedToolLibrary


async def execute_approved(
    library: UnifiedToolLibrary, tool_id: str, params: dict[str, Any], context: ToolExecutionContext | None = None
) -> ToolExecutionResult:
    """Make a call, approve the request that it leads to, and repeat it."""
    context = context or ToolExecutionContext()
    asked = await library.execute_tool(tool_id, None, params, context=context)
    assert asked.error_type == "approval_required", asked
    await library.engine.approvals.record_decision(asked.metadata["approval_id"], True)
    context.approval_id = asked.metadata["approval_id"]
    return await library.execute_tool(tool_id, None, params, context=context)
