"""The actions of tools in the forms that model APIs and MCP take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ferrule.describe.model_schema import for_models
from ferrule.describe.readable import schema_of
from ferrule.describe.sentences import within
from ferrule.spec import Effects, Tool, ToolCapability, ToolSpec

_LONGEST_FOR_OPENAI = 1024
"""Characters; OpenAI refuses a whole request for one longer description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAction:
    """An action under the name models call it by."""

    name: str
    spec: ToolSpec
    capability: ToolCapability

    @property
    def description(self) -> str:
        return self.capability.description or self.spec.description


def actions_by_name(tools: Iterable[Tool]) -> list[NamedAction]:
    """The actions of tools, by name: the same order every time, so that a model's prompt cache holds.

    Of several under one name the first is taken.
    """
    found: dict[str, NamedAction] = {}
    for tool in tools:
        for capability in tool.spec.capabilities:
            name = tool.spec.model_name(capability)
            found.setdefault(name, NamedAction(name=name, spec=tool.spec, capability=capability))
    return [found[name] for name in sorted(found)]


def openai_schema(action: NamedAction) -> dict[str, Any]:
    function = {
        "name": action.name,
        "description": within(action.description, _LONGEST_FOR_OPENAI),
        "parameters": for_models(schema_of(action.capability)),
    }
    return {"type": "function", "function": function}


def anthropic_schema(action: NamedAction) -> dict[str, Any]:
    return {
        "name": action.name,
        "description": action.description,
        "input_schema": for_models(schema_of(action.capability)),
    }


def mcp_schema(action: NamedAction) -> dict[str, Any]:
    said: dict[str, Any] = {
        "name": action.name,
        "description": action.description,
        "inputSchema": for_models(schema_of(action.capability)),
    }
    if len(action.spec.capabilities) == 1 and action.spec.name != action.spec.tool_id:
        said["title"] = action.spec.name
    output = action.capability.output
    if output is not None and output.get("type") == "object":
        said["outputSchema"] = output
    hints = _hints(action.spec.effects_of(action.capability))
    if hints:
        said["annotations"] = hints
    return said


def _hints(effects: Effects) -> dict[str, bool]:
    """Only what the tool promises: MCP takes silence for the worst."""
    promises = {
        "readOnlyHint": effects.read_only,
        "destructiveHint": effects.destructive,
        "idempotentHint": effects.idempotent,
    }
    return {hint: True for hint, holds in promises.items() if holds}
