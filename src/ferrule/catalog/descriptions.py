"""Descriptions of the tools of a registry for models: as text, as schemas, or within a budget of tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from ferrule.catalog.model_schemas import NamedAction, merge_schemas
from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.search import RegistryIndex
from ferrule.core.content import as_text, copy_json
from ferrule.core.json_schema import allowed_types, properties_of, read_list_keyword, required_names, resolve_schema
from ferrule.core.names import model_name
from ferrule.core.patterns import lazy_pattern
from ferrule.core.schema_limits import BoundedValidator
from ferrule.core.spec import JsonSchema, Tool, ToolCapability, ToolSpec
from ferrule.errors import SpecError
from ferrule.texts.description_labels import DescriptionTexts, description_texts
from ferrule.texts.language import contains_chinese
from ferrule.texts.shorten import estimate_tokens, first_sentence, single_line

SEPARATOR = "\n" + "=" * 80 + "\n"
_SEPARATOR_TOKENS = estimate_tokens(SEPARATOR)
_MAX_OTHER_TOOLS = 10
_MAX_CHOICES = 12
_MAX_DEPTH = 4


class DescriptionEngine:
    """Describes the tools of a registry. Tools are always in the same order, by their names for models.

    Schemas are built once and copied for each caller, which may change its copy.
    """

    def __init__(self, registry: ToolRegistry, index: RegistryIndex | None = None, *, language: str = "en") -> None:
        self.tool_registry = registry
        self._index = index or RegistryIndex(registry)
        self._texts = description_texts(language)
        self._actions: WeakKeyDictionary[Tool, tuple[NamedAction, ...]] = WeakKeyDictionary()

    # As text

    async def generate_tool_description_for_agent(self, tool_id: str, *, language: str | None = None) -> str:
        """Describe a tool completely, in the language of the engine unless another one is given."""
        return self.describe(self.tool_registry.find_tool(tool_id).spec, language=language)

    async def generate_all_tools_description_for_agent(self, *, language: str | None = None) -> str:
        """Describe all tools. For more than a few dozen, use `describe_within_budget`."""
        return self.describe_all((tool.spec for tool in self._tools), language=language)

    def describe(self, spec: ToolSpec, *, language: str | None = None) -> str:
        """Describe a tool completely. The spec may be a part of a registered one."""
        return describe_in_full(spec, self._texts if language is None else description_texts(language))

    def describe_all(self, specs: Iterable[ToolSpec], *, language: str | None = None) -> str:
        ordered = sorted(specs, key=lambda spec: model_name(spec.tool_id))
        return SEPARATOR.join(self.describe(spec, language=language) for spec in ordered)

    async def get_tool_usage_examples(self, tool_id: str) -> list[dict[str, Any]]:
        """Return calls `{"tool_id": …, "action": …, "parameters": …}`, from the tool's author or generated."""
        return make_usage_examples(self.tool_registry.find_tool(tool_id).spec)

    def describe_within_budget(self, budget_tokens: int, core: Sequence[str] = (), query: str | None = None) -> str:
        """Describe all tools if the budget allows; otherwise the core ones, ten others, and the number of the rest.

        The core tools are always described in full. With a query, the others are those that match it best, in full
        where there is room; without one they are the first by name, one line each.
        """
        tools, texts = self._tools, self._texts
        complete_texts, remaining = list[str](), budget_tokens
        for tool in tools:
            complete_texts.append(self.describe(tool.spec))
            remaining -= estimate_tokens(complete_texts[-1] + SEPARATOR)
            if remaining < 0:
                break
        else:
            return SEPARATOR.join(complete_texts)
        core_tools = list(dict.fromkeys(self.tool_registry.find_tool(name) for name in core))
        in_full, lines = [self.describe(tool.spec) for tool in core_tools], list[str]()
        # Room for the end is reserved from the beginning.
        remaining = budget_tokens - estimate_tokens(f"{texts.other_tools}:\n{texts.more}") - 2 * _SEPARATOR_TOKENS
        remaining -= sum(estimate_tokens(text) + _SEPARATOR_TOKENS for text in in_full)
        # Twice as many as shown: some may be core tools, some may not be the first candidate of their id.
        hits = self._index.search(query, 2 * _MAX_OTHER_TOOLS) if query else []
        relevant = [hit.tool for hit in hits if self.tool_registry.get(hit.tool.id) is hit.tool]
        others = [tool for tool in relevant or tools if tool not in core_tools]
        for tool in others[:_MAX_OTHER_TOOLS]:
            complete, line = self.describe(tool.spec), describe_in_one_line(tool.spec, texts)
            if relevant and (cost := estimate_tokens(complete) + _SEPARATOR_TOKENS) <= remaining:
                in_full.append(complete)
            elif (cost := estimate_tokens(line + "\n")) <= remaining:
                lines.append(line)
            else:
                break
            remaining -= cost
        end = [f"{texts.other_tools}:", *lines] if lines else []
        if omitted := len(tools) - len(in_full) - len(lines):
            end.append(texts.more.format(count=omitted))
        return SEPARATOR.join([*in_full, *(["\n".join(end)] if end else [])])

    # As schemas

    def actions_by_name(self, tools: Iterable[Tool]) -> list[NamedAction]:
        """Return the actions of tools, sorted by name, so that the prompt cache of a model stays valid.

        Of several actions with one name, that of the tool with this id is used, else the first. The tools need not be
        those of the registry.
        """
        actions: dict[str, NamedAction] = {}
        for tool in tools:
            named = self._actions.get(tool)
            if named is None:
                spec = tool.spec
                named = tuple(NamedAction(name=spec.model_name(c), spec=spec, capability=c) for c in spec.capabilities)
                self._actions[tool] = named
            for action in named:
                if action.name not in actions or action.name == tool.id:
                    actions[action.name] = action
        return [actions[name] for name in sorted(actions)]

    def openai_schemas(self) -> list[dict[str, Any]]:
        """Return every action in the format of OpenAI's API and compatible ones."""
        return [copy_json(action.openai_schema) for action in self.actions_by_name(self._tools)]

    def anthropic_schemas(self) -> list[dict[str, Any]]:
        """Return every action in the format of Anthropic's API."""
        return [copy_json(action.anthropic_schema) for action in self.actions_by_name(self._tools)]

    def mcp_schemas(self) -> list[dict[str, Any]]:
        """Return every action in the format of an MCP server's list."""
        return [copy_json(action.mcp_schema) for action in self.actions_by_name(self._tools)]

    @property
    def _tools(self) -> list[Tool]:
        return self.tool_registry.snapshot().callable_tools


