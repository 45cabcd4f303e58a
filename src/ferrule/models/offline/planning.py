"""Answers that must follow a schema: plans made of a question's steps, and objects made of its values.

Anything else would have to be invented, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ferrule.core.json_schema import allowed_types, properties_of, resolve_schema
from ferrule.core.spec import JsonSchema
from ferrule.errors import ModelRefused
from ferrule.models.offline.argument_filling import fill_parameters
from ferrule.models.offline.steps import insert_result, refers_to_result, split_steps
from ferrule.models.offline.tool_choice import choose_tool
from ferrule.models.offline.tools import OfferedTool, OfferedTools

_NO_TOOL = "none"


def answer_by_schema(schema: Mapping[str, Any], question: str, tools: OfferedTools) -> str:
    """JSON that follows the schema, made of the question alone; `ModelRefused` if that is not possible."""
    root = dict(schema)
    form = OfferedTool(name="answer", description="", schema=root)
    steps = resolve_schema(properties_of(resolve_schema(root, root)).get("steps"), root)
    is_plan = "tool_type" in properties_of(resolve_schema(steps.get("items"), root))
    answer = {"steps": _make_plan(question, tools)} if is_plan else _make_object(form, question)
    if not form.accepts(answer):
        raise ModelRefused(
            "The offline model cannot give an answer of this form: it can make plans out of a question's steps and "
            "objects out of its values, nothing else. Use a real model: see `ferrule models`."
        )
    return json.dumps(answer, ensure_ascii=False)


def _make_plan(question: str, tools: OfferedTools) -> list[dict[str, Any]]:
    """Return a step for each request, as `ferrule.workflow.plan` reads them."""

    def is_request(text: str) -> bool:
        choice = choose_tool(tools, text)
        return choice is not None and choice.is_ready

    plan = []
    for number, step in enumerate(split_steps(question, is_request), 1):
        depends = number > 1 and refers_to_result(step)
        choice = choose_tool(tools, insert_result(step, "1") if depends else step)
        has_arguments = choice is not None and choice.is_ready and not depends
        plan.append(
            {
                "id": number,
                "description": step,
                "tool_type": choice.tool.name if choice is not None else _NO_TOOL,
                "parameters": choice.filled.calls[0] if choice is not None and has_arguments else {},
                "dependencies": [number - 1] if depends else [],
            }
        )
    return plan


def _make_object(form: OfferedTool, question: str) -> dict[str, Any] | None:
    """Return the values of the question; None for a schema that asks for something else."""
    root: JsonSchema = resolve_schema(form.schema, form.schema)
    if "object" not in (allowed_types(root) or ["object"]):
        return None
    properties = {name: resolve_schema(inner, form.schema) for name, inner in properties_of(root).items()}
    defaults = {
        name: schema.get("const", schema.get("default"))
        for name, schema in properties.items()
        if "const" in schema or "default" in schema
    }
    answer = {**fill_parameters(form, question).calls[0], **defaults}
    return answer if answer or not root.get("required") else None
