"""What could be tried instead of a call that failed: what cured it before, other arguments, other tools."""

from __future__ import annotations

from typing import Any, Final

from ferrule.content import as_text
from ferrule.memory.adjustments import suggest_adjustments
from ferrule.memory.alternatives import alternative_tools
from ferrule.memory.context import ExecutionContext
from ferrule.memory.failure import Failure
from ferrule.memory.patterns import FailureBook
from ferrule.registry import ToolRegistry
from ferrule.spec import Tool, ToolCapability

SUGGESTIONS: Final = 3
OTHER_TOOLS: Final = 3
SIMILAR: Final = 0.3
"""A tool that fits less is not worth the model's while."""
OTHERS_KEPT: Final = 100


class Counsel:
    """Advises one run, by what it has seen and what earlier runs have learned."""

    def __init__(
        self, context: ExecutionContext, registry: ToolRegistry, book: FailureBook | None, *, max_retries: int = 3
    ) -> None:
        self._context, self._registry, self._book = context, registry, book
        self._max_retries = max_retries
        self._given: dict[Any, list[str]] = {}
        self._others: dict[Any, list[str]] = {}

    def __call__(self, tool: Tool, capability: ToolCapability, failure: Failure) -> list[str]:
        switch = self._context.failures_of(tool.id) + 1 >= self._max_retries
        observed = tuple(self._context.current_observations[-1:])
        key = (failure.identity.key, failure.error, switch, observed, self._registry.version)
        given = self._given.get(key)
        if given is None:
            given = [*self._cures(tool, failure), *self._adjustments(capability, failure)]
            if switch:
                given += self._known_others(tool, capability, failure)
            self._given = {key: given}  # the last one is the one a stubborn model asks for again
        return given

    def _cures(self, tool: Tool, failure: Failure) -> list[str]:
        cure = None if self._book is None else self._book.cure_of(tool, failure)
        return [] if cure is None else [f"{as_text(cure)} (it worked in an earlier run)"]

    def _adjustments(self, capability: ToolCapability, failure: Failure) -> list[str]:
        avoid = self._context.learned_patterns.get(failure.tool_id, {}).get("failed_selectors", ())
        found = suggest_adjustments(
            capability, failure.parameters, failure.error, self._context.current_observations, avoid=avoid
        )
        return [
            f"{as_text({name: one.parameters.get(name) for name in one.changed})} ({one.reason.rstrip('.')})"
            for one in found[:SUGGESTIONS]
        ]

    def _known_others(self, tool: Tool, capability: ToolCapability, failure: Failure) -> list[str]:
        """Looked for among all tools, so only once for all calls that differ in nothing but their values."""
        failed = frozenset(str(attempt["tool_id"]) for attempt in self._context.failed_attempts)
        kinds = frozenset((name, type(value)) for name, value in failure.parameters.items())
        key = (failure.identity.key[:4], kinds, failed, self._registry.version)
        if key not in self._others:
            if len(self._others) >= OTHERS_KEPT:
                self._others.clear()
            self._others[key] = self._other_tools(tool, capability, failure)
        return self._others[key]

    def _other_tools(self, tool: Tool, capability: ToolCapability, failure: Failure) -> list[str]:
        snapshot = self._registry.snapshot()
        tools = [one.spec for tool_id in snapshot.by_id if (one := snapshot.get(tool_id)) is not None]
        if offered := {spec.tool_id for spec in self._context.available_tools}:
            tools = [spec for spec in tools if spec.tool_id in offered]
        failed = {str(attempt["tool_id"]) for attempt in self._context.failed_attempts} | {tool.id}
        found = alternative_tools(
            tool,
            capability,
            failure.parameters,
            tools,
            failed=failed,
            task=self._context.task_description,
            most=OTHER_TOOLS,
        )
        found = [one for one in found if one.score >= SIMILAR]
        if found:
            switches = self._context.learned_patterns.setdefault("tool_switches", [])
            switch = {"from_tool": tool.id, "to_tools": [one.spec.tool_id for one in found]}
            if switch not in [{k: s.get(k) for k in switch} for s in switches]:
                switches.append({**switch, "reason": f"{tool.id} failed {self._max_retries} times"})
        return [f"the tool {one.spec.tool_id!r} ({one.reason.rstrip('.')})" for one in found]
