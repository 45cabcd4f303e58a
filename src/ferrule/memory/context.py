"""What a run has experienced, as plain values for prompts: steps, observations, failures, patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, SupportsIndex

from ferrule.core.call import ToolExecutionResult
from ferrule.core.content import as_text, copy_json
from ferrule.core.spec import ToolSpec
from ferrule.memory.call_identity import LOCATORS
from ferrule.memory.run_memory import RunMemory

MAX_OBSERVATIONS: Final = 10
_NOT_FOUND: Final = ("not found", "no element", "does not exist", "waiting for", "找不到", "未找到")


class ObservationText(str):
    """An observation as text, together with its value."""

    value: Any

    @classmethod
    def of(cls, value: Any) -> ObservationText:
        text = cls(as_text(value))
        text.value = value
        return text


class Observations(list[Any]):
    """Results of tools, as texts or as they are. A slice has them as texts, because prompts join slices of them; a
    list made of such a slice has them as they were.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__(value.value if isinstance(value, ObservationText) else value for value in values)

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        values = super().__getitem__(index)
        return [ObservationText.of(value) for value in values] if isinstance(index, slice) else values


@dataclass(slots=True)
class ExecutionContext:
    """The memory of one run as plain values. `record` updates it; callers may also change it directly."""

    task_description: str
    original_plan: list[dict[str, Any]] = field(default_factory=list)
    executed_steps: list[dict[str, Any]] = field(default_factory=list)
    current_observations: list[Any] = field(default_factory=list)
    """The results of the last ten successful steps, as text; callers may also add a result's `output`. Always
    `Observations`, whatever list is assigned.
    """
    failed_attempts: list[dict[str, Any]] = field(default_factory=list)
    learned_patterns: dict[str, Any] = field(default_factory=dict)
    """By tool: `failed_selectors`, `failed_actions`, `error_patterns`, `suggested_adjustments`; and `tool_switches`."""
    available_tools: list[ToolSpec] = field(default_factory=list)
    _: KW_ONLY
    memory: RunMemory | None = field(default=None, repr=False, compare=False)
    """Prevents repeated failures; created when it is first needed."""
    final_answer: str = ""
    correction: str = field(default="", repr=False, compare=False)
    """What was wrong with the last decision of a model that decides by prompt."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, Observations(value) if name == "current_observations" else value)

    def record(
        self, tool_id: str, action: str | None, parameters: Mapping[str, Any], result: ToolExecutionResult
    ) -> None:
        """Add a step and, if it failed, the patterns of its failure."""
        step = {
            "step_id": len(self.executed_steps),
            "tool_id": tool_id,
            "action": action,
            "parameters": dict(parameters),
            "result": result.text,
            "success": result.is_success,
            "timestamp": datetime.now(UTC).isoformat(),
        }
        self.executed_steps.append(step)
        if not result.is_success:
            failure = {name: step[name] for name in ("tool_id", "action", "parameters", "timestamp")}
            failure |= {"error": result.error or result.error_type or "failed", "error_type": result.error_type}
            self.failed_attempts.append(failure)
            self.learn_from_failure(failure)
        elif result.text:
            self.current_observations.append(result.text)
            del self.current_observations[:-MAX_OBSERVATIONS]

    def count_failures(self, tool_id: str) -> int:
        return sum(attempt["tool_id"] == tool_id for attempt in self.failed_attempts)

    @property
    def observation_texts(self) -> list[str]:
        """Return the observations as models read them."""
        return [as_text(observation) for observation in self.current_observations]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; tools by their ids."""
        return {
            "task_description": self.task_description,
            "original_plan": copy_json(self.original_plan),
            "executed_steps": copy_json(self.executed_steps),
            "current_observations": copy_json(list(self.current_observations)),
            "failed_attempts": copy_json(self.failed_attempts),
            "learned_patterns": copy_json(self.learned_patterns),
            "available_tools": [spec.tool_id for spec in self.available_tools],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tools: Mapping[str, ToolSpec]) -> ExecutionContext:
        """Read the context that `to_dict` wrote; tools that no longer exist are left out."""
        return cls(
            task_description=str(values["task_description"]),
            original_plan=copy_json(values.get("original_plan", [])),
            executed_steps=copy_json(values.get("executed_steps", [])),
            current_observations=list(values.get("current_observations", [])),
            failed_attempts=copy_json(values.get("failed_attempts", [])),
            learned_patterns=copy_json(values.get("learned_patterns", {})),
            available_tools=[tools[name] for name in values.get("available_tools", []) if name in tools],
        )

    def learn_from_failure(self, failure: Mapping[str, Any]) -> None:
        """Add the patterns of a failed attempt: its action, its error, and the selectors that found nothing."""
        patterns, error = self.patterns_of(failure["tool_id"]), str(failure.get("error") or "")
        is_not_found = any(phrase in error.casefold() for phrase in _NOT_FOUND)
        for name in LOCATORS if is_not_found else ():
            value = (failure.get("parameters") or {}).get(name)
            if isinstance(value, str) and value not in patterns["failed_selectors"]:
                patterns["failed_selectors"].append(value)
        for key, value in (("failed_actions", failure.get("action")), ("error_patterns", error)):
            if value and value not in patterns[key]:
                patterns[key].append(value)

    def add_adjustment(
        self, tool_id: str, original: Mapping[str, Any], adjusted: Mapping[str, Any], reason: str
    ) -> None:
        """Note other parameters for a failed call among the patterns of its tool, where prompts show them."""
        entry = {
            "original_params": copy_json(dict(original)),
            "adjusted_params": copy_json(dict(adjusted)),
            "reason": reason,
        }
        entries = self.patterns_of(tool_id).setdefault("suggested_adjustments", [])
        if entry not in entries:
            entries.append(entry)

    def add_switch(self, from_tool: str, to_tools: list[str], reason: str) -> None:
        """Note other tools for what one could not do."""
        switches = self.learned_patterns.setdefault("tool_switches", [])
        if (from_tool, to_tools) not in [(switch.get("from_tool"), switch.get("to_tools")) for switch in switches]:
            switches.append({"from_tool": from_tool, "to_tools": to_tools, "reason": reason})

    def patterns_of(self, tool_id: str) -> dict[str, Any]:
        """Return the patterns of a tool's failures, which are created on first use."""
        patterns: dict[str, Any] = self.learned_patterns.setdefault(tool_id, {})
        for key in ("failed_selectors", "failed_actions", "error_patterns"):
            patterns.setdefault(key, [])
        return patterns
