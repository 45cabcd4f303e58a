"""A `SKILL.md` as a tool with three actions: give its instructions, read its files, run its scripts.

Only the front matter is loaded. The instructions cost nothing until a model activates the skill.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.spec import Effects, Tool, ToolCapability, ToolSpec, ToolType
from ferrule.errors import CallError, LoadError
from ferrule.kinds.skill.executor import ACTIVATE, READ_FILE, RUN_SCRIPT
from ferrule.kinds.skill.folder import SkillFolder
from ferrule.kinds.source import LoadedFile, digest

if TYPE_CHECKING:
    from ferrule.kinds.skill.front_matter import SkillFrontMatter

HANDLER: Final = "skill"
SOURCE: Final = "skills"

_READ_ONLY: Final = Effects(read_only=True, idempotent=True)
_PATH_PARAMETER: Final = {"type": "string", "description": "Path inside the skill's folder, as listed by activate."}


def read_skill_file(path: Path) -> LoadedFile:
    """The tool of one `SKILL.md`, or what is wrong with it."""
    from ferrule.kinds.skill.front_matter import read_front_matter  # needs pydantic

    try:
        content = read_skill_content(path)
        front_matter, document = read_front_matter(content, path)
        for key, hint in (
            ("name", f"write name: {path.parent.name}"),
            ("description", "describe what the skill does and when to use it"),
        ):
            if not getattr(front_matter, key):
                raise LoadError(f"the front matter has no {key}", path=path, line=document.line((key,)), hint=hint)
    except LoadError as error:
        return LoadedFile(errors=(error,))
    version = digest(content)
    tool = Tool(
        spec=_make_spec(front_matter, version),
        handler=HANDLER,
        target=SkillFolder(path.parent, path.name),
        source=SOURCE,
        origin=f"{path}:{document.line(('name',))}",
    )
    return LoadedFile(tools=(tool,), digests={path: version})


def read_skill_content(path: Path) -> bytes:
    """The bytes of a `SKILL.md`; like the skill's other files it is not read through a symbolic link."""
    try:
        return SkillFolder(path.parent, path.name).read(path.name)
    except CallError as error:
        raise LoadError(f"the file cannot be read: {error}", path=path) from None


def _make_spec(front_matter: SkillFrontMatter, version: str) -> ToolSpec:
    metadata: dict[str, Any] = {
        "license": front_matter.license,
        "compatibility": front_matter.compatibility,
        "metadata": front_matter.metadata,
        "allowed_tools": front_matter.allowed_tools,
    }
    return ToolSpec(
        tool_id=front_matter.name,
        description=front_matter.description,
        tool_type=ToolType.SKILL,
        capabilities=_make_actions(front_matter.name, front_matter.description),
        # With a digest of the file: when the instructions change, the tool has changed.
        metadata={key: value for key, value in metadata.items() if value} | {"source_hash": version},
    )


def _make_actions(name: str, description: str) -> list[ToolCapability]:
    return [
        ToolCapability(
            name=ACTIVATE,
            description=f"{description.rstrip('.')}. Call this first: it gives the instructions and lists the files.",
            parameters={"type": "object", "properties": {}},
            effects=_READ_ONLY,
        ),
        ToolCapability(
            name=READ_FILE,
            description=f"Read a file of the skill {name!r}.",
            parameters={"type": "object", "properties": {"path": _PATH_PARAMETER}, "required": ["path"]},
            effects=_READ_ONLY,
        ),
        ToolCapability(
            name=RUN_SCRIPT,
            description=f"Run a script of the skill {name!r} in its folder, and return its output.",
            parameters={
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "A file in scripts/, as listed by activate."},
                    "args": {"type": "array", "items": {"type": "string"}, "description": "Command-line arguments."},
                    "stdin": {"type": "string", "description": "Text for its standard input."},
                },
                "required": ["path"],
            },
            effects=Effects(destructive=True, open_world=True),  # a script may do anything
        ),
    ]
