"""One YAML document as a tool.

A module of its own, because its models import pydantic: only when a file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ferrule.core.spec import Effects, Limits, Tool, ToolCapability, ToolSpec
from ferrule.kinds.yaml.entry import ToolEntry, read_entry
from ferrule.kinds.yaml.models import ActionSection, EffectsSection, LimitsSection, ToolSection, validate_section
from ferrule.kinds.yaml.reader import Document, Place, describe_place
from ferrule.kinds.yaml.schema_notation import read_output_schema, read_parameters_schema


def read_tool(document: Document) -> Tool | None:
    """The tool of a document; None, with the problems in the document, when it is not valid."""
    section = validate_section(ToolSection, document.value, document)
    if not isinstance(document.value, dict):
        return None
    # Schemas and the entry are read even after a problem: all problems of the file are reported together.
    schemas = _read_schemas(document, document.value)
    entry: ToolEntry | None = None
    if document.value.get("entry") is not None:
        parameters = [name for parameters, _ in schemas for name in parameters["properties"]]
        entry = read_entry(document, document.value["entry"], parameters)
    if section is None or entry is None or document.errors:
        return None
    return _make_tool(document, section, schemas, entry)


def _read_schemas(document: Document, value: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Parameters and output of each action."""
    if value.get("actions") is None:
        return [_read_action_schemas(document, (), value)]
    for key in ("parameters", "output", "examples"):
        if value.get(key) is not None:
            hint = f"move {key} into the actions it belongs to"
            document.problem(f"{key} and actions exclude each other", (key,), hint)
    actions = value["actions"] if isinstance(value["actions"], list) else []
    if value["actions"] == []:
        document.problem("actions is empty", ("actions",), "describe an action, or leave actions out")
    numbered = [(index, action) for index, action in enumerate(actions) if isinstance(action, dict)]
    names: set[Any] = set()
    for index, action in numbered:
        name = str(action.get("name"))
        if name in names:
            where = f"actions[{index}]"
            document.problem(
                f"{where}: there are two actions {name!r}", ("actions", index, "name"), "rename one of them"
            )
        names.add(name)
    return [_read_action_schemas(document, ("actions", index), action) for index, action in numbered]


def _read_action_schemas(
    document: Document, place: Place, value: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    return (
        read_parameters_schema(document, (*place, "parameters"), value.get("parameters")),
        read_output_schema(document, (*place, "output"), value.get("output")),
    )


def _make_tool(
    document: Document,
    section: ToolSection,
    schemas: list[tuple[dict[str, Any], dict[str, Any] | None]],
    entry: ToolEntry,
) -> Tool | None:
    effects, limits = _merge_effects(document, (), section, Effects()), _merge_limits(section.limits, Limits())
    capabilities = []
    actions: Sequence[ToolSection | ActionSection] = section.actions or [section]
    for index, (action, (parameters, output)) in enumerate(zip(actions, schemas, strict=True)):
        capability = ToolCapability(
            name=action.name,
            description=action.description,
            parameters=parameters,
            examples=action.examples,
            category=section.category.value,
            output=output,
        )
        if isinstance(action, ActionSection):
            own_effects = _merge_effects(document, ("actions", index), action, effects) if action.effects else None
            own_limits = _merge_limits(action.limits, limits) if action.limits else None
            capability = replace(capability, effects=own_effects, limits=own_limits, price=action.price)
        capabilities.append(capability)
    if document.errors:
        return None
    metadata = section.metadata
    if entry.target is not None and entry.target.version is not None:
        # When the code changes, the tool has changed.
        metadata = {**metadata, "source_hash": entry.target.version.digest}
    spec = ToolSpec(
        tool_id=section.name,
        aliases=list(dict.fromkeys(section.aliases)),
        description=section.description,
        version=document.texts.get(("version",)) or str(section.version),
        category=section.category,
        subcategory=section.subcategory,
        priority=section.priority,
        dependencies=section.dependencies,
        tags=list(dict.fromkeys(section.tags)),
        enabled=section.enabled,
        metadata=metadata,
        capabilities=capabilities,
        effects=effects,
        limits=limits,
        price=section.price,
        tool_type=entry.tool_type,
        implementation_config=entry.config,
    )
    origin = f"{document.path}:{document.line(('name',))}"
    return Tool(spec=spec, handler=entry.handler, target=entry.target, origin=origin)


def _merge_effects(document: Document, place: Place, section: ToolSection | ActionSection, base: Effects) -> Effects:
    effects = replace(base, **_dump_explicit_values(section.effects))
    if effects.read_only and effects.destructive:
        where = (*place, "effects")
        message = f"{describe_place(where)}: read_only and destructive contradict each other"
        document.problem(message, (*where, "destructive"), "drop one of them")
    return effects


def _merge_limits(section: LimitsSection | None, base: Limits) -> Limits:
    return replace(base, **_dump_explicit_values(section))


def _dump_explicit_values(section: EffectsSection | LimitsSection | None) -> dict[str, Any]:
    return {} if section is None else section.model_dump(exclude_none=True)
