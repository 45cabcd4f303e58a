"""A plan: steps that depend on each other's results.

Models write plans as JSON, seldom without a mistake. What can be repaired without guessing is repaired and reported.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from ferrule.agent.answer import ASK_USER, NO_TOOL, Plan, PlanStep, StepId
from ferrule.core.names import model_name, similar_names
from ferrule.workflow.references import find_referenced_steps, renumber_references

MAX_STEPS: Final = 50


def _steps_schema(step_id: dict[str, Any], required: list[str], **other_fields: Any) -> dict[str, Any]:
    properties = {
        "id": step_id,
        "description": {"type": "string"},
        "tool_type": {"type": "string"},
        "parameters": {"type": "object"},
        "dependencies": {"type": "array", "items": step_id},
        **other_fields,
    }
    step = {"type": "object", "properties": properties, "required": required}
    return {"type": "array", "minItems": 1, "maxItems": MAX_STEPS, "items": step}


PLAN_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "steps": _steps_schema(
            {"type": "integer"},
            ["id", "description", "tool_type"],
            complexity={"type": "integer"},
            expected={"type": "string"},
        ),
        "parallel_groups": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "total_estimated_time": {"type": "number"},
    },
    "required": ["steps"],
}
"""The schema that a model is asked to follow."""
_ACCEPTED_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"steps": _steps_schema({"type": ["integer", "string"]}, ["id", "description"])},
    "required": ["steps"],
}
"""Plans that are accepted without asking the model again: ids may be strings, and unused fields may be anything."""
_MAX_ERRORS: Final = 5


def find_plan_errors(value: Any) -> list[str]:
    """Return the schema violations of a plan, as text for the model that wrote it, empty if there are none."""
    errors = islice(_plan_validator().iter_errors(value), _MAX_ERRORS)
    return [f"{_format_path(error.instance_path)}: {error.message}." for error in errors]


@lru_cache(maxsize=1)
def _plan_validator() -> Any:
    import jsonschema_rs  # 30 ms to import: only when a plan is made

    return jsonschema_rs.validator_for(_ACCEPTED_SCHEMA)


def _format_path(path: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".") or "the plan"


def single_step_plan(question: str, tool_type: str = NO_TOOL, **parameters: Any) -> Plan:
    """Return a plan that consists of one step."""
    step = PlanStep(id=1, description=question, tool_type=tool_type, parameters=parameters)
    return Plan(steps=(step,), parallel_groups=((1,),))


def parse_plan(
    value: Any,
    tools: Collection[str],
    *,
    after: Sequence[PlanStep] = (),
    failed: Collection[StepId] = (),
    once: Sequence[PlanStep] = (),
) -> Plan | None:
    """Parse and repair the plan a model wrote; None if it has no steps. `tools` are the names it may use.

    The new steps follow those in `after`, which have already started. Steps may not depend on the `failed` ones among
    those, and a step that would repeat one in `once` is removed.
    """
    steps, problems = _parse_steps(value)
    if not steps:
        return None
    without_result = {str(step_id) for step_id in failed}
    earlier = [step.id for step in after]
    steps = [_replace_unknown_tool(step, tools, problems) for step in steps]
    steps = _make_ids_unique(steps, problems, used=earlier, once=once)
    usable = [step_id for step_id in earlier if str(step_id) not in without_result]
    steps = _repair_dependencies(_repair_references(steps, problems), problems, earlier=usable)
    steps = [*after, *_break_cycles(steps, problems)]
    return Plan(
        steps=tuple(steps),
        parallel_groups=group_parallel_steps(steps),
        total_estimated_time=_parse_estimated_seconds(value),
        problems=tuple(problems),
    )


def _parse_estimated_seconds(value: Any) -> float:
    estimate = value.get("total_estimated_time") if isinstance(value, Mapping) else None
    try:
        seconds = float(estimate) if isinstance(estimate, (int, float)) else 0.0
    except OverflowError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def group_parallel_steps(steps: Sequence[PlanStep]) -> tuple[tuple[StepId, ...], ...]:
    """Group the steps that can run concurrently. Each step must come after those it depends on."""
    level: dict[str, int] = {}
    groups: dict[int, list[StepId]] = {}
    for step in steps:
        needed = (*step.dependencies, *step.find_awaited_steps(steps))
        number = 1 + max((level.get(str(step_id), 0) for step_id in needed), default=0)
        level[str(step.id)] = number
        groups.setdefault(number, []).append(step.id)
    return tuple(tuple(groups[number]) for number in sorted(groups))


def _parse_steps(value: Any) -> tuple[list[PlanStep], list[str]]:
    items = value.get("steps") if isinstance(value, Mapping) else value
    if isinstance(items, Mapping):
        items = [{"id": key, **step} for key, step in items.items() if isinstance(step, Mapping)]
    problems: list[str] = []
    steps = []
    for number, item in enumerate(items if isinstance(items, list) else (), 1):
        if isinstance(item, str):
            item = {"description": item}
        if not isinstance(item, Mapping):
            problems.append(f"Item {number} is not a step; it was left out.")
            continue
        steps.append(PlanStep.of(item, number))
    if len(steps) > MAX_STEPS:
        problems.append(f"The plan has {len(steps)} steps; only the first {MAX_STEPS} are kept.")
    return steps[:MAX_STEPS], problems


def _make_ids_unique(
    steps: Sequence[PlanStep], problems: list[str], *, used: Collection[StepId], once: Sequence[PlanStep]
) -> list[PlanStep]:
    """Give each step a unique id. References of later steps to a renumbered one are changed too."""
    used_ids, written_ids = {str(step_id) for step_id in used}, {str(step.id) for step in steps}
    unique: list[PlanStep] = []
    renamed: dict[str, StepId] = {}
    for original in steps:
        step = _renumber_step(original, renamed) if renamed else original
        same = next((other for other in once if _is_same_call(other, step)), None)
        if same is not None:
            problems.append(f"Step {step.id} would repeat what step {same.id} does; it was left out.")
            renamed.setdefault(str(step.id), same.id)
            continue
        if str(step.id) in used_ids:
            new_id = next(n for n in range(1, len(steps) + len(used_ids) + 2) if str(n) not in used_ids | written_ids)
            problems.append(f"Two steps have the id {step.id}; the second is now {new_id}.")
            # If two new steps have the same id, references mean the first one; otherwise they mean this step.
            if str(step.id) not in {str(other.id) for other in unique}:
                renamed.setdefault(str(step.id), new_id)
            step = replace(step, id=new_id)
        used_ids.add(str(step.id))
        unique.append(step)
    return unique


def _renumber_step(step: PlanStep, ids: Mapping[str, StepId]) -> PlanStep:
    dependencies = tuple(ids.get(str(dependency), dependency) for dependency in step.dependencies)
    return replace(step, dependencies=dependencies, parameters=renumber_references(step.parameters, ids))


def _is_same_call(step: PlanStep, other: PlanStep) -> bool:
    return (step.tool_type, step.parameters) == (other.tool_type, other.parameters)


def _replace_unknown_tool(step: PlanStep, tools: Collection[str], problems: list[str]) -> PlanStep:
    if step.tool_type in tools or step.tool_type in (NO_TOOL, ASK_USER):
        return step
    owner, _, action = step.tool_type.rpartition(".")
    for encoded in (model_name(step.tool_type), model_name(owner, action)):
        if encoded in tools:  # the tool's own id, such as `math.factorial`, or `tool.action`
            return replace(step, tool_type=encoded)
    if step.tool_type.casefold() in ("", "null", "direct", "reasoning", "llm", "无"):
        return replace(step, tool_type=NO_TOOL)
    near = similar_names(step.tool_type, tools) or _find_tools_by_parameters(step, tools)
    chosen = near[0] if len(near) == 1 else NO_TOOL
    instead = f"{chosen!r} is used" if chosen != NO_TOOL else "it is done by reasoning"
    problems.append(f"Step {step.id} names the tool {step.tool_type!r}, which does not exist; {instead} instead.")
    return replace(step, tool_type=chosen)


def _find_tools_by_parameters(step: PlanStep, tools: Collection[str]) -> list[str]:
    """Return the tools that take exactly what the step passes: small models write `function` where the name belongs."""
    if not step.parameters or not isinstance(tools, Mapping):
        return []
    schemas = {name: capability.schema for name, (_, capability) in tools.items()}
    return [
        name
        for name, schema in schemas.items()
        if {*schema.get("required", ())} <= step.parameters.keys() <= {*schema.get("properties", ())}
    ]


def _repair_references(steps: Sequence[PlanStep], problems: list[str]) -> list[PlanStep]:
    """Let a step refer to the result that it says it needs, where it refers to another one of the same tool instead.

    Small models write `${1}` again for the second thing that they looked up. That nothing else uses the second result
    shows which of the two is meant.
    """
    by_id = {str(step.id): step for step in steps}
    references = {str(step.id): set(find_referenced_steps(step.parameters, by_id)) for step in steps}
    used_ids = set().union(*references.values())
    repaired = []
    for step in steps:
        needed, referenced = [str(step_id) for step_id in step.dependencies], list(references[str(step.id)])
        if len(needed) == len(referenced) == 1 and needed[0] not in used_ids and {*needed, *referenced} <= by_id.keys():
            first, second = by_id[referenced[0]], by_id[needed[0]]
            if first.tool_type == second.tool_type != NO_TOOL:
                ids = f"depends on step {second.id}, but refers to {first.id}; it uses {second.id}"
                problems.append(f"Step {step.id} {ids}.")
                step = replace(step, parameters=renumber_references(step.parameters, {str(first.id): second.id}))
        repaired.append(step)
    return repaired


def _repair_dependencies(
    steps: Sequence[PlanStep], problems: list[str], *, earlier: Collection[StepId]
) -> list[PlanStep]:
    """Remove unknown dependencies, and add the steps that parameters refer to."""
    ids = {str(step_id): step_id for step_id in (*earlier, *(step.id for step in steps))}
    checked = []
    for step in steps:
        needed = dict.fromkeys([*map(str, step.dependencies), *find_referenced_steps(step.parameters, ids)])
        for step_id in needed:
            if step_id == str(step.id):
                problems.append(f"Step {step.id} depends on itself; that was removed.")
            elif step_id not in ids and step_id in map(str, step.dependencies):
                problems.append(f"Step {step.id} depends on step {step_id}, which does not exist; that was removed.")
        existing = tuple(ids[step_id] for step_id in needed if step_id in ids and step_id != str(step.id))
        checked.append(replace(step, dependencies=existing))
    return checked


def _break_cycles(steps: Sequence[PlanStep], problems: list[str]) -> list[PlanStep]:
    """Order the steps so that each follows those it depends on. In a cycle, the first step goes first."""
    remaining = {str(step.id): step for step in steps}
    ordered: list[PlanStep] = []
    while remaining:
        ready = (s for s in remaining.values() if not any(str(d) in remaining for d in s.dependencies))
        if (step := next(ready, None)) is not None:
            ordered.append(remaining.pop(str(step.id)))
            continue
        first = next(iter(remaining.values()))
        removed = [dependency for dependency in first.dependencies if str(dependency) in remaining]
        problems.append(f"The steps form a cycle; step {first.id} no longer depends on {', '.join(map(str, removed))}.")
        others = tuple(dependency for dependency in first.dependencies if dependency not in removed)
        remaining[str(first.id)] = replace(first, dependencies=others)
    return ordered
