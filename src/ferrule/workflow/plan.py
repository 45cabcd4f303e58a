"""A plan: steps that need each other's results.

Models write plans as JSON, seldom without a mistake. What can be mended without guessing is mended, and said.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final, TypeAlias

from ferrule.names import near_names
from ferrule.workflow.references import steps_referred_to, with_other_ids

NO_TOOL: Final = "none"
ASK_USER: Final = "ask_user"
"""The step is a question to the user."""
MOST_STEPS: Final = 50

StepId: TypeAlias = int | str

PLAN_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_STEPS,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "description": {"type": "string"},
                    "tool_type": {"type": "string"},
                    "parameters": {"type": "object"},
                    "dependencies": {"type": "array", "items": {"type": "integer"}},
                    "complexity": {"type": "integer"},
                    "expected": {"type": "string"},
                },
                "required": ["id", "description", "tool_type"],
            },
        },
        "parallel_groups": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "total_estimated_time": {"type": "number"},
    },
    "required": ["steps"],
}
"""What a model is asked for."""

_NAME: Final = {"type": ["integer", "string"]}
_ACCEPTED: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_STEPS,
            "items": {
                "type": "object",
                "properties": {
                    "id": _NAME,
                    "description": {"type": "string"},
                    "tool_type": {"type": "string"},
                    "parameters": {"type": "object"},
                    "dependencies": {"type": "array", "items": _NAME},
                },
                "required": ["id", "description"],
            },
        }
    },
    "required": ["steps"],
}
"""What a plan is taken for without asking the model again: ids may be texts, and what nobody reads may be anything."""
_TOLD: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One step of a plan."""

    id: StepId
    description: str
    tool_type: str = NO_TOOL
    """The tool, as models know it; `none` = think, `ask_user` = ask."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """What is known of its arguments; may refer to results of other steps: `${1}`, `${1.items[0].name}`."""
    dependencies: tuple[StepId, ...] = ()
    complexity: int = 1
    expected: str = ""
    """What kind of result it should give: `number`, `date`, `text` …; empty = anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps, each after those it depends on."""

    steps: tuple[PlanStep, ...]
    parallel_groups: tuple[tuple[StepId, ...], ...] = ()
    """Steps that can be done at once, group after group."""
    total_estimated_time: float = 0.0
    problems: tuple[str, ...] = ()
    """What was wrong with it and has been mended."""
    revised_for: tuple[StepId, ...] = ()
    """Steps whose results were so bad that what was to come after them was planned anew."""

    def __getitem__(self, step_id: StepId) -> PlanStep:
        return next(step for step in self.steps if str(step.id) == str(step_id))

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": [
                {
                    "id": step.id,
                    "description": step.description,
                    "tool_type": step.tool_type,
                    "parameters": step.parameters,
                    "dependencies": list(step.dependencies),
                    "complexity": step.complexity,
                    "expected": step.expected,
                }
                for step in self.steps
            ],
            "parallel_groups": [list(group) for group in self.parallel_groups],
            "total_estimated_time": self.total_estimated_time,
            "problems": list(self.problems),
            "revised_for": list(self.revised_for),
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Plan:
        """A plan as `to_dict` wrote it."""
        return cls(
            steps=tuple(
                PlanStep(**{**step, "dependencies": tuple(step.get("dependencies", ()))}) for step in said["steps"]
            ),
            parallel_groups=tuple(tuple(group) for group in said.get("parallel_groups", ())),
            total_estimated_time=float(said.get("total_estimated_time", 0)),
            problems=tuple(said.get("problems", ())),
            revised_for=tuple(said.get("revised_for", ())),
        )


def faults_of(said: Any) -> list[str]:
    """What is wrong with a plan by its schema, in words for the model that wrote it; empty where nothing is."""
    return [f"{_place(error.instance_path)}: {error.message}." for error in islice(_schema().iter_errors(said), _TOLD)]


@lru_cache(maxsize=1)
def _schema() -> Any:
    import jsonschema_rs  # 30 ms to import: only when a plan is made

    return jsonschema_rs.validator_for(_ACCEPTED)


def _place(path: Sequence[str | int]) -> str:
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path).lstrip(".") or "the plan"


def single_step(question: str, tool_type: str = NO_TOOL, **parameters: Any) -> Plan:
    """The plan for a question that needs none."""
    step = PlanStep(id=1, description=question, tool_type=tool_type, parameters=parameters)
    return Plan(steps=(step,), parallel_groups=((1,),))


def plan_of(
    said: Any,
    tools: Collection[str],
    *,
    after: Sequence[PlanStep] = (),
    lost: Collection[StepId] = (),
    once: Sequence[PlanStep] = (),
) -> Plan | None:
    """The plan a model wrote, mended; None when there is no step in it. `tools` are the names it may use.

    It goes on `after` steps that were begun already; of those, the `lost` ones have no result to build on, and what
    the ones for `once` do is not done again.
    """
    steps, problems = _steps_in(said)
    if not steps:
        return None
    gone = {str(one) for one in lost}
    steps = [_with_known_tool(step, tools, problems) for step in steps]
    steps = _with_unique_ids(steps, problems, taken=[step.id for step in after], once=once)
    steps = _with_known_dependencies(steps, problems, known=[step.id for step in after if str(step.id) not in gone])
    steps = [*after, *_without_circles(steps, problems)]
    return Plan(
        steps=tuple(steps),
        parallel_groups=groups_of(steps),
        total_estimated_time=_seconds_in(said),
        problems=tuple(problems),
    )


def _seconds_in(said: Any) -> float:
    time = said.get("total_estimated_time") if isinstance(said, Mapping) else None
    try:
        seconds = float(time) if isinstance(time, (int, float)) else 0.0
    except OverflowError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def groups_of(steps: Sequence[PlanStep]) -> tuple[tuple[StepId, ...], ...]:
    """Which steps can be done at once, group after group."""
    level: dict[str, int] = {}
    for step in steps:  # each stands after those it depends on
        level[str(step.id)] = 1 + max((level.get(str(needed), 0) for needed in step.dependencies), default=0)
    found: dict[int, list[StepId]] = {}
    for step in steps:
        found.setdefault(level[str(step.id)], []).append(step.id)
    return tuple(tuple(found[number]) for number in sorted(found))


def _steps_in(said: Any) -> tuple[list[PlanStep], list[str]]:
    listed = said.get("steps") if isinstance(said, Mapping) else said
    if isinstance(listed, Mapping):
        listed = [{"id": key, **value} for key, value in listed.items() if isinstance(value, Mapping)]
    problems: list[str] = []
    steps = []
    for number, one in enumerate(listed if isinstance(listed, list) else (), 1):
        if isinstance(one, str):
            one = {"description": one}
        if not isinstance(one, Mapping):
            problems.append(f"What stands in place {number} is no step; it was left out.")
            continue
        steps.append(_step_of(one, number))
    if len(steps) > MOST_STEPS:
        problems.append(f"Of {len(steps)} steps the first {MOST_STEPS} are kept.")
    return steps[:MOST_STEPS], problems


def _step_of(said: Mapping[str, Any], number: int) -> PlanStep:
    step_id = said.get("id", number)
    needed = said.get("dependencies", said.get("depends_on", ()))
    parameters = said.get("parameters", said.get("arguments"))
    complexity = said.get("complexity", 1)
    tool_type = said.get("tool_type", said.get("tool"))
    return PlanStep(
        id=step_id if isinstance(step_id, (int, str)) and not isinstance(step_id, bool) else number,
        description=str(said.get("description") or said.get("task") or f"step {number}"),
        tool_type=str(tool_type or NO_TOOL).strip(),
        parameters=dict(parameters) if isinstance(parameters, Mapping) else {},
        dependencies=tuple(one for one in needed if isinstance(one, (int, str))) if isinstance(needed, list) else (),
        complexity=complexity if isinstance(complexity, int) else 1,
        expected=str(said.get("expected") or ""),
    )


def _with_unique_ids(
    steps: Sequence[PlanStep], problems: list[str], *, taken: Collection[StepId], once: Sequence[PlanStep]
) -> list[PlanStep]:
    """Steps that follow others have ids of their own; what they say of each other goes with them."""
    seen = {str(one) for one in taken}
    said = {str(step.id) for step in steps}
    found: list[PlanStep] = []
    renamed: dict[str, StepId] = {}
    for written in steps:
        step = _with_other_ids(written, renamed) if renamed else written
        same = next((one for one in once if _do_the_same(one, step)), None)
        if same is not None:
            problems.append(f"Step {step.id} would do again what step {same.id} does; it was left out.")
            renamed.setdefault(str(step.id), same.id)
            continue
        if str(step.id) in seen:
            fresh = next(n for n in range(1, len(steps) + len(seen) + 2) if str(n) not in seen | said)
            problems.append(f"Two steps have the id {step.id}; the second is now {fresh}.")
            if str(step.id) not in {str(one.id) for one in found}:  # else what is said of it is said of the first
                renamed.setdefault(str(step.id), fresh)
            step = replace(step, id=fresh)
        seen.add(str(step.id))
        found.append(step)
    return found


def _with_other_ids(step: PlanStep, ids: Mapping[str, StepId]) -> PlanStep:
    needed = tuple(ids.get(str(one), one) for one in step.dependencies)
    return replace(step, dependencies=needed, parameters=with_other_ids(step.parameters, ids))


def _do_the_same(one: PlanStep, other: PlanStep) -> bool:
    return (one.tool_type, one.parameters) == (other.tool_type, other.parameters)


def _with_known_tool(step: PlanStep, tools: Collection[str], problems: list[str]) -> PlanStep:
    if step.tool_type in tools or step.tool_type in (NO_TOOL, ASK_USER):
        return step
    if step.tool_type.casefold() in ("", "null", "direct", "reasoning", "llm", "无"):
        return replace(step, tool_type=NO_TOOL)
    near = near_names(step.tool_type, tools)
    chosen = near[0] if len(near) == 1 else NO_TOOL
    instead = f"{chosen!r} is used" if chosen != NO_TOOL else "it is done by thinking"
    problems.append(f"Step {step.id} names the tool {step.tool_type!r}, which is not there; {instead} instead.")
    return replace(step, tool_type=chosen)


def _with_known_dependencies(
    steps: Sequence[PlanStep], problems: list[str], known: Collection[StepId] = ()
) -> list[PlanStep]:
    ids = {str(one): one for one in (*known, *(step.id for step in steps))}
    found = []
    for step in steps:
        wanted = dict.fromkeys([*map(str, step.dependencies), *steps_referred_to(step.parameters)])
        there = tuple(ids[one] for one in wanted if one in ids and one != str(step.id))
        for one in wanted:
            if one == str(step.id):
                problems.append(f"Step {step.id} depends on itself; that was taken out.")
            elif one not in ids and one in map(str, step.dependencies):
                problems.append(f"Step {step.id} depends on step {one}, which is not there; that was taken out.")
        found.append(replace(step, dependencies=there))
    return found


def _without_circles(steps: Sequence[PlanStep], problems: list[str]) -> list[PlanStep]:
    """The steps in an order in which each stands after those it depends on. In a circle the first step goes first."""
    left = {str(step.id): step for step in steps}
    ordered: list[PlanStep] = []
    while left:
        ready = next((step for step in left.values() if not any(str(one) in left for one in step.dependencies)), None)
        if ready is None:
            first = next(iter(left.values()))
            kept = tuple(one for one in first.dependencies if str(one) not in left)
            gone = ", ".join(str(one) for one in first.dependencies if str(one) in left)
            problems.append(f"The steps go in a circle; step {first.id} no longer waits for {gone}.")
            left[str(first.id)] = replace(first, dependencies=kept)
            continue
        ordered.append(left.pop(str(ready.id)))
    return ordered
