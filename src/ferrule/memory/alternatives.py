"""Other tools for a job that one tool cannot do.

Nobody has said which tool can stand in for which. What speaks for one: tags and a category in common, arguments that it
could take as they are, words of the task in what it says about itself, and words in common with the action that failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ferrule.search.words import terms_of
from ferrule.spec import Tool, ToolCapability, ToolCategory, ToolSpec
from ferrule.validation.schema_walk import branches, properties_of, resolve, types_of

_SAYS_NOTHING: Final = frozenset({"", ToolCategory.GENERAL.value, ToolCategory.CUSTOM.value})
_RELATED_ENOUGH: Final = 0.05
_WORDS_ENOUGH: Final = 4
"""Words of a task in common that are as good as all of them: long tasks are no harder to answer."""
_JSON_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A tool to try instead."""

    spec: ToolSpec
    action: str
    reason: str
    score: float
    """0 to 1; it orders alternatives."""


def alternative_tools(
    failed_tool: Tool | ToolSpec,
    capability: ToolCapability,
    parameters: Mapping[str, Any],
    tools: Iterable[ToolSpec],
    *,
    failed: Collection[str],
    task: str,
    most: int = 5,
) -> list[Alternative]:
    """Tools that may do what one could not, best first: none that is disabled or among the ids that failed.

    What only reads is never replaced by what may destroy something.
    """
    spec = failed_tool.spec if isinstance(failed_tool, Tool) else failed_tool
    job = _Job(spec, capability, parameters, task)
    out = {spec.tool_id, *failed}
    found = (job.best_action(other) for other in tools if other.enabled and other.tool_id not in out)
    ranked = sorted((one for one in found if one is not None), key=lambda one: -one.score)
    return ranked[:most]


class _Job:
    """What is to be done."""

    def __init__(self, spec: ToolSpec, capability: ToolCapability, parameters: Mapping[str, Any], task: str) -> None:
        self._tags = {tag.casefold() for tag in spec.tags}
        self._categories = _categories(spec, capability)
        self._reads_only = spec.effects_of(capability).read_only
        self._parameters = parameters
        self._task = set(terms_of(task))
        self._action = set(terms_of(f"{capability.name} {capability.description or spec.description}"))

    def best_action(self, other: ToolSpec) -> Alternative | None:
        judged = [one for action in other.capabilities if (one := self._judge(other, action)) is not None]
        return max(judged, key=lambda one: one.score, default=None)

    def _judge(self, other: ToolSpec, action: ToolCapability) -> Alternative | None:
        if self._reads_only and other.effects_of(action).destructive:
            return None
        tags = sorted(tag for tag in other.tags if tag.casefold() in self._tags)
        category = sorted(_categories(other, action) & self._categories)
        said = _words(other.name, other.description, action.name, action.description, *other.tags)
        for_task, for_action = self._task & said, self._action & said
        related = (
            0.3 * (len(tags) / len(self._tags) if tags else 0.0)
            + (0.1 if category else 0.0)
            + 0.25 * (min(1.0, len(for_task) / min(len(self._task), _WORDS_ENOUGH)) if for_task else 0.0)
            + 0.15 * (len(for_action) / len(self._action) if for_action else 0.0)
        )
        if related < _RELATED_ENOUGH:  # that the arguments fit says nothing by itself
            return None
        fit, how = _fit(action, self._parameters)
        reasons = [*_shared("tags", tags), *_shared("category", category), *_shared("words of the task", for_task), how]
        return Alternative(
            spec=other, action=action.name, reason="; ".join(reasons), score=round(related + 0.2 * fit, 3)
        )


@lru_cache(maxsize=10_000)
def _words(*texts: str) -> frozenset[str]:
    """Kept, since all tools are looked at again for each call that fails."""
    return frozenset(terms_of(" ".join(texts)))


def _shared(what: str, things: Collection[str]) -> Iterator[str]:
    if things:
        yield f"{what}: {', '.join(sorted(things)[:5])}"


def _categories(spec: ToolSpec, capability: ToolCapability) -> set[str]:
    category = spec.category.value if isinstance(spec.category, ToolCategory) else spec.category
    return {category, capability.category} - _SAYS_NOTHING


def _fit(action: ToolCapability, parameters: Mapping[str, Any]) -> tuple[float, str]:
    """How well the arguments would do, and that in words."""
    schema = resolve(action.schema, action.schema)
    properties = properties_of(schema)
    said = schema.get("required")
    required = [name for name in said if isinstance(name, str)] if isinstance(said, list) else []
    taken = [name for name in parameters if _takes(properties.get(name), parameters[name], action)]
    missing = [name for name in required if name not in taken]
    if not missing:
        return (1.0, "takes the same arguments") if taken else (0.5, "needs no arguments")
    spare = [value for name, value in parameters.items() if name not in taken]
    if len(missing) == 1 and sum(_takes(properties.get(missing[0]), value, action) for value in spare) == 1:
        return 0.7, f"takes one of the arguments as {missing[0]!r}"
    return 0.0, f"needs {', '.join(missing[:5])}"


def _takes(schema: Any, value: Any, action: ToolCapability) -> bool:
    """Whether a parameter takes a value of this type; False where there is no such parameter."""
    if schema is None:
        return False
    wanted = {kind for one in branches(resolve(schema, action.schema), action.schema) for kind in types_of(one)}
    kind = _JSON_TYPES.get(type(value), "null")
    return not wanted or kind in wanted or (kind == "integer" and "number" in wanted)
