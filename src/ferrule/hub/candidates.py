"""Which tools can do a job: all of one name, or all with one tag, whatever source they come from; and what they return.

Candidates may have other names for the same arguments; `map_arguments` gives each one its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from ferrule.catalog.registry import RegistrySnapshot, find_action
from ferrule.catalog.tags import ActionKind, infer_kind
from ferrule.core.call import Progress, ToolExecutionContext, ToolExecutionResult, ValidationResult
from ferrule.core.content import Text
from ferrule.core.json_schema import allowed_types, list_branches, properties_of, resolve_schema
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import NO_EFFECTS, Effects, JsonSchema, Tool, ToolCapability, ToolType
from ferrule.errors import (
    EXECUTION_ERROR,
    VALIDATION_ERROR,
    InvalidArguments,
    NeedsApproval,
    SpecError,
    ToolNotFound,
)
from ferrule.kinds.function.tools import tool_of
from ferrule.policy.policy import Permissions

CandidateKey: TypeAlias = tuple[str, str, str]
RequestKey: TypeAlias = tuple[str | None, str | None, str | None]

_WORD = lazy_pattern(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_A-Za-z]+")

_DEFAULTS_OF_MCP: Final = Effects(destructive=True, open_world=True)
"""What actions of MCP servers have that declare nothing, or are not trusted."""


@dataclass(frozen=True, slots=True)
class ToolCandidate:
    """One action of one tool that can do the job.

    A candidate made by hand may have anything as its tool that can be registered; `ToolHub.register` adds it.
    """

    name: str
    source: str
    tool: Tool
    priority: int
    """Of its source; the lowest goes first."""
    meta: dict[str, Any]
    """`capabilities`: its tags."""
    capability: ToolCapability = None  # type: ignore[assignment]  # of a tool with one action it need not be named
    parameter_names: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    inferred: ActionKind | None = field(default=None, repr=False, compare=False)
    """What it does by its name and tags, where it declares nothing."""

    def __post_init__(self) -> None:
        if isinstance(self.tool, Tool) and self.capability is not None:
            return
        tool = self.tool if isinstance(self.tool, Tool) else _make_candidate_tool(self)
        schema = find_action(tool, None).schema
        object.__setattr__(self, "tool", tool)
        object.__setattr__(self, "capability", find_action(tool, None))
        object.__setattr__(self, "parameter_names", frozenset(properties_of(resolve_schema(schema, schema))))

    @classmethod
    def of(cls, tool: Tool, capability: ToolCapability) -> ToolCandidate:
        schema = capability.schema
        return cls(
            name=tool.id,
            source=tool.source,
            tool=tool,
            priority=tool.priority,
            meta={"capabilities": _tags_of(tool, capability)},
            capability=capability,
            parameter_names=frozenset(properties_of(resolve_schema(schema, schema))),
        )

    @property
    def tags(self) -> list[str]:
        """Return what the candidate can do: the tags of its action, or else of its tool."""
        tags: list[str] = self.meta.get("capabilities") or []
        return tags

    @property
    def key(self) -> CandidateKey:
        """Return what identifies the candidate, also when its tool is loaded again."""
        return self.source, self.name, self.capability.name

    @property
    def label(self) -> str:
        """Return its name for messages: `search (tools)`, `web.search (mcps)`."""
        action = "" if len(self.tool.spec.capabilities) == 1 else f".{self.capability.name}"
        return f"{self.name}{action} ({self.source})"

    @property
    def effects(self) -> Effects:
        effects = self.tool.spec.effects_of(self.capability)
        if self.inferred in ("reads", "computes"):
            return replace(effects, read_only=True, destructive=False)
        return effects

    def with_inferred_effects(self) -> ToolCandidate:
        """Return the candidate; if its tool declares no effects, with those that its name and tags suggest.

        Such a candidate may run beside others of the same name. For policies, it may still change anything.
        """
        spec = self.tool.spec
        is_from_server = spec.tool_type is ToolType.MCP_SERVER and self.effects == _DEFAULTS_OF_MCP
        if self.effects is not NO_EFFECTS and not is_from_server:
            return self
        return replace(self, inferred=infer_kind((self.name, self.capability.name), self.tags))

    @property
    def may_race(self) -> bool:
        """Return whether this candidate may be called beside another without harm."""
        return self.effects.repeatable and not self.effects.destructive


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedCandidate:
    """A candidate that was not called, or was stopped, and why."""

    tool: Tool
    label: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        return {"candidate": self.label, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateMatches:
    """The result of a search for candidates."""

    candidates: Sequence[ToolCandidate] = ()
    skipped: Sequence[SkippedCandidate] = ()
    is_partial: bool = field(init=False)
    """Nothing was found, or a tool has no such action: an MCP server that is being listed may still bring it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_partial", not self.candidates or bool(self.skipped))


