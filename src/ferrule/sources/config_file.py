"""Tools described in YAML files.

One document describes one tool; a file may hold several. All that is wrong with a file is found in one go, each
problem with its line and what to write instead. See docs/yaml-tools.md for the format.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

from ferrule.errors import LoadError, SetupError
from ferrule.sources.entry import read_entry
from ferrule.sources.folder import YAML_SUFFIXES, tool_files
from ferrule.sources.imported import ImportedTarget
from ferrule.sources.loaded import LoadedFile, LoadReport, digest, digest_of, load_or_report, report_of
from ferrule.sources.section import Section, section_at
from ferrule.sources.short_schema import output_schema, parameters_schema
from ferrule.sources.yaml_text import Document, read_content, read_documents
from ferrule.spec import Effects, Isolation, Limits, Tool, ToolCapability, ToolCategory, ToolSpec

_ACTION_KEYS: Final = ("name", "description", "parameters", "examples", "output", "effects", "limits")
_TOOL_KEYS: Final = (
    *("name", "aliases", "version", "description", "category", "tags", "parameters", "actions", "entry", "output"),
    *("effects", "limits", "examples", "enabled", "metadata", "subcategory", "priority", "dependencies"),
)
_EFFECT_FLAGS: Final = ("read_only", "idempotent", "destructive", "cacheable", "polling")


class ToolConfigLoader:
    """Loads the YAML files of a folder. A bad file is reported and never stops the others."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self.directory = None if directory is None else Path(directory)

    def load(self, directory: str | Path | None = None) -> LoadReport:
        folder = self.directory if directory is None else Path(directory)
        if folder is None:
            raise SetupError("which folder? Use ToolConfigLoader('tools') or loader.load('tools')")
        if not folder.is_dir():
            return LoadReport(errors=(LoadError("there is no such folder", path=folder),))
        return report_of((path, load_or_report(read_tool_file, path)) for path in tool_files(folder, YAML_SUFFIXES))

    def load_file(self, path: str | Path) -> LoadReport:
        return report_of([(Path(path), load_or_report(read_tool_file, Path(path)))])


def read_tool_file(path: Path) -> LoadedFile:
    """The tools of one YAML file, or what is wrong with it."""
    try:
        content = read_content(path)
        documents = read_documents(content, path)
        tools = [_tool(document) for document in documents]
    except LoadError as error:
        return LoadedFile(errors=(error,))
    errors = tuple(error for document in documents for error in document.errors)
    if errors:
        return LoadedFile(errors=tuple(sorted(errors, key=lambda error: error.line or 1)))
    found = [tool for tool in tools if tool is not None]
    made_from = {path: digest(content)}
    for tool in found:
        made_from |= _modules_of(tool, path)
    return LoadedFile(tools=tuple(found), made_from=made_from)


def _tool(document: Document) -> Tool | None:
    said = section_at(document, (), document.value)
    if said is None:
        return None
    said.allow(_TOOL_KEYS, "notes of your own may stand under metadata")
    name = said.required_text("name", "web_search") or "nameless"
    category = ToolCategory(said.choice("category", [each.value for each in ToolCategory], ToolCategory.CUSTOM.value))
    effects, limits = _effects(said, Effects()), _limits(said, Limits())
    capabilities = _capabilities(said, name, category, effects, limits)
    entry = read_entry(said, [parameter for each in capabilities for parameter in each.schema["properties"]])
    spec = ToolSpec(
        tool_id=name,
        aliases=list(dict.fromkeys(said.texts("aliases"))),
        description=said.text("description"),
        version=said.as_written("version", "1.0.0"),
        category=category,
        subcategory=said.text("subcategory", "general"),
        priority=said.whole("priority", 1),
        dependencies=said.texts("dependencies"),
        tags=list(dict.fromkeys(said.texts("tags"))),
        enabled=said.flag("enabled", True),
        metadata=said.mapping("metadata"),
        capabilities=capabilities,
        effects=effects,
        limits=limits,
        tool_type=entry.tool_type,
        implementation_config=entry.config,
    )
    if document.errors:
        return None
    if entry.target is not None and entry.target.version is not None:
        # When the code changes, the tool has changed.
        spec = replace(spec, metadata={**spec.metadata, "source_hash": entry.target.version.digest})
    origin = f"{document.path}:{document.line(('name',))}"
    return Tool(spec=spec, handler=entry.handler, target=entry.target, origin=origin)


def _capabilities(
    said: Section, name: str, category: ToolCategory, effects: Effects, limits: Limits
) -> list[ToolCapability]:
    if not said.has("actions"):
        return [_capability(said, name, category)]
    for key in ("parameters", "output", "examples"):
        if said.has(key):
            said.problem(f"{key} and actions do not go together", key, f"move {key} into the actions it belongs to")
    actions: dict[str, ToolCapability] = {}
    for action in said.sections("actions"):
        action.allow(_ACTION_KEYS)
        action_name = action.required_text("name", "search")
        if action_name in actions:
            action.problem(f"there are two actions {action_name!r}", "name", "rename one of them")
        capability = _capability(action, action_name, category)
        own_effects = _effects(action, effects) if action.has("effects") else None
        own_limits = _limits(action, limits) if action.has("limits") else None
        actions[action_name] = replace(capability, effects=own_effects, limits=own_limits)
    if not actions:
        said.problem("actions names no action", "actions", "describe one, or leave actions out")
    return list(actions.values())


def _capability(said: Section, name: str, category: ToolCategory) -> ToolCapability:
    return ToolCapability(
        name=name,
        description=said.text("description"),
        parameters=parameters_schema(said),
        examples=[example.values for example in said.sections("examples")],
        category=category.value,
        output=output_schema(said),
    )


def _effects(said: Section, base: Effects) -> Effects:
    section = said.section("effects")
    if section is None:
        return base
    section.allow((*_EFFECT_FLAGS, "cache_ttl"))
    flags = {key: section.flag(key, getattr(base, key)) for key in _EFFECT_FLAGS}
    if flags["read_only"] and flags["destructive"]:
        section.problem("read_only and destructive contradict each other", "destructive", "drop one of them")
    return Effects(**flags, cache_ttl=section.positive("cache_ttl") or base.cache_ttl)


def _limits(said: Section, base: Limits) -> Limits:
    section = said.section("limits")
    if section is None:
        return base
    section.allow(("timeout", "bucket", "isolation", "max_output"))
    isolation = section.choice("isolation", get_args(Isolation), base.isolation)
    max_output = section.positive("max_output", whole=True)
    return Limits(
        timeout=section.positive("timeout") or base.timeout,
        bucket=section.text("bucket") or base.bucket,
        isolation=isolation,  # type: ignore[arg-type]  # one of its names: choice has seen to it
        max_output=base.max_output if max_output is None else int(max_output),
    )


def _modules_of(tool: Tool, path: Path) -> dict[Path, str]:
    """The Python files next to the YAML file that take part in a tool, or would if they were there."""
    if not isinstance(tool.target, ImportedTarget):
        return {}
    if tool.target.version is None:
        candidate = path.with_name(f"{tool.target.module}.py")
        return {candidate: digest_of(candidate)}
    return {each: digest(source) for each, source in tool.target.version.sources.items()}
