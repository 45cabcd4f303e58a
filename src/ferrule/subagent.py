"""One agent's private handle on the engine: its own calls, their history and a summary of them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

from ferrule.call import DEFAULT_TIMEOUT, CallMemory, CallPolicy, ToolExecutionContext, ToolExecutionResult
from ferrule.engine import ToolEngine
from ferrule.store import ToolCallSummary
from ferrule.store.record import percent

logger = logging.getLogger("ferrule.subagent")

ResultCallback: TypeAlias = Callable[[ToolExecutionResult], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgentCall:
    """One call a sub-agent made."""

    tool_name: str
    params: Mapping[str, Any]
    """As recorded: secrets are blanked."""
    error: str | None
    """Likewise."""
    result: ToolExecutionResult


class Door(Protocol):
    """What calls go through: the engine, or something before it that decides more."""

    async def execute(
        self,
        name: str,
        params: Mapping[str, Any] | None,
        context: ToolExecutionContext | None,
        /,
        *,
        action: str | None = None,
    ) -> ToolExecutionResult: ...


class ToolSubAgent:
    """Calls tools for one agent and remembers what came of it."""

    def __init__(
        self,
        agent_id: str,
        tool_engine: ToolEngine,
        parent_agent_id: str | None = None,
        on_result_callback: ResultCallback | None = None,
        *,
        conversation_id: str | None = None,
        tools: Collection[str] | None = None,
        door: Door | None = None,
        memory: CallMemory | None = None,
        policy: CallPolicy | None = None,
    ) -> None:
        """`door` is what its calls go through, if not the engine itself: a hub, say. `memory` is asked before each.

        `policy` is handed on to tools in which a model says what is called.
        """
        self.agent_id = agent_id
        self.parent_agent_id = parent_agent_id
        self.conversation_id = conversation_id or f"{agent_id}-{uuid4().hex[:12]}"
        self.tools = None if tools is None else frozenset(tools)
        """The only tools it may call; None = all."""
        self.history: list[SubAgentCall] = []
        self._engine = tool_engine
        self._door: Door = door or tool_engine
        self.memory, self._policy = memory, policy
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
        approved: bool = False,
    ) -> ToolExecutionResult:
        context = self._context(timeout)
        context.tool_call_id, context.approved = tool_call_id, approved
        if self._may_call(tool_name):
            result = await self._door.execute(tool_name, params, context, action=action)
        else:
            result = self._refuse(tool_name, params, context, action)
        await self._remember(tool_name, action, params or {}, result)
        return result

    async def execute_batch(
        self, calls: Iterable[tuple[str, Mapping[str, Any]]], timeout: float | None = None
    ) -> list[ToolExecutionResult]:
        """Calls at once; results and history in the order of the calls."""
        wanted, context = list(calls), self._context(timeout)
        done = iter(await self._engine.execute_batch([c for c in wanted if self._may_call(c[0])], context))
        results = []
        for name, params in wanted:
            result = next(done) if self._may_call(name) else self._refuse(name, params, context, None)
            await self._remember(name, None, params, result)
            results.append(result)
        return results

    def shown_params(self, tool_name: str, params: Any, action: str | None = None) -> dict[str, Any]:
        """The arguments of a call as they may be shown and recorded: without secrets."""
        return self._engine.shown_params(tool_name, params, action)

    def get_execution_summary(self) -> dict[str, Any]:
        """Everything this agent called, with details."""
        summary = self._summary()
        return {
            "agent_id": self.agent_id,
            "parent_agent_id": self.parent_agent_id,
            "conversation_id": self.conversation_id,
            "total_calls": summary.total_calls,
            "successful_calls": summary.successful_calls,
            "failed_calls": summary.failed_calls,
            "success_rate": summary.success_rate,
            "tool_usage": summary.tool_usage,
            "call_details": [
                {
                    "tool_name": call.tool_name,
                    "params": dict(call.params),
                    "is_success": call.result.is_success,
                    "error": call.error,
                    "error_type": call.result.error_type,
                    "execution_time": call.result.execution_time,
                    "executed_at": call.result.executed_at.isoformat(),
                }
                for call in self.history
            ],
        }

    def get_brief_summary(self) -> dict[str, Any]:
        """What a page shows: how many calls, of which tools, and whether any failed."""
        return self._summary().to_brief()

    def _context(self, timeout: float | None) -> ToolExecutionContext:
        return ToolExecutionContext.for_conversation(
            self.agent_id,
            self.conversation_id,
            timeout=DEFAULT_TIMEOUT if timeout is None else timeout,
            variables=self._variables,
            allowed_tools=self.tools,
            memory=self.memory,
            policy=self._policy,
        )

    async def _remember(self, tool_name: str, action: str | None, params: Any, result: ToolExecutionResult) -> None:
        shown = self._engine.shown_params(tool_name, params, action)
        error = None if result.error is None else self._engine.store.redaction.clean_text(result.error)
        self.history.append(SubAgentCall(tool_name=tool_name, params=shown, error=error, result=result))
        if self._on_result is None:
            return
        try:
            told = self._on_result(result)
            if inspect.isawaitable(told):
                await told
        except Exception:
            logger.exception("agent=<%s>, tool=<%s> | result callback failed", self.agent_id, tool_name)

    def _may_call(self, tool_name: str) -> bool:
        """By its id, or by any other name it is known by."""
        return self.tools is None or self._engine.registry.is_one_of(tool_name, self.tools)

    def _refuse(
        self, tool_name: str, params: Any, context: ToolExecutionContext, action: str | None
    ) -> ToolExecutionResult:
        allowed = ", ".join(sorted(self.tools or ())) or "none"
        message = f"Tool {tool_name!r} is not among the tools agent {self.agent_id!r} may use: {allowed}."
        return self._engine.refuse(tool_name, params, context, message, action=action)

    def _summary(self) -> ToolCallSummary:
        usage: dict[str, int] = {}
        for call in self.history:
            usage[call.tool_name] = usage.get(call.tool_name, 0) + 1
        good = sum(call.result.is_success for call in self.history)
        return ToolCallSummary(
            conversation_id=self.conversation_id,
            total_calls=len(self.history),
            successful_calls=good,
            failed_calls=len(self.history) - good,
            success_rate=percent(good, len(self.history)),
            tool_usage=usage,
        )