class CandidateIndex:
    """The callable tools of one snapshot of the registry, by every name and tag they can be called with."""

    def __init__(self, snapshot: RegistrySnapshot) -> None:
        self.snapshot = snapshot
        self._tools: dict[str, list[Tool]] = {}
        self._actions: dict[str, list[tuple[Tool, ToolCapability]]] = {}
        self._by_tag: dict[str, list[Tool]] = {}
        self._matches: dict[tuple[str, str | None], CandidateMatches] = {}
        for tool in snapshot:
            if snapshot.is_callable(tool):
                self._add_tool(tool)

    def by_name(self, name: str, action: str | None) -> CandidateMatches:
        """Find tools of this name, and without an action also actions of this name."""
        matches = self._matches.get((name, action))
        if matches is None:
            matches = self._find_by_name(name, action)
            if matches.candidates:  # unknown names are not cached: their number has no limit
                self._matches[name, action] = matches
        return matches

    def by_tag(self, tag: str) -> CandidateMatches:
        """Find tools with this tag; of a tool with several actions, the actions that the tag is about."""
        candidates, skipped = [], []
        for tool in self._by_tag.get(tag.casefold(), ()):
            actions = _find_actions_for_tag(tool, tag.casefold())
            candidates += [ToolCandidate.of(tool, action) for action in actions]
            if not actions:
                reason = f"None of its actions is about {tag!r}. {tool.spec.describe_actions()}"
                skipped.append(SkippedCandidate(tool=tool, label=f"{tool.id} ({tool.source})", reason=reason))
        return CandidateMatches(candidates=candidates, skipped=skipped)

    def suggest_tags(self, tag: str, permissions: Permissions) -> str:
        permitted = [tag for tag, tools in self._by_tag.items() if any(map(permissions.may_use, tools))]
        return did_you_mean(tag, permitted)

    def _find_by_name(self, name: str, action: str | None) -> CandidateMatches:
        candidates, skipped = [], []
        for tool in self._tools.get(name, ()):
            same_name = name if tool.spec.capability() is None and tool.spec.capability(name) else None
            try:
                candidates.append(ToolCandidate.of(tool, find_action(tool, action or same_name)))
            except ToolNotFound as error:
                skipped.append(SkippedCandidate(tool=tool, label=f"{tool.id} ({tool.source})", reason=str(error)))
        if action is None:
            tools = {candidate.tool for candidate in candidates}
            candidates += [ToolCandidate.of(t, c) for t, c in self._actions.get(name, ()) if t not in tools]
        if not candidates and self.snapshot.may_contain(name):
            # The registry understands more than exact names, such as `tool__action` in any script.
            with suppress(ToolNotFound):
                candidates.append(ToolCandidate.of(*self.snapshot.find(name, action)))
        return CandidateMatches(candidates=candidates, skipped=skipped)

    def _add_tool(self, tool: Tool) -> None:
        spec = tool.spec
        for name in {spec.tool_id, spec.name}:
            self._tools.setdefault(name, []).append(tool)
        for tag in {tag.casefold() for tags in (spec.tags, *(c.tags for c in spec.capabilities)) for tag in tags}:
            self._by_tag.setdefault(tag, []).append(tool)
        for capability in spec.capabilities:
            for name in {capability.name, spec.model_name(capability)}:
                self._actions.setdefault(name, []).append((tool, capability))


