"""One agent's private handle on the engine: its own calls, and a summary of them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias
from uuid import uuid4

from ferrule.core.call import DEFAULT_TIMEOUT, Caller, CallMemory, Progress, ToolExecutionContext, ToolExecutionResult
from ferrule.core.content import copy_json
from ferrule.core.model import Model
from ferrule.core.permission import LOCAL_USER, CallPolicy, Principal
from ferrule.engine import ToolEngine
from ferrule.errors import APPROVAL_REQUIRED
from ferrule.store import ToolCallSummary
from ferrule.store.record import percent

logger = logging.getLogger("ferrule.library")

ResultCallback: TypeAlias = Callable[[ToolExecutionResult], Awaitable[None] | None]


class ToolSubAgent:
    """Calls tools for one agent and keeps the details of its calls."""

    def __init__(
        self,
        agent_id: str,
        tool_engine: ToolEngine,
        parent_agent_id: str | None = None,
        on_result_callback: ResultCallback | None = None,
        *,
        conversation_id: str | None = None,
        tools: Collection[str] | None = None,
        caller: Caller | None = None,
        memory: CallMemory | None = None,
        principal: Principal = LOCAL_USER,
        policy: CallPolicy | None = None,
        model: Model | None = None,
        priority: int = 0,
    ) -> None:
        """`caller` makes its calls: a hub or a library; the engine itself if None. `memory` is asked before each call.

        `tools` restricts it, and the tools that it calls, to these. `policy` decides instead of the engine's.
        `model` combines the answers where several tools do one job. Its calls have the `priority`.
        """
        self.agent_id = agent_id
        self.parent_agent_id = parent_agent_id
        self.conversation_id = conversation_id or f"{agent_id}-{uuid4().hex[:12]}"
        self.principal = principal if tools is None else principal.restricted_to(tools)
        self.call_details: list[dict[str, Any]] = []
        """The calls in their order, without results and secrets."""
        self._engine = tool_engine
        self._caller: Caller = caller or tool_engine
        self.memory, self._policy, self._model, self._priority = memory, policy, model, priority
        self._on_result = on_result_callback
        self._variables: dict[str, Any] = {}

    async def execute(
        self,
        tool_name: str,
        params: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        *,
        action: str | None = None,
        tool_call_id: str | None = None,
        approval_id: str | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ToolExecutionResult:
        context = self._make_context(timeout)
        context.tool_call_id, context.approval_id = tool_call_id, approval_id
        result = await self._caller.execute(tool_name, params, context, action=action, on_progress=on_progress)
        await self._add_details(action, {} if params is None else params, result)
        return result

    async def execute_batch(
        self, calls: Iterable[tuple[str, Mapping[str, Any]]], timeout: float | None = None
    ) -> list[ToolExecutionResult]:
        """Make concurrent calls; results and details come in the order of the calls."""
        batch, context = list(calls), self._make_context(timeout)
        results = await self._engine.execute_batch(batch, context)
        for (_, params), result in zip(batch, results, strict=True):
            await self._add_details(None, params, result)
        return results

    def redact_arguments(self, tool_name: str, params: Any, action: str | None = None) -> dict[str, Any]:
        """Return the arguments of a call that has no result yet, without secrets."""
        return self._engine.redact_arguments(tool_name, params, action)

    def get_execution_summary(self) -> dict[str, Any]:
        """Return everything this agent called, with details."""
        agents = {"agent_id": self.agent_id, "parent_agent_id": self.parent_agent_id}
        return {**agents, **asdict(self._summarize_calls()), "call_details": copy_json(self.call_details)}

    def get_brief_summary(self) -> dict[str, Any]:
        """Return an overview: how many calls, of which tools, and whether any failed."""
        return self._summarize_calls().to_brief()

    def _make_context(self, timeout: float | None) -> ToolExecutionContext:
        return ToolExecutionContext.for_conversation(
            self.agent_id,
            self.conversation_id,
            timeout=DEFAULT_TIMEOUT if timeout is None else timeout,
            variables=self._variables,
            principal=self.principal,
            memory=self.memory,
            policy=self._policy,
            model=self._model,
            priority=self._priority,
        )

    async def _add_details(self, action: str | None, params: Any, result: ToolExecutionResult) -> None:
        redact_text = self._engine.store.redaction.redact_text
        arguments = result.arguments
        if arguments is None:  # several candidates have answered
            arguments = self._engine.redact_arguments(result.tool_name, params, action)
        self.call_details.append(
            {
                "tool_name": result.tool_name,
                "params": arguments,
                "is_success": result.is_success,
                "error": None if result.error is None else redact_text(result.error),
                "error_type": result.error_type,
                "execution_time": result.execution_time,
                "executed_at": result.executed_at.isoformat(),
            }
        )
        if self._on_result is None:
            return
        try:
            awaitable = self._on_result(result)
            if inspect.isawaitable(awaitable):
                await awaitable
        except Exception:
            logger.exception("agent=<%s>, tool=<%s> | result callback failed", self.agent_id, result.tool_name)

    def _summarize_calls(self) -> ToolCallSummary:
        usage: dict[str, int] = {}
        calls = [call for call in self.call_details if call["error_type"] != APPROVAL_REQUIRED]
        for call in calls:
            usage[call["tool_name"]] = usage.get(call["tool_name"], 0) + 1
        good = sum(call["is_success"] for call in calls)
        return ToolCallSummary(
            conversation_id=self.conversation_id,
            total_calls=len(calls),
            successful_calls=good,
            failed_calls=len(calls) - good,
            success_rate=percent(good, len(calls)),
            tool_usage=usage,
        )
