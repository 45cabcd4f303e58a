"""Folders of skills: Python files at the top, and folders with a `SKILL.md` a few levels deep.

A `SKILL.md` becomes a tool with three actions: give its instructions, read its files, run its scripts. Only the front
matter is loaded. The instructions cost nothing until a model activates the skill. A script runs like a command: in a
process group that is ended as a whole, in the skill's folder, with the few environment variables that every program
needs.

What lies inside a skill belongs to it and is not searched. Hidden folders are skipped, unless one of them is the
directory itself (`.claude/skills`).
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ferrule.core.call import Invocation
from ferrule.core.content import Audio, Image, Resource, unwrap_reported_result
from ferrule.core.spec import Effects, Tool, ToolCapability, ToolSpec, ToolType
from ferrule.errors import CallError, ExecutorNotFound, LoadError
from ferrule.kinds.command import CommandExecutor, literal_command
from ferrule.kinds.function.tools import find_decorated, public_classes, read_python_file
from ferrule.kinds.loading import DirectorySource
from ferrule.kinds.skill.folder import SkillFolder, build_script_command, split_skill_path
from ferrule.kinds.source import (
    PYTHON_SUFFIXES,
    LoadedFile,
    LoadReport,
    WatchedFolder,
    check_or_false,
    combine_into_report,
    digest,
    visible_entries,
)

if TYPE_CHECKING:
    from ferrule.kinds.skill.front_matter import SkillFrontMatter

ACTIVATE: Final = "activate"
READ_FILE: Final = "read_file"
RUN_SCRIPT: Final = "run_script"

_IMAGE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}


class SkillExecutor:
    """Runs the actions of tools whose target is a `SkillFolder`."""

    unwrap = staticmethod(unwrap_reported_result)

    def __init__(self, commands: CommandExecutor | None = None) -> None:
        self._commands = commands or CommandExecutor()

    async def execute(self, invocation: Invocation, /) -> Any:
        folder = invocation.tool.target
        if not isinstance(folder, SkillFolder):
            raise ExecutorNotFound(f"tool {invocation.tool.id!r} is not a skill: load it with SkillsDirectory.")
        params = invocation.params
        if invocation.capability.name == READ_FILE:
            return await asyncio.to_thread(_read_file, invocation.tool.id, folder, params["path"])
        if invocation.capability.name == RUN_SCRIPT:
            command = await asyncio.to_thread(build_script_command, folder, params["path"], params.get("args") or [])
            stdin = params.get("stdin")
            line = literal_command(command, directory=str(folder.path), stdin=stdin, environ=os.environ)
            return await self._commands.run(line, invocation)
        return await asyncio.to_thread(_activate_skill, invocation, folder)


def _activate_skill(invocation: Invocation, folder: SkillFolder) -> dict[str, Any]:
    allowed = invocation.tool.spec.metadata.get("allowed_tools")
    return {
        "name": invocation.tool.id,
        "instructions": folder.instructions(),
        "folder": str(folder.path),
        "files": [{"path": file.path, "size": file.size} for file in folder.files()],
        **({"allowed_tools": list(allowed)} if allowed else {}),
    }


def _read_file(skill: str, folder: SkillFolder, path: str) -> str | Image | Audio | Resource:
    content = folder.read(path)
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _IMAGE_TYPES:
        return Image(data=content, mime_type=_IMAGE_TYPES[suffix])
    if b"\0" not in content:
        with suppress(UnicodeDecodeError):
            return content.decode("utf-8-sig")
    mime_type = mimetypes.guess_type(f"file{suffix}")[0] or "application/octet-stream"
    if mime_type.startswith("audio/"):
        return Audio(data=content, mime_type=mime_type)
    uri = f"skill://{quote(skill, safe='')}/{quote('/'.join(split_skill_path(path)))}"
    return Resource(uri=uri, data=content, mime_type=mime_type)


logger = logging.getLogger("ferrule.kinds")

HANDLER: Final = "skill"
SOURCE: Final = "skills"

_READ_ONLY: Final = Effects(read_only=True, idempotent=True)
_PATH_PARAMETER: Final = {"type": "string", "description": "Path inside the skill's folder, as listed by activate."}
DOCUMENTS: Final = ("SKILL.md", "skill.md")
MAX_FOLDER_DEPTH: Final = 5
MAX_FOLDERS: Final = 2_000
"""That are searched."""
MAX_ENTRIES: Final = 20_000
"""Of one folder that are looked at."""
_IGNORED_FOLDERS: Final = frozenset({"node_modules", "__pycache__"})


class SkillsDirectory:
    """The skills of one or more folders. If two have the same name, the first is used and the other is reported."""

    def __init__(self, *directories: str | Path) -> None:
        self._folders = [DirectorySource(each, files=skill_files, read=_read_skills) for each in directories]

    def load(self) -> LoadReport:
        """Load all skills. Python files are executed, which may take long: call this in a thread."""
        reports = [folder.load() for folder in self._folders]
        loaded = [LoadedFile(tools=report.tools, errors=report.errors) for report in reports]
        total = combine_into_report((f.directory, each) for f, each in zip(self._folders, loaded, strict=True))
        return replace(total, files=tuple(path for report in reports for path in report.files))

    def watched_folders(self) -> Sequence[WatchedFolder]:
        return [WatchedFolder(each.directory, watched_skill_files) for each in self._folders]


# Finding files


def find_skill_file(folder: Path) -> Path | None:
    return next((path for name in DOCUMENTS if os.path.lexists(path := folder / name)), None)


def skill_files(directory: Path) -> list[Path]:
    return [path for path in watched_skill_files(directory) if not path.name.startswith("_")]


def watched_skill_files(directory: Path) -> list[Path]:
    """List the files that define skills and the helper modules they may import, ordered by path."""
    documents = [path for folder in skill_folders(directory) if (path := find_skill_file(folder)) is not None]
    if find_skill_file(directory) is not None:
        return documents
    files = [Path(entry.path) for entry in visible_entries(directory, MAX_ENTRIES) if check_or_false(entry.is_file)]
    return sorted([*documents, *(path for path in files if path.suffix.lower() in PYTHON_SUFFIXES)])


def skill_folders(directory: Path) -> list[Path]:
    """List the directory, even if it does not exist, and the folders in it that are or may contain skills.

    A link that leads out of the directory counts if it leads to a skill; what else is there is not searched.
    """
    root = Path(os.path.realpath(directory))
    folders, visited = [directory], {root}
    remaining = deque([(directory, MAX_FOLDER_DEPTH)])
    while remaining:
        folder, depth = remaining.popleft()
        for path in _subfolders_to_search(folder, is_top=folder == directory) if depth else ():
            real = Path(os.path.realpath(path))
            if real in visited or not (real.is_relative_to(root) or find_skill_file(path) is not None):
                continue
            if len(folders) == MAX_FOLDERS:
                logger.warning("folder=<%s>, limit=<%d> | too many folders: not all are searched", root, MAX_FOLDERS)
                return sorted(folders)
            visited.add(real)
            folders.append(path)
            remaining.append((path, depth - 1))
    return sorted(folders)


def _subfolders_to_search(folder: Path, *, is_top: bool) -> list[Path]:
    """List the folders to search in a folder. Links come last, so that a skill is found by its real path."""
    if find_skill_file(folder) is not None:
        return []
    try:
        entries = [
            entry
            for entry in visible_entries(folder, MAX_ENTRIES)
            if not entry.name.startswith("_") and entry.name not in _IGNORED_FOLDERS and check_or_false(entry.is_dir)
        ]
    except OSError:
        if is_top:
            raise
        return []  # a folder that cannot be read must not hide the others
    return [Path(entry.path) for entry in sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))]


# One file


def _read_skills(path: Path) -> LoadedFile:
    """Read the skills of a Python file, which is executed, or of a `SKILL.md`."""
    if path.suffix.lower() not in PYTHON_SUFFIXES:
        return _read_skill_file(path)
    # Each public class is a tool and its methods are the actions, unless something is decorated with `@tool`.
    loaded = read_python_file(path, lambda module: list(find_decorated(module)) or public_classes(module))
    return replace(loaded, tools=tuple(replace(tool, source=SOURCE) for tool in loaded.tools))


def _read_skill_file(path: Path) -> LoadedFile:
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
    """Read a `SKILL.md`. Like other files of a skill, it is not read through a symbolic link."""
    try:
        return SkillFolder(path.parent, path.name).read(path.name)
    except CallError as error:
        raise LoadError(f"the file cannot be read: {error}", path=path) from None


def _make_spec(front_matter: SkillFrontMatter, version: str) -> ToolSpec:
    metadata = front_matter.model_dump(include={"license", "compatibility", "metadata", "allowed_tools"})
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