# The text of one tool


def describe_in_full(spec: ToolSpec, texts: DescriptionTexts) -> str:
    """Describe a tool completely: what it is, its actions with parameters and examples, when to use it."""
    description = spec.description or _description_of_only_action(spec)
    tags = ", ".join(spec.tags) or texts.none
    lines = [
        f"{texts.tool}: {spec.name} (ID: {spec.tool_id})",
        f"{texts.type}: {spec.tool_type.value}",
        f"{texts.description}: {_indent_lines(description, '  ') or texts.none}",
        f"{texts.tags}: {tags}",
        "",
        f"{texts.actions}:",
        *(_describe_action(spec, capability, texts) for capability in spec.capabilities),
    ]
    if not spec.capabilities:
        lines.append(f"  {texts.none}")
    if description:
        purpose = first_sentence(description)
        if contains_chinese(description) or not contains_chinese(texts.purpose):  # no English clause in Chinese
            clause = purpose.rstrip(".。!！ ")
            is_word = len(clause) > 1 and not clause[1].isupper()
            purpose = texts.purpose.format(does=clause[:1].lower() + clause[1:] if is_word else clause)
        lines += ["", f"{texts.when_to_use}: {purpose}"]
    return "\n".join(lines)


def describe_in_one_line(spec: ToolSpec, texts: DescriptionTexts) -> str:
    """Return a tool's name and the first sentence of its description."""
    sentence = first_sentence(spec.description or _description_of_only_action(spec))
    count = len(spec.capabilities)
    actions = texts.actions_of.format(count=count) if count > 1 else ""
    return f"- {spec.tool_id}{actions}" + (f": {sentence}" if sentence else "")


def make_usage_examples(spec: ToolSpec) -> list[dict[str, Any]]:
    """Return calls of a tool that would be valid."""
    return [
        {"tool_id": spec.tool_id, "action": capability.name, "parameters": example}
        for capability in spec.capabilities
        for example in get_or_generate_examples(capability)
    ]


def get_or_generate_examples(capability: ToolCapability) -> list[dict[str, Any]]:
    """Return the author's examples of arguments; if there are none, a generated one."""
    if capability.examples:
        return [copy_json(example) for example in capability.examples]
    example = generate_example(capability.schema_or_empty)
    return [] if example is None else [example]