def _find_actions_for_tag(tool: Tool, tag: str) -> list[ToolCapability]:
    """Return the action called like the tag, else the actions with the tag, else one of its category, else one with the
    tag as a word of its name.
    """
    actions = tool.spec.capabilities
    if len(actions) == 1:
        return list(actions)
    by_name = [action for action in actions if action.name.casefold() == tag]
    by_tag = [action for action in actions if tag in map(str.casefold, action.tags)]
    by_category = [action for action in actions if action.category.casefold() == tag]
    by_word = [action for action in actions if tag in _split_words(action.name)]
    return by_name or by_tag or by_category[:1] or by_word[:1]


def _make_candidate_tool(candidate: ToolCandidate) -> Tool:
    """Make a tool of whatever a candidate made by hand has, under the candidate's name, source and tags."""
    tool = tool_of(candidate.tool)
    tags = [*(candidate.meta.get("capabilities") or ()), *tool.spec.tags]
    spec = replace(tool.spec, tool_id=candidate.name, name=candidate.name, tags=list(dict.fromkeys(tags)))
    return replace(tool, spec=spec, source=candidate.source)


def _tags_of(tool: Tool, capability: ToolCapability) -> list[str]:
    if not capability.tags:
        return list(tool.spec.tags)
    is_only = len(tool.spec.capabilities) == 1
    return list(dict.fromkeys([*capability.tags, *(tool.spec.tags if is_only else ())]))


def _split_words(name: str) -> set[str]:
    words: Iterable[str] = _WORD.findall(name)
    return {word.casefold() for word in words}


# Arguments


def map_arguments(capability: ToolCapability, params: Any, validate: Callable[[Any], ValidationResult]) -> Any:
    """Return the arguments under the action's own names: unchanged, else without the names that the action does not
    have, else with the only text among them as the only text that it requires. A text alone is the only text that it
    takes.

    InvalidArguments says why none of these is valid.
    """
    try:
        checked = validate(params)
    except SpecError as error:
        raise InvalidArguments(str(error)) from None
    if checked.is_valid:
        return params
    guesses: Iterable[dict[str, Any]] = ()
    if isinstance(params, dict):
        guesses = _guess_mappings(capability, params)
    elif isinstance(params, str) and (name := _only_text_parameter(capability)) is not None:
        guesses = [{name: params}]
    for mapped in guesses:
        if validate(mapped).is_valid:
            return mapped
    raise InvalidArguments(
        f"The arguments do not match the parameters of {capability.name!r}: {' '.join(map(str, checked.errors))}"
    )


