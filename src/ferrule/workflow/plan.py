"""A plan: steps that depend on each other's results.

Models write plans as JSON, seldom without a mistake. What can be repaired without guessing is repaired and reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from ferrule.agent.answer import ASK_USER, NO_TOOL, Plan, PlanStep, StepId
from ferrule.core.content import as_text, copy_json
from ferrule.core.names import did_you_mean, model_name, similar_names
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import InvalidArguments

MAX_STEPS: Final = 50
MAX_ESTIMATED_SECONDS: Final = 1e9
"""A plan that says that it takes longer says nothing."""


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
    import jsonschema_rs  # 30 ms to import: only when a plan is made

    errors = []
    for error in islice(jsonschema_rs.validator_for(_ACCEPTED_SCHEMA).iter_errors(value), _MAX_ERRORS):
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.instance_path)
        errors.append(f"{path.lstrip('.') or 'the plan'}: {error.message}.")
    return errors


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
    estimate = value.get("total_estimated_time") if isinstance(value, Mapping) else None
    if not isinstance(estimate, (int, float)) or not 0 < estimate < MAX_ESTIMATED_SECONDS:
        estimate = 0.0
    return Plan(
        steps=tuple(steps),
        parallel_groups=group_parallel_steps(steps),
        total_estimated_time=float(estimate),
        problems=tuple(problems),
    )


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
    for step in steps:
        if renamed:
            dependencies = tuple(renamed.get(str(dependency), dependency) for dependency in step.dependencies)
            parameters = renumber_references(step.parameters, renamed)
            step = replace(step, dependencies=dependencies, parameters=parameters)
        call = step.tool_type, step.parameters
        same = next((other for other in once if (other.tool_type, other.parameters) == call), None)
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


def _replace_unknown_tool(step: PlanStep, tools: Collection[str], problems: list[str]) -> PlanStep:
    if step.tool_type in tools or step.tool_type in (NO_TOOL, ASK_USER):
        return step
    owner, _, action = step.tool_type.rpartition(".")
    for encoded in (model_name(step.tool_type), model_name(owner, action), model_name(owner)):
        if encoded in tools:  # the tool's own id, such as `math.factorial`, `tool.action`, or a tool with one action
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


# References: results of earlier steps in the parameters of later ones.
#
# `${1}` is the whole result of step 1, `${1.items[0].name}` a field at any depth. A parameter that is nothing but a
# reference keeps the type of the result; inside a longer text the result is inserted as text, and inside a calculation
# the number of a quantity such as `38.45 EUR`. Models also write `{{1.name}}`, `${steps.1.result.name}` or
# `${step_1.name}`, so these forms work too. `${HOME}` is not a reference.

_REFERENCE = lazy_pattern(r"\$\{([^{}$]{1,300})\}|\{\{([^{}]{1,300})\}\}")
_STEP_REFERENCE = r"^\s*(?:steps?(?:_results?)?\s*[._\[]?\s*){optional}(?P<id>{ids})\]?\s*(?P<path>(?:[.\[].*)?)$"
_PATH_PART = lazy_pattern(r"\.?([^.\[\]]+)|\[\s*(-?\d+)\s*\]|\[\s*[\"']([^\"']+)[\"']\s*\]")
_WHOLE_RESULT_NAMES: Final = ("result", "output")
"""Names for the whole result, which models often write before the path."""
_CALCULATION = lazy_pattern(r"[\d\s.()]*[\d)]\s*[-+*/^×÷][-+*/^×÷\d\s.()]*")
_MAX_CALCULATION_LENGTH: Final = 1_000
_QUANTITY = lazy_pattern(
    r"(?P<before>[$€£¥])?\s*(?P<number>-?\d+(?:\.\d+)?)\s*"
    r"(?P<unit>(?!(?:k|m|mn|bn|hundred|thousand|million|billion|trillion|dozen)$)°?[^\W\d_百千万亿]{1,20}|[$€£¥])?",
    re.IGNORECASE,
)
"""A number with a unit. A percent sign or a word such as million changes the number, so it is no unit."""
MAX_NAMES: Final = 10
MAX_INSERTED_SIZE: Final = 1_000_000
"""Characters of JSON that the references of one step may insert: a short plan can repeat a long result many times."""


def resolve_references(
    value: Any, results: Mapping[str, Any], *, step: Any = "", max_size: int = MAX_INSERTED_SIZE
) -> Any:
    """Replace the references in a value by results.

    Raises InvalidArguments for a reference that cannot be resolved, and where more than `max_size` would be inserted.
    """
    return _replace_texts(value, _ReferenceResolver(results, step, max_size).resolve_text)


def find_referenced_steps(value: Any, step_ids: Collection[str] = ()) -> list[str]:
    """Return the ids of the steps whose results a value refers to. `step_ids` are those that exist, as far as known."""
    references = (_parse_reference(match, step_ids) for match in _find_references(value))
    return list(dict.fromkeys(parsed["id"] for parsed in references if parsed is not None))


def find_referenced_values(value: Any, results: Mapping[str, Any]) -> list[Any]:
    """Return the values that the references in a value refer to, as far as these results have them."""
    values = []
    for match in _find_references(value):
        with suppress(InvalidArguments):
            values.append(_look_up_reference(match, results, ""))
    return values


def _find_references(value: Any) -> Iterator[re.Match[str]]:
    """Yield everything inside a value that looks like a reference."""
    if isinstance(value, str):
        yield from _REFERENCE.finditer(value)
    elif isinstance(value, (Mapping, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _find_references(inner)


def _replace_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Return a value with each text inside, but no name, replaced."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _replace_texts(inner, change) for name, inner in value.items()}
    return [_replace_texts(inner, change) for inner in value] if isinstance(value, list) else value


def renumber_references(value: Any, ids: Mapping[str, Any]) -> Any:
    """Change the step ids in the references of a value. `ids` maps old ids to new ones."""

    def renumber(match: re.Match[str]) -> str:
        parsed = _parse_reference(match, ids)
        if parsed is None or parsed["id"] not in ids:
            return match.group()
        start, end = parsed.span("id")
        changed = f"{parsed.string[:start]}{ids[parsed['id']]}{parsed.string[end:]}"
        return match.group().replace(parsed.string, changed, 1)

    return _replace_texts(value, lambda text: _REFERENCE.sub(renumber, text))


class _ReferenceResolver:
    """Inserts results into the parameters of one step, and stops before they become too large."""

    def __init__(self, results: Mapping[str, Any], step: Any, max_size: int) -> None:
        self._results, self._step = results, step
        self._max_size, self._size = max_size, 0
        self._texts: dict[str, str] = {}

    def resolve_text(self, text: str) -> Any:
        whole = _REFERENCE.fullmatch(text.strip())
        if whole is not None and _parse_reference(whole, self._results) is not None:
            self._insert(whole)
            return copy_json(_look_up_reference(whole, self._results, self._step))
        numbers = self._find_numbers(text)
        return _REFERENCE.sub(
            lambda match: (
                match.group()
                if _parse_reference(match, self._results) is None
                else numbers.get(match.group()) or self._insert(match)
            ),
            text,
        )

    def _find_numbers(self, text: str) -> dict[str, str]:
        """Return the numbers of the quantities in a calculation, if all have the same unit: kilometres and metres
        cannot be added.
        """
        if len(text) > _MAX_CALCULATION_LENGTH or _CALCULATION.fullmatch(_REFERENCE.sub("1", text)) is None:
            return {}
        numbers: dict[str, str] = {}
        units: set[str] = set()
        for match in _REFERENCE.finditer(text):
            value = _look_up_reference(match, self._results, self._step)
            if isinstance(value, str):
                if (quantity := _QUANTITY.fullmatch(value.strip())) is None:
                    return {}
                numbers[match.group()] = quantity["number"]
                units |= {unit.casefold() for unit in (quantity["before"], quantity["unit"]) if unit}
        return numbers if len(units) == 1 else {}

    def _insert(self, reference: re.Match[str]) -> str:
        """Return the result as text, if there is room for it."""
        text = self._texts.get(reference.group())
        if text is None:
            text = as_text(_look_up_reference(reference, self._results, self._step))
            self._texts[reference.group()] = text
        self._size += len(text) + 1
        if self._size > self._max_size:
            raise InvalidArguments(
                f"Step {self._step} was not executed: the results that its parameters refer to have more than "
                f"{self._max_size} characters together, with {reference.group()}. Refer to parts of results, or to "
                "fewer of them."
            )
        return text


def _look_up_reference(match: re.Match[str], results: Mapping[str, Any], step: Any) -> Any:
    parsed = _parse_reference(match, results)
    if parsed is None or parsed["id"] not in results:
        available = ", ".join(results) or "none"
        raise InvalidArguments(
            f"Step {step} refers to {match.group()}, but that step has no result. Available results: {available}."
        )
    return _follow_path(results[parsed["id"]], parsed["path"], match.group(), step)


def _parse_reference(match: re.Match[str], step_ids: Collection[str] = ()) -> re.Match[str] | None:
    """Return the step id and the path in a reference, or None for text that only looks like a reference.

    An existing step is found by its own id first, whatever that is: `2.1`, `fetch.page` or `step_1`.
    """
    inside = str(match.group(1) or match.group(2))
    to_existing_step, to_any_step = _reference_patterns(tuple(step_ids))
    if to_existing_step is not None and (parsed := to_existing_step.match(inside)) is not None:
        return parsed
    parsed = to_any_step.match(inside)
    if parsed is None:
        return None
    return parsed if parsed["id"].isdecimal() or inside.strip().casefold().startswith("step") else None


@lru_cache(maxsize=64)
def _reference_patterns(step_ids: tuple[str, ...]) -> tuple[re.Pattern[str] | None, re.Pattern[str]]:
    """Return the patterns of references to one of these steps, and to any step."""
    longest_first = sorted(step_ids, key=len, reverse=True)
    to_existing_step = _STEP_REFERENCE.format(optional="??", ids="|".join(map(re.escape, longest_first)))
    to_any_step = _STEP_REFERENCE.format(optional="?", ids=r"[\w-]+?")
    return re.compile(to_existing_step, re.S) if step_ids else None, re.compile(to_any_step, re.S)


def _follow_path(value: Any, path: str, reference: str, step: Any) -> Any:
    for position, part in enumerate(_PATH_PART.finditer(path)):
        name, index, quoted = part.groups()
        key = quoted or (name or "").strip()
        if isinstance(value, list) and index is None and key.lstrip("-").isdecimal():
            index = key
        elif isinstance(value, Mapping) and index in value:  # an object whose names are numbers
            index, key = None, index
        if index is not None:
            if not isinstance(value, list) or not -len(value) <= int(index) < len(value):
                raise _missing_value_error(f"[{index}]", value, reference, step)
            value = value[int(index)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        elif not (position == 0 and key in _WHOLE_RESULT_NAMES):
            raise _missing_value_error(key, value, reference, step)
    return value


def _missing_value_error(key: str, value: Any, reference: str, step: Any) -> InvalidArguments:
    actual = f"a {type(value).__name__}"
    near = ""
    if isinstance(value, Mapping):
        actual = "an object with " + (", ".join(map(str, list(value)[:MAX_NAMES])) or "nothing")
        near = did_you_mean(key, map(str, value))
    elif isinstance(value, list):
        actual = f"a list of {len(value)}"
    return InvalidArguments(f"Step {step} refers to {reference}, but the result has no {key}: it is {actual}.{near}")