def _describe_action(spec: ToolSpec, capability: ToolCapability, texts: DescriptionTexts) -> str:
    description = "" if capability.description == spec.description else _indent_lines(capability.description, "    ")
    examples = get_or_generate_examples(capability)
    return "\n".join(
        (
            f"  - {capability.name}" + (f": {description}" if description else ""),
            f"    {texts.parameters}: {_describe_parameters(capability.schema_or_empty, texts)}",
            f"    {texts.example}: {as_text(examples[0]) if examples else 'N/A'}",
        )
    )


def _describe_parameters(schema: JsonSchema, texts: DescriptionTexts) -> str:
    whole = resolve_schema(schema, schema)
    required = required_names(whole)
    parameters = []
    for name, inner in properties_of(whole).items():
        parameter = resolve_schema(inner, schema)
        details = [_describe_type(parameter, schema), texts.required if name in required else texts.optional]
        if parameter.get("default") is not None:
            details[-1] = texts.default.format(value=as_text(parameter["default"]))
        description = single_line(str(parameter.get("description") or ""))
        parameters.append(f"{name} ({', '.join(filter(None, details))})" + (f": {description}" if description else ""))
    return "; ".join(parameters) or texts.none


def _describe_type(schema: Any, root: JsonSchema, depth: int = 0) -> str:
    schema = resolve_schema(schema, root) if depth < _MAX_DEPTH else {}
    choices = read_list_keyword("enum", schema) or ([schema["const"]] if "const" in schema else [])
    if choices:
        first = " | ".join(as_text(choice) for choice in choices[:_MAX_CHOICES])
        return first if len(choices) <= _MAX_CHOICES else f"{first} | …"
    options = [option for keyword in ("anyOf", "oneOf") for option in read_list_keyword(keyword, schema)]
    types = [_describe_type(option, root, depth + 1) for option in options[:_MAX_CHOICES]]
    if any(types):
        more = ["…"] if len(options) > _MAX_CHOICES else []
        return " | ".join(dict.fromkeys([*filter(None, types), *more]))
    item = _describe_type(schema.get("items"), root, depth + 1) if allowed_types(schema) == ["array"] else ""
    return f"array of {item}" if item else " | ".join(allowed_types(schema))


def _description_of_only_action(spec: ToolSpec) -> str:
    return spec.capabilities[0].description if len(spec.capabilities) == 1 else ""


def _indent_lines(text: str, indent: str) -> str:
    return f"\n{indent}".join(text.strip().splitlines())


# Examples of arguments for a tool whose author gave none: from the schema its constant, first choice, default or
# example, otherwise a typical value for type, format or name within the bounds. The result is validated: no example
# is better than a wrong one, where a pattern cannot be guessed.

