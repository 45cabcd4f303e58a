"""Answers that must follow a schema: plans made of a question's steps, and objects made of its values.

Anything else would have to be invented, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ferrule.core.json_schema import allowed_types, list_branches, properties_of, resolve_schema
from ferrule.core.names import similar_names
from ferrule.core.spec import JsonSchema
from ferrule.errors import ModelRefused
from ferrule.models.offline.argument_filling import fill_parameters
from ferrule.models.offline.steps import insert_result, refers_to_result, split_steps
from ferrule.models.offline.tool_choice import ChosenTool, choose_tool
from ferrule.models.offline.tools import OfferedTool, OfferedTools

_ID_NAMES = ("id", "step", "step_id", "number", "index", "order")
_TEXT_NAMES = ("description", "task", "title", "action", "goal", "text", "instruction", "name", "query", "input")
_TOOL_NAMES = ("tool_type", "tool", "tool_name", "tool_id", "function")
_ARGUMENT_NAMES = ("arguments", "parameters", "params", "args", "tool_input", "inputs")
_DEPENDENCY_NAMES = ("dependencies", "depends_on", "dependency", "after", "requires")
_NO_TOOL = "none"


def answer_by_schema(schema: Mapping[str, Any], question: str, tools: OfferedTools, now: datetime) -> str:
    """JSON that follows the schema, made of the question alone; `ModelRefused` if that is not possible."""
    answer = _SchemaAnswerBuilder(dict(schema), question, tools, now).build()
    if answer is None or not OfferedTool(name="answer", description="", schema=dict(schema)).accepts(answer):
        raise ModelRefused(
            "The offline model cannot give an answer of this form: it can make plans out of a question's steps and "
            "objects out of its values, nothing else. Use a real model: see `ferrule models`."
        )
    return json.dumps(answer, ensure_ascii=False)


class _SchemaAnswerBuilder:
    def __init__(self, root: JsonSchema, question: str, tools: OfferedTools, now: datetime) -> None:
        self._root, self._question, self._tools, self._now = root, question, tools, now

    def build(self) -> dict[str, Any] | list[Any] | None:
        schema = resolve_schema(self._root, self._root)
        if allowed_types(schema) == ["array"]:
            return self._build_plan(schema)
        answer: dict[str, Any] = {}
        values = fill_parameters(
            OfferedTool(name="answer", description="", schema=schema), self._question, self._now
        ).calls[0]
        required = schema.get("required") or []
        for name, inner in properties_of(schema).items():
            option = list_branches(resolve_schema(inner, self._root), self._root)[0]
            if allowed_types(option) == ["array"] and self._is_plan_schema(option):
                answer[name] = self._build_plan(option)
            elif "const" in option or "default" in option:
                answer[name] = option.get("const", option.get("default"))
            elif name in values:
                answer[name] = values[name]
            elif name in required and name in _TEXT_NAMES:
                answer[name] = self._question
        return answer if answer or not required else None

    def _is_plan_schema(self, schema: JsonSchema) -> bool:
        names = {name.lower() for name in properties_of(resolve_schema(schema.get("items"), self._root))}
        return bool(names & {*_TEXT_NAMES}) and bool(names & {*_ID_NAMES, *_TOOL_NAMES, *_DEPENDENCY_NAMES})

    def _build_plan(self, schema: JsonSchema) -> list[Any]:
        item = resolve_schema(schema.get("items"), self._root)
        plan: list[Any] = []
        for number, step in enumerate(split_steps(self._question, self._is_request), 1):
            depends = number > 1 and refers_to_result(step)
            choice = choose_tool(self._tools, insert_result(step, "1") if depends else step, self._now)
            plan.append(self._build_step(item, number, step, choice, plan[-1] if depends else None))
        return plan

    def _is_request(self, text: str) -> bool:
        choice = choose_tool(self._tools, text, self._now)
        return choice is not None and choice.is_ready

    def _build_step(self, item: JsonSchema, number: int, text: str, choice: ChosenTool | None, before: Any) -> Any:
        step: dict[str, Any] = {}
        for name, inner in properties_of(item).items():
            schema = list_branches(resolve_schema(inner, self._root), self._root)[0]
            kind, key = (allowed_types(schema) or ["string"])[0], name.lower()
            if key in _ID_NAMES:
                step[name] = number if kind in ("integer", "number") else f"step_{number}"
            elif key in _TOOL_NAMES:
                step[name] = _choose_tool_name(choice, schema)
            elif key in _DEPENDENCY_NAMES and kind == "array":
                step[name] = [before[own] for own in before if own.lower() in _ID_NAMES][:1] if before else []
            elif key in _ARGUMENT_NAMES and kind == "object":
                step[name] = choice.filled.calls[0] if choice is not None and choice.is_ready and before is None else {}
            elif key in _TEXT_NAMES and kind == "string":
                step[name] = text
            elif "default" in schema or "const" in schema:
                step[name] = schema.get("const", schema.get("default"))
            elif name in (item.get("required") or []) and kind in ("integer", "number"):
                step[name] = schema.get("minimum", 1)
        return step


def _choose_tool_name(choice: ChosenTool | None, schema: JsonSchema) -> str:
    name = choice.tool.name if choice is not None else _NO_TOOL
    allowed = schema.get("enum")
    if not isinstance(allowed, list) or name in allowed:
        return name
    similar = similar_names(name, [str(member) for member in allowed], limit=1)
    return similar[0] if similar else _NO_TOOL
