"""The `skill` executor: a skill's instructions, its files and its scripts.

A script runs like a command: in a process group that is ended as a whole, in the skill's folder, with the few
environment variables that every program needs. Its arguments are passed unchanged.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

from ferrule.core.call import Invocation
from ferrule.core.content import Audio, Image, Resource, unwrap_reported_result
from ferrule.errors import ExecutorNotFound
from ferrule.kinds.command import CommandExecutor, literal_command
from ferrule.kinds.skill.folder import SkillFolder, build_script_command, split_skill_path

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
    activation: dict[str, Any] = {
        "name": invocation.tool.id,
        "instructions": folder.instructions(),
        "folder": str(folder.path),
        "files": [{"path": file.path, "size": file.size} for file in folder.files()],
    }
    if allowed := invocation.tool.spec.metadata.get("allowed_tools"):
        activation["allowed_tools"] = list(allowed)
    return activation


def _read_file(skill: str, folder: SkillFolder, path: str) -> str | Image | Audio | Resource:
    content = folder.read(path)
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _IMAGE_TYPES:
        return Image(data=content, mime_type=_IMAGE_TYPES[suffix])
    text = _decode_text(content)
    if text is not None:
        return text
    mime_type = mimetypes.guess_type(f"file{suffix}")[0] or "application/octet-stream"
    if mime_type.startswith("audio/"):
        return Audio(data=content, mime_type=mime_type)
    uri = f"skill://{quote(skill, safe='')}/{quote('/'.join(split_skill_path(path)))}"
    return Resource(uri=uri, data=content, mime_type=mime_type)


def _decode_text(content: bytes) -> str | None:
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