def _guess_mappings(capability: ToolCapability, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield other assignments of the arguments to parameters, the most likely first."""
    properties = properties_of(resolve_schema(capability.schema, capability.schema))
    same_names = {name: value for name, value in params.items() if name in properties}
    yield same_names
    required = _required_text_parameters(capability)
    texts = [name for name, value in params.items() if isinstance(value, str)]
    # A text that has a parameter of its name stays there, and no text becomes a secret that was not passed as one.
    is_only = len(required) == len(texts) == 1
    if is_only and texts[0] not in same_names and required[0] not in capability.secret_names:
        kinds = [[words for words in _TEXT_KINDS if words & _split_words(name)] for name in (texts[0], required[0])]
        if kinds[0] == kinds[1]:
            yield {**same_names, required[0]: params[texts[0]]}


def _required_text_parameters(capability: ToolCapability) -> list[str]:
    root = capability.schema
    schema = resolve_schema(root, root)
    properties = properties_of(schema)
    return [name for name in schema.get("required") or () if _is_text_schema(properties.get(name), root)]


def _only_text_parameter(capability: ToolCapability) -> str | None:
    """Return the one text that an action requires or, if it requires nothing, the one that it takes."""
    names = _required_text_parameters(capability)
    if not names:
        properties = properties_of(resolve_schema(capability.schema, capability.schema))
        names = [name for name, schema in properties.items() if _is_text_schema(schema, capability.schema)]
    return names[0] if len(names) == 1 and names[0] not in capability.secret_names else None


def _is_text_schema(schema: Any, root: JsonSchema) -> bool:
    kinds = {kind for branch in list_branches(resolve_schema(schema, root), root) for kind in allowed_types(branch)}
    return kinds - {"null"} == {"string"}


_TEXT_KINDS: Final = (
    frozenset({"url", "uri", "link", "href", "address"}),
    frozenset({"path", "file", "filename", "directory", "folder"}),
    frozenset({"selector", "xpath"}),
    frozenset({"sql"}),
    frozenset({"code", "script", "command"}),
)
"""Names of parameters whose texts are of one kind: a text of another kind cannot be used for them."""


def accepts_arguments(
    candidate: ToolCandidate, params: Mapping[str, Any] | str, mapped: Mapping[str, Any], needed: Collection[str]
) -> bool:
    """Return whether a candidate has parameters for all arguments that are needed, or else for any."""
    if isinstance(params, str):
        return params in mapped.values()
    names = candidate.parameter_names
    is_open = candidate.capability.schema_or_empty.get("additionalProperties") is True
    values = [value for name, value in mapped.items() if is_open or name in names]
    important = [params[name] for name in needed if name in params]
    return all(value in values for value in important) and (bool(values) or not params)


# Calls of candidates, and the one result that is made of them


@dataclass(slots=True, kw_only=True, eq=False)
class CandidateCall:
    """The call of one candidate, with the arguments under the candidate's own names."""

    candidate: ToolCandidate
    params: Any
    result: ToolExecutionResult = field(init=False)
    """Set when the call has ended."""

    @property
    def is_answer(self) -> bool:
        """Return whether the call succeeded with a result that is not empty."""
        return self.result.is_success and not is_empty(self.result)

    @property
    def is_final(self) -> bool:
        """Return whether the job is done: answered, or an effect took place, for which an empty result is enough."""
        return self.is_answer or (self.result.is_success and not self.candidate.effects.read_only)

    @property
    def needs_approval(self) -> bool:
        """Return whether the call waits for a person to agree."""
        return self.result.metadata.get("advice") == NeedsApproval.advice


@dataclass(slots=True, kw_only=True)
class HubRequest:
    """One job, from the name or tag it was requested by to its result."""

    name: str
    action: str | None = None
    tag: str | None = None
    """None when the job was requested by name."""
    params: Any
    """A dictionary, unless the caller passed something else."""
    context: ToolExecutionContext | None
    timeout: float | None = None
    on_progress: Callable[[Progress], None] | None = None
    replacing: ToolCandidate | None = None
    """The candidate that could not do the job, if others are to do it instead."""
    skipped: list[SkippedCandidate] = field(default_factory=list)
    tools_needing_approval: frozenset[Tool] = frozenset()
    """The tools for which a person must be asked first."""
    candidate_tools: frozenset[Tool] = frozenset()
    inferred: Mapping[str, str] = field(default_factory=dict)
    """What candidates do that declare nothing, by label."""
    ended_calls: list[CandidateCall] = field(default_factory=list)
    """In the order in which they ended; calls that were stopped are not among them."""

    @property
    def key(self) -> RequestKey:
        """Return what all requests for the same job have in common."""
        return self.name if self.tag is None else None, self.action, self.tag

    def skip(self, candidate: ToolCandidate, reason: str) -> None:
        self.skipped.append(SkippedCandidate(tool=candidate.tool, label=candidate.label, reason=reason))

    def finish(self, result: ToolExecutionResult, *candidates: ToolCandidate) -> ToolExecutionResult:
        """Add metadata about the candidates to the engine's result, which is the result of this request."""
        metadata = source_metadata([candidate.source for candidate in candidates], synthesized=False)
        if result.is_success:
            metadata["answered_by"] = [candidate.label for candidate in candidates]
        result.metadata = {**result.metadata, **metadata, **self._candidate_metadata()}
        return result

    def combine_answers(
        self, answers: Sequence[CandidateCall], output: dict[str, Any], synthesis: str
    ) -> ToolExecutionResult:
        """Make the result of several candidates."""
        results = [answer.result for answer in answers]
        if any(result.output.get("untrusted") for result in results):  # still so after a model has rewritten it
            output = {**output, "untrusted": True}
        return ToolExecutionResult(
            is_success=True,
            tool_name=self.name,
            output=output,
            execution_time=max(result.execution_time for result in results),
            executed_at=min(result.executed_at for result in results),
            metadata={
                **source_metadata([answer.candidate.source for answer in answers], synthesized=True),
                "answered_by": [answer.candidate.label for answer in answers],
                "synthesis": synthesis,
                "call_ids": [result.call_id for result in results],
                **self._candidate_metadata(),
            },
            content=tuple(part for result in results for part in result.content),
        )

    def failed_result(self) -> ToolExecutionResult:
        """Make the result when every candidate failed, with all their errors. A result that needs approval is returned
        alone, because a person can resolve it.
        """
        pending = next((each for each in self.ended_calls if each.needs_approval), None)
        if pending is not None:
            return self.finish(pending.result, pending.candidate)
        if len(self.ended_calls) == 1 and not self.skipped:
            return self.finish(self.ended_calls[0].result, self.ended_calls[0].candidate)
        lines = [f"{each.candidate.label}: {each.result.error}" for each in self.ended_calls]
        lines += [f"{skipped.label} was skipped: {skipped.reason}" for skipped in self.skipped]
        types = {each.result.error_type for each in self.ended_calls} or {VALIDATION_ERROR}
        result = self.make_failure(
            f"No candidate for {self.name!r} could do it.\n" + "\n".join(lines),
            types.pop() if len(types) == 1 else EXECUTION_ERROR,
        )
        if any(each.result.metadata.get("untrusted") for each in self.ended_calls):
            result.metadata["untrusted"] = True
        return result

    def make_failure(self, error: str, error_type: str | None) -> ToolExecutionResult:
        """Make a result of all candidates that were called, or of none."""
        sources = source_metadata([each.candidate.source for each in self.ended_calls], synthesized=False)
        metadata = {**sources, **self._candidate_metadata()}
        return ToolExecutionResult(
            is_success=False, tool_name=self.name, error=error, error_type=error_type, metadata=metadata
        )

    def _candidate_metadata(self) -> dict[str, Any]:
        failures = [describe_failure(c.candidate, c.result) for c in self.ended_calls if not c.result.is_success]
        metadata: dict[str, Any] = {}
        if self.skipped:
            metadata["skipped"] = [skipped.to_dict() for skipped in self.skipped]
        if failures:
            metadata["failures"] = failures
        if self.inferred:
            metadata["inferred"] = {**self.inferred}
        return metadata


def describe_failure(candidate: ToolCandidate, result: ToolExecutionResult) -> dict[str, Any]:
    return {"candidate": candidate.label, "error": result.error, "error_type": result.error_type}


def source_metadata(sources: list[str], *, synthesized: bool) -> dict[str, Any]:
    return {
        "_meta": {
            "source": ", ".join(dict.fromkeys(sources)),
            "synthesized": synthesized,
            "source_count": len(sources),
            "sources": sources,
        }
    }


def hub_result_dict(result: ToolExecutionResult) -> dict[str, Any]:
    """Return a result of the hub as `{"success", "result", "error", "_meta"}`."""
    output: Any = result.output
    if set(result.output) == {"result"}:
        output = result.output["result"]
    return {
        "success": result.is_success,
        "result": output if result.is_success else None,
        "error": result.error,
        "_meta": result.metadata["_meta"],
    }


def is_empty(result: ToolExecutionResult) -> bool:
    """Return whether a success contains no information. Numbers and booleans always do."""
    if result.content:
        return all(isinstance(part, Text) and not part.text.strip() for part in result.content)
    return _is_empty_value(result.output)


def _is_empty_value(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, dict):
        return all(map(_is_empty_value, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_empty_value, value))
    return value is None
