"""The health of a tool: whether it can be reached, and how its latest calls ended."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ferrule.core.spec import Tool
from ferrule.engine import ToolEngine
from ferrule.errors import CallError

HEALTH_TIMEOUT: Final = 10.0
"""Seconds an MCP server has to answer when its health is checked."""


async def check_health(engine: ToolEngine, tool_id: str) -> dict[str, Any]:
    """Return the health of a tool: whether it responds, its circuit, and the outcome of its latest calls."""
    candidates = engine.registry.candidates(tool_id)
    answers = {tool.source: await _check_reachable(engine, tool) for tool in candidates}
    records = await engine.query_call_records(tool_name=tool_id, limit=20)
    ended = [record for record in records if record.status in ("success", "failed")]
    failed = [record for record in ended if not record.is_success]
    circuits = {tool.source: engine.circuit_state(tool) for tool in candidates}
    callable_now = [
        t for t in candidates if t.spec.enabled and circuits[t.source] != "open" and answers[t.source] is True
    ]
    reason = None
    if not callable_now:
        reasons = [answer for answer in answers.values() if isinstance(answer, str)]
        reason = "its circuit is open: it could not be reached several times in a row"
        reason = next(iter(reasons), reason) if answers else f"there is no tool {tool_id!r}"
    return {
        "tool_id": tool_id,
        "status": "unknown" if not candidates else "healthy" if callable_now else "unavailable",
        "reason": reason,
        "enabled": any(tool.spec.enabled for tool in candidates),
        "circuit": circuits,
        "answers": answers,
        "recent_calls": len(ended),
        "recent_failures": len(failed),
        "last_error": failed[0].error if failed else None,
        "last_called": records[0].created_at.isoformat() if records else None,
    }


async def _check_reachable(engine: ToolEngine, tool: Tool) -> bool | str:
    """Return True for a tool that can be reached, as far as that can be checked; else the reason why it cannot."""
    if not tool.spec.enabled:
        return "disabled"
    if (reason := engine.registry.snapshot().why_unavailable(tool)) is not None:
        return f"unavailable: {reason}"
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT):
            await engine.ping(tool)
    except TimeoutError:
        return f"no answer within {HEALTH_TIMEOUT:g} s"
    except CallError as error:
        return str(error)
    return True