_MAX_EXAMPLE_DEPTH = 8
_MAX_STEPS = 1_000
"""Schemas that one example is made from: a few lines of references can expand to billions."""
_MAX_TEXT_LENGTH = 200
_BY_FORMAT = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "name@example.com",
    "idn-email": "name@example.com",
    "uri": "https://example.com",
    "iri": "https://example.com",
    "url": "https://example.com",
    "uri-reference": "/path",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "3f2b8c1e-5d4a-4e6f-9a7b-0c1d2e3f4a5b",
    "json": "{}",
    "regex": ".*",
    "json-pointer": "/name",
    "byte": "aGVsbG8=",
}
_BY_NAME = (
    (lazy_pattern(r"(^|_)(url|uri|link|href)$"), "https://example.com"),
    (lazy_pattern(r"e?mail"), "name@example.com"),
    (lazy_pattern(r"(^|_)(file|path|filename|file_?path)$"), "example.txt"),
    (lazy_pattern(r"(^|_)date$"), "2025-01-31"),
    (lazy_pattern(r"timezone|time_zone"), "Europe/Paris"),
    (lazy_pattern(r"(^|_)(expression|formula)$"), "1 + 1"),
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_GUESSES = tuple("example Example abc ABC a A 1 12 123 1234 12345 0001 #aabbcc a-b A1".split())
"""Texts that are tried for a pattern."""


class _NoExample(Exception):
    """No value could be generated."""


def generate_example(schema: JsonSchema) -> JsonSchema | None:
    """Return arguments with the required parameters, or with the first one where none is required.

    Returns None if no valid arguments could be generated.
    """
    try:
        is_valid = BoundedValidator(schema).is_valid
        example = _ExampleMaker(schema).make(schema, "")
    except (ValueError, SpecError, ArithmeticError, _NoExample):  # ValueError: not a valid schema
        return None
    if example == {} and (properties := properties_of(resolve_schema(schema, schema))):
        name, inner = next(iter(properties.items()))
        with suppress(_NoExample):
            first = {name: _ExampleMaker(schema).make(inner, name, 1)}
            example = first if is_valid(first) else example
    return example if is_valid(example) else None


class _ExampleMaker:
    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._steps = _MAX_STEPS

    def make(self, schema: Any, name: str, depth: int = 0) -> Any:
        self._count_step()
        if schema is True:
            return "example"
        schema = self._merge_options(schema, depth)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        if schema.get("default") is not None and depth:
            return schema["default"]
        if examples := read_list_keyword("examples", schema):
            return examples[0]
        match _guess_type(schema):
            case "object":
                properties, others = properties_of(schema), schema.get("additionalProperties", True)
                names = required_names(schema)
                return {name: self.make(properties.get(name, others), name, depth + 1) for name in names}
            case "array":
                return self._make_array(schema, name, depth)
            case "integer" | "number":
                return _make_number(schema)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return _make_string(schema, name)

    def _merge_options(self, schema: Any, depth: int) -> JsonSchema:
        """Return the schema with the parts of allOf and the first option of anyOf and oneOf merged into it."""
        self._count_step()
        if depth > _MAX_EXAMPLE_DEPTH or not isinstance(schema, dict):
            raise _NoExample
        schema = resolve_schema(schema, self._root)
        parts = read_list_keyword("allOf", schema)
        for keyword in ("anyOf", "oneOf"):
            options = [resolve_schema(option, self._root) for option in read_list_keyword(keyword, schema)]
            parts += [option for option in options if allowed_types(option) != ["null"]][:1] or options[:1]
        merged = {keyword: value for keyword, value in schema.items() if keyword not in ("allOf", "anyOf", "oneOf")}
        for part in parts:
            merged = merge_schemas(self._merge_options(part, depth + 1), merged)
        return merged

    def _count_step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise _NoExample

    def _make_array(self, schema: JsonSchema, name: str, depth: int) -> list[Any]:
        items = schema.get("items", True)
        if prefix := read_list_keyword("prefixItems", schema):
            return [self.make(item, name, depth + 1) for item in prefix]
        try:
            example = [self.make(items, name, depth + 1) for _ in range(int(schema.get("minItems", 1)) or 1)]
        except _NoExample:
            if schema.get("minItems"):
                raise
            return []
        return example[: schema.get("maxItems")]


def _guess_type(schema: JsonSchema) -> str:
    types = allowed_types(schema)
    if types:
        return next((kind for kind in types if kind != "null"), "null")
    if "properties" in schema or "required" in schema or "additionalProperties" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


def _make_number(schema: JsonSchema) -> int | float:
    import jsonschema_rs

    step = schema.get("multipleOf", 1)
    bounds = [schema[keyword] for keyword in _BOUNDS if type(schema.get(keyword)) in (int, float)]
    candidates: list[int | float] = [1, 10, 0, step]
    for bound in bounds:
        candidates += [bound, bound + step, bound - step, math.ceil(bound / step) * step]
    if bounds:
        candidates.append((min(bounds) + max(bounds)) / 2)
    limits = {keyword: schema[keyword] for keyword in ("type", "multipleOf", *_BOUNDS) if keyword in schema}
    example = next((number for number in candidates if jsonschema_rs.is_valid(limits, number)), None)
    if example is None:
        raise _NoExample
    return int(example) if float(example).is_integer() else example


def _make_string(schema: JsonSchema, name: str) -> str:
    typical = _BY_FORMAT.get(str(schema.get("format")))
    if typical is None:
        typical = next((value for pattern, value in _BY_NAME if pattern.search(name.lower())), "example")
    if "pattern" in schema:
        # Not with `re`: a pattern from outside can make it run without end.
        matches = BoundedValidator({"pattern": schema["pattern"]}).is_valid
        guess = next(filter(matches, (typical, *_GUESSES, *_BY_FORMAT.values())), None)
        if guess is None:
            raise _NoExample
        return guess
    min_length, max_length = int(schema.get("minLength", 0)), int(schema.get("maxLength", _MAX_TEXT_LENGTH))
    if min_length > _MAX_TEXT_LENGTH:
        raise _NoExample
    return (typical + "x" * (min_length - len(typical)))[:max_length]
