"""What could be tried instead of a call that failed: other arguments, or another tool.

No list says which tool can replace which. An alternative is scored by shared tags and category, by whether it accepts
the same arguments, and by the words its description shares with the task and with the action that failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.search.terms import extract_terms
from ferrule.core.content import as_text
from ferrule.core.json_schema import allowed_types, list_branches, properties_of, required_names, resolve_schema
from ferrule.core.spec import Tool, ToolCapability, ToolCategory, ToolSpec
from ferrule.memory.adjustments import suggest_adjustments
from ferrule.memory.context import ExecutionContext
from ferrule.memory.failure_history import FailureHistory
from ferrule.memory.failures import CallFailure, FailureClass
from ferrule.policy.policy import Permissions

MAX_ADJUSTMENTS: Final = 3
MAX_ALTERNATIVES: Final = 3
MIN_ALTERNATIVE_SCORE: Final = 0.3
"""Alternatives below this are not shown to the model."""
_NOT_PERMANENT: Final = (FailureClass.VALIDATION, FailureClass.TRANSIENT)
_MAX_CACHED: Final = 100
_UNSPECIFIC_CATEGORIES: Final = frozenset({"", ToolCategory.GENERAL.value, ToolCategory.CUSTOM.value})
_MIN_RELATION: Final = 0.05
_FULL_TASK_MATCH: Final = 4
"""Shared words that count as a full match with a task, so that long tasks do not lower every score."""
_RENAMED_FIT: Final = 0.7
"""How well an action fits that has another name for one of the arguments."""
_JSON_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class FailureAdvisor:
    """Advises one run, by its own observations and by what earlier runs have learned."""

    def __init__(
        self,
        context: ExecutionContext,
        registry: ToolRegistry,
        history: FailureHistory | None,
        permissions: Permissions,
        *,
        max_retries: int = 3,
    ) -> None:
        """Take the `permissions` of the run: it is advised to use only what it may call."""
        self._context, self._registry, self._history = context, registry, history
        self._permissions, self._max_retries = permissions, max_retries
        self._tools: Mapping[str, Tool] = {}
        """The tools of the run, by id, at the version of the registry."""
        self._version = -1
        self._last_advice: dict[Any, list[str]] = {}
        self._alternatives: dict[Any, list[str]] = {}

    def __call__(self, tool: Tool, capability: ToolCapability, failure: CallFailure) -> list[str]:
        switch_tool = self._context.count_failures(tool.id) + 1 >= self._max_retries
        last_observation = tuple(self._context.observation_texts[-1:])
        key = (failure.identity.key, failure.error, switch_tool, last_observation, self._registry.version)
        advice = self._last_advice.get(key)
        if advice is None:
            what_helped = None if self._history is None else self._history.what_helped(tool, failure)
            advice = [] if what_helped is None else [f"{what_helped} (it worked in an earlier run)"]
            advice += self._adjustment_advice(capability, failure)
            # Other arguments may help where there are any to suggest, and time helps against a transient failure.
            is_permanent = not advice and failure.failure_class not in _NOT_PERMANENT
            if switch_tool or is_permanent:
                names = [
                    *self._find_tool_for_invented_value(capability, failure),
                    *self._find_alternatives(tool, capability, failure),
                ]
                advice += [f"the tool {name!r}" for name in list(dict.fromkeys(names))[:MAX_ALTERNATIVES]]
            self._last_advice = {key: advice}  # only the latest: a model that insists asks for the same one again
        return advice

    def _adjustment_advice(self, capability: ToolCapability, failure: CallFailure) -> list[str]:
        avoid = self._context.learned_patterns.get(failure.tool_id, {}).get("failed_selectors", ())
        adjustments = suggest_adjustments(
            capability, failure.parameters, failure.error, self._context.observation_texts, avoid=avoid
        )
        if adjustments:
            self._context.add_adjustment(failure.tool_id, failure.parameters, adjustments[0].parameters, failure.error)
        return [
            as_text({name: item.parameters.get(name) for name in item.changed})
            for item in adjustments[:MAX_ADJUSTMENTS]
        ]

    def _find_tool_for_invented_value(self, capability: ToolCapability, failure: CallFailure) -> list[str]:
        """Return the tool that may find a value which the model made up: the value is neither in the task nor in an
        observation.

        A value of the task may be one of something else, as the number of an order is for `customer_id`: if the error
        mentions it, the tool that tells all that the name of the parameter says may find the right one.
        """
        context_text = " ".join([self._context.task_description, *self._context.observation_texts]).casefold()
        properties = properties_of(resolve_schema(capability.schema, capability.schema))
        words: set[str] = set()
        required_words: set[str] = set()
        for name, value in failure.parameters.items():
            if not isinstance(value, str) or not isinstance(properties.get(name), dict):
                continue
            name_words = set(extract_terms(name.replace("_", " ")))
            if value.casefold() not in context_text:
                words |= {*name_words, *extract_terms(str(properties[name].get("description", "")))}
            elif len(name_words) > 1 and value.casefold() in failure.error.casefold():
                words, required_words = words | name_words, required_words | name_words
        excluded = {*self._failed_tools(), failure.tool_id}
        best: tuple[int, str] = (0, "")
        for spec in self._list_specs() if words else ():
            for action in spec.capabilities if spec.tool_id not in excluded else ():
                terms = _cached_terms(spec.tool_id, spec.description, action.name, action.description)
                shared = len(words & terms) if required_words <= terms else 0
                best = max(best, (shared, self._name_for_model(spec, action)), key=lambda item: item[0])
        return [best[1]] if best[0] else []

    def _list_specs(self) -> list[ToolSpec]:
        """Return the tools of the run, with the actions that it may call."""
        if self._version != self._registry.version:
            snapshot = self._registry.snapshot()
            self._tools, self._version = self._permissions.select_tools(snapshot), snapshot.version
        available = {spec.tool_id for spec in self._context.available_tools}
        tools = [tool for tool_id, tool in self._tools.items() if not available or tool_id in available]
        return [self._permissions.permitted_spec(tool) for tool in tools]

    def _name_for_model(self, spec: ToolSpec, action: ToolCapability) -> str:
        """Return the name by the whole tool: a tool of which a single action may be called still has several."""
        return self._tools[spec.tool_id].spec.model_name(action)

    def _find_alternatives(self, tool: Tool, capability: ToolCapability, failure: CallFailure) -> list[str]:
        """Score all tools once for all calls that differ only in their values."""
        types = frozenset((name, type(value)) for name, value in failure.parameters.items())
        key = (failure.identity.key[:4], types, frozenset(self._failed_tools()), self._registry.version)
        if key in self._alternatives:
            return self._alternatives[key]
        alternatives = alternative_tools(
            tool,
            capability,
            failure.parameters,
            self._list_specs(),
            failed={*self._failed_tools(), tool.id},
            task=self._context.task_description,
            limit=len(self._tools),
        )
        alternatives = [item for item in alternatives if item.fits and item.score >= MIN_ALTERNATIVE_SCORE]
        alternatives = alternatives[:MAX_ALTERNATIVES]
        if alternatives:
            reason = f"{tool.id} failed {self._max_retries} times"
            self._context.add_switch(tool.id, [item.spec.tool_id for item in alternatives], reason)
        if len(self._alternatives) >= _MAX_CACHED:
            self._alternatives.clear()
        self._alternatives[key] = [
            self._name_for_model(item.spec, action)
            for item in alternatives
            for action in item.spec.capabilities
            if action.name == item.action
        ]
        return self._alternatives[key]

    def _failed_tools(self) -> set[str]:
        return {str(attempt["tool_id"]) for attempt in self._context.failed_attempts}


# ---- other tools for the same job


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeTool:
    spec: ToolSpec
    action: str
    score: float
    """0 to 1; it orders alternatives."""
    fits: bool = False
    """Whether it does the same job with the same arguments, as far as its tags, words and parameters say."""


def alternative_tools(
    failed_tool: Tool | ToolSpec,
    capability: ToolCapability,
    parameters: Mapping[str, Any],
    tools: Iterable[ToolSpec],
    *,
    failed: Collection[str],
    task: str,
    limit: int = 5,
) -> list[AlternativeTool]:
    """Return tools that may do what one could not, best first, without disabled tools and the tools in `failed`.

    A read-only action is never replaced by a destructive one.
    """
    spec = failed_tool.spec if isinstance(failed_tool, Tool) else failed_tool
    scorer = _AlternativeScorer(spec, capability, parameters, task)
    excluded = {spec.tool_id, *failed}
    best = []
    for other in tools:
        if other.enabled and other.tool_id not in excluded:
            scored = [item for action in other.capabilities if (item := scorer.score(other, action)) is not None]
            best += sorted(scored, key=lambda item: -item.score)[:1]
    return sorted(best, key=lambda item: -item.score)[:limit]


class _AlternativeScorer:
    """Scores actions of other tools by how well they could replace one call."""

    def __init__(self, spec: ToolSpec, capability: ToolCapability, parameters: Mapping[str, Any], task: str) -> None:
        self._tags = {tag.casefold() for tag in spec.tags}
        self._categories = _specific_categories(spec, capability)
        self._read_only = spec.effects_of(capability).read_only
        self._parameters = parameters
        self._task = set(extract_terms(task))
        self._action = set(extract_terms(f"{capability.name} {capability.description or spec.description}"))
        self._parameter_words = set(extract_terms(" ".join(parameters).replace("_", " ")))
        """That two actions take a city says nothing about what they do with it."""

    def score(self, other: ToolSpec, action: ToolCapability) -> AlternativeTool | None:
        if self._read_only and other.effects_of(action).destructive:
            return None
        tags = [tag for tag in other.tags if tag.casefold() in self._tags]
        category = _specific_categories(other, action) & self._categories
        words = _cached_terms(other.name, other.description, action.name, action.description, *other.tags)
        task_words, action_words = self._task & words, self._action & words
        related = (
            0.3 * (len(tags) / len(self._tags) if tags else 0.0)
            + (0.1 if category else 0.0)
            + 0.25 * (min(1.0, len(task_words) / min(len(self._task), _FULL_TASK_MATCH)) if task_words else 0.0)
            + 0.15 * (len(action_words) / len(self._action) if action_words else 0.0)
        )
        if related < _MIN_RELATION:  # fitting arguments alone do not make a tool an alternative
            return None
        fit = _rate_argument_fit(action, self._parameters)
        score = round(related + 0.2 * fit, 3)
        shared = action_words - self._parameter_words
        # With the same arguments, a tag or a word is enough; where an argument has another name, most words.
        fits = (fit == 1.0 and bool(tags or shared)) or (fit == _RENAMED_FIT and 2 * len(shared) > len(self._action))
        return AlternativeTool(spec=other, action=action.name, score=score, fits=fits)


@lru_cache(maxsize=10_000)
def _cached_terms(*texts: str) -> frozenset[str]:
    """Find the terms of texts once: all tools are scored again for each call that fails."""
    return frozenset(extract_terms(" ".join(texts)))


def _specific_categories(spec: ToolSpec, capability: ToolCapability) -> set[str]:
    category = spec.category.value if isinstance(spec.category, ToolCategory) else spec.category
    return {category, capability.category} - _UNSPECIFIC_CATEGORIES


def _rate_argument_fit(action: ToolCapability, parameters: Mapping[str, Any]) -> float:
    """Rate how well an action accepts the arguments, from 0 to 1; 0.5 for one that needs none."""
    schema = resolve_schema(action.schema, action.schema)
    properties = properties_of(schema)
    accepted = [name for name in parameters if _accepts_type_of(properties.get(name), parameters[name], action)]
    missing = [name for name in required_names(schema) if name not in accepted]
    if not missing:
        return 1.0 if accepted else 0.5
    unused = [value for name, value in parameters.items() if name not in accepted]
    if len(missing) == 1 and sum(_accepts_type_of(properties.get(missing[0]), value, action) for value in unused) == 1:
        return _RENAMED_FIT
    return 0.0


def _accepts_type_of(schema: Any, value: Any, action: ToolCapability) -> bool:
    """Return whether a parameter accepts a value of this type; False for a parameter that does not exist."""
    if schema is None:
        return False
    types = {
        kind
        for part in list_branches(resolve_schema(schema, action.schema), action.schema)
        for kind in allowed_types(part)
    }
    kind = _JSON_TYPES.get(type(value), "null")
    return not types or kind in types or (kind == "integer" and "number" in types)
