"""What a run has lived through, in the words a model is told it: steps, observations, failures, patterns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ferrule.call import ToolExecutionResult
from ferrule.content import copy_json
from ferrule.memory.parameters import LOCATORS
from ferrule.memory.run_memory import RunMemory
from ferrule.spec import ToolSpec

OBSERVATIONS_KEPT: Final = 10


@dataclass(slots=True, kw_only=True)
class ExecutionContext:
    """The memory of one run as plain values. `record` keeps it up to date; whoever likes may do that by hand."""

    task_description: str
    original_plan: list[dict[str, Any]] = field(default_factory=list)
    executed_steps: list[dict[str, Any]] = field(default_factory=list)
    current_observations: list[str] = field(default_factory=list)
    """What successful steps gave, the last ten."""
    failed_attempts: list[dict[str, Any]] = field(default_factory=list)
    learned_patterns: dict[str, Any] = field(default_factory=dict)
    """By tool: `failed_selectors`, `failed_actions`, `error_patterns`, `suggested_adjustments`; and `tool_switches`."""
    available_tools: list[ToolSpec] = field(default_factory=list)
    memory: RunMemory | None = field(default=None, repr=False, compare=False)
    """What keeps the run from repeating itself; made when it is first needed."""

    def record(
        self, tool_id: str, action: str | None, parameters: Mapping[str, Any], result: ToolExecutionResult
    ) -> None:
        """Add a step and, where it failed, what is to be learned from it."""
        moment = datetime.now(UTC).isoformat()
        step = {
            "step_id": len(self.executed_steps),
            "tool_id": tool_id,
            "action": action,
            "parameters": dict(parameters),
            "result": result.text,
            "success": result.is_success,
            "timestamp": moment,
        }
        self.executed_steps.append(step)
        if result.is_success:
            self._observe(result.text)
        else:
            self._fail(step, result, moment)

    def failures_of(self, tool_id: str) -> int:
        return sum(attempt["tool_id"] == tool_id for attempt in self.failed_attempts)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; tools by their ids."""
        return {
            "task_description": self.task_description,
            "original_plan": copy_json(self.original_plan),
            "executed_steps": copy_json(self.executed_steps),
            "current_observations": list(self.current_observations),
            "failed_attempts": copy_json(self.failed_attempts),
            "learned_patterns": copy_json(self.learned_patterns),
            "available_tools": [spec.tool_id for spec in self.available_tools],
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any], tools: Mapping[str, ToolSpec]) -> ExecutionContext:
        """A context as `to_dict` wrote it; tools that are gone are left out."""
        return cls(
            task_description=str(said["task_description"]),
            original_plan=copy_json(said.get("original_plan", [])),
            executed_steps=copy_json(said.get("executed_steps", [])),
            current_observations=list(said.get("current_observations", [])),
            failed_attempts=copy_json(said.get("failed_attempts", [])),
            learned_patterns=copy_json(said.get("learned_patterns", {})),
            available_tools=[tools[name] for name in said.get("available_tools", []) if name in tools],
        )

    def _observe(self, text: str) -> None:
        if text:
            self.current_observations.append(text)
            del self.current_observations[:-OBSERVATIONS_KEPT]

    def _fail(self, step: Mapping[str, Any], result: ToolExecutionResult, moment: str) -> None:
        error = result.error or result.error_type or "failed"
        self.failed_attempts.append(
            {
                "tool_id": step["tool_id"],
                "action": step["action"],
                "parameters": step["parameters"],
                "error": error,
                "error_type": result.error_type,
                "timestamp": moment,
            }
        )
        patterns = self.patterns_of(step["tool_id"])
        for name in LOCATORS:
            value = step["parameters"].get(name)
            if isinstance(value, str) and value not in patterns["failed_selectors"] and _missed(error):
                patterns["failed_selectors"].append(value)
        for key, value in (("failed_actions", step["action"]), ("error_patterns", error)):
            if value and value not in patterns[key]:
                patterns[key].append(value)

    def patterns_of(self, tool_id: str) -> dict[str, Any]:
        """What is known about a tool's failures; made when it is first asked for."""
        patterns: dict[str, Any] = self.learned_patterns.setdefault(tool_id, {})
        for key in ("failed_selectors", "failed_actions", "error_patterns"):
            patterns.setdefault(key, [])
        return patterns


def _missed(error: str) -> bool:
    said = error.casefold()
    return any(
        words in said for words in ("not found", "no element", "does not exist", "waiting for", "找不到", "未找到")
    )
