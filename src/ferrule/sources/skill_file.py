"""A `SKILL.md` as a tool: three actions that give its instructions, read its files and run its scripts.

Loading takes in the front matter only. The instructions cost nothing until a model activates the skill.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ferrule.errors import LoadError
from ferrule.executors.skill.executor import ACTIVATE, READ_FILE, RUN_SCRIPT
from ferrule.executors.skill.folder import SkillFolder
from ferrule.sources.loaded import LoadedFile, digest
from ferrule.sources.skill_front_matter import read_front_matter, read_skill_document, text_at, tool_names
from ferrule.sources.yaml_text import Document
from ferrule.spec import Effects, Tool, ToolCapability, ToolSpec, ToolType

HANDLER: Final = "skill"
SOURCE: Final = "skills"

_READS: Final = Effects(read_only=True, idempotent=True)
_PATH: Final = {"type": "string", "description": "Path inside the skill's folder, as listed by activate."}


def read_skill_file(path: Path) -> LoadedFile:
    """The tool of one `SKILL.md`, or what is wrong with it."""
    try:
        content = read_skill_document(path)
        document = read_front_matter(content, path)
        tool = _tool(document, digest(content))
    except LoadError as error:
        return LoadedFile(errors=(error,))
    return LoadedFile(tools=(tool,), made_from={path: digest(content)})


def _tool(document: Document, version: str) -> Tool:
    path = document.path
    for key, hint in (("name", f"write name: {path.parent.name}"), ("description", "say what it does and when to use")):
        if not text_at(document, key):
            raise LoadError(f"the front matter has no {key}", path=path, line=document.line((key,)), hint=hint)
    name = text_at(document, "name")
    spec = ToolSpec(
        tool_id=name,
        description=text_at(document, "description"),
        tool_type=ToolType.SKILL,
        capabilities=_actions(name, text_at(document, "description")),
        metadata=_metadata(document, version),
    )
    return Tool(
        spec=spec,
        handler=HANDLER,
        target=SkillFolder(path.parent, path.name),
        source=SOURCE,
        origin=f"{path}:{document.line(('name',))}",
    )


def _actions(name: str, description: str) -> list[ToolCapability]:
    return [
        ToolCapability(
            name=ACTIVATE,
            description=f"{description.rstrip('.')}. Call this first: it gives the instructions and lists the files.",
            parameters={"type": "object", "properties": {}},
            effects=_READS,
        ),
        ToolCapability(
            name=READ_FILE,
            description=f"Read a file of the skill {name!r}.",
            parameters={"type": "object", "properties": {"path": _PATH}, "required": ["path"]},
            effects=_READS,
        ),
        ToolCapability(
            name=RUN_SCRIPT,
            description=f"Run a script of the skill {name!r} in its folder, and give what it prints.",
            parameters={
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "A file in scripts/, as listed by activate."},
                    "args": {"type": "array", "items": {"type": "string"}, "description": "Command-line arguments."},
                    "stdin": {"type": "string", "description": "Text for its standard input."},
                },
                "required": ["path"],
            },
        ),
    ]


def _metadata(document: Document, version: str) -> dict[str, Any]:
    found: dict[str, Any] = {key: text_at(document, key) for key in ("license", "compatibility")}
    notes = document.value.get("metadata")
    found["metadata"] = notes if isinstance(notes, dict) else {}
    found["allowed_tools"] = tool_names(document.value.get("allowed-tools"))
    # When the instructions change, the tool has changed.
    return {key: value for key, value in found.items() if value} | {"source_hash": version}
