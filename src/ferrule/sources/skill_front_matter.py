"""The front matter of a `SKILL.md`, as the Agent Skills specification has it: six keys, of which two must be there.

Files in the wild are read leniently. The commonest slip, an unquoted `: ` inside a description, is read as meant.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from ferrule.errors import CallError, LoadError
from ferrule.executors.skill.folder import SkillFolder
from ferrule.executors.skill.text import split_skill
from ferrule.sources.yaml_text import Document, read_documents

KEYS: Final = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")

_PLAIN_LINE = re.compile(r"^(name|description|license|compatibility):[ \t]+([^\s'\"|>&*\[{#!%@`].*)$", re.M)
_TOOL_NAME = re.compile(r"(?:[^\s,(]|\([^()]*\))+")


def read_skill_document(path: Path) -> bytes:
    """The bytes of a `SKILL.md`; like the skill's other files it is not read through a link."""
    try:
        return SkillFolder(path.parent, path.name).read(path.name)
    except CallError as error:
        raise LoadError(f"the file cannot be read: {error}", path=path) from None


def read_front_matter(content: bytes, path: Path) -> Document:
    """The front matter as a document whose lines are those of the file; LoadError when it has none."""
    try:
        text = split_skill(content.decode("utf-8-sig")).front_matter
    except UnicodeDecodeError:
        raise LoadError("the file is not UTF-8", path=path, hint="save it as UTF-8") from None
    except ValueError as error:
        raise LoadError(str(error), path=path, line=1, hint="begin with ---, name: …, description: …, ---") from None
    document = _read_yaml(text, path)
    if not isinstance(document.value, dict):
        raise LoadError("the front matter is not a mapping", path=path, line=2, hint="write name: … and description: …")
    return document


def text_at(document: Document, key: str) -> str:
    """What a key says, as text; empty when it says nothing."""
    value = document.value.get(key)
    if value is None or isinstance(value, (dict, list)):
        return ""
    return value.strip() if isinstance(value, str) else document.texts[(key,)]


def tool_names(value: Any) -> tuple[str, ...]:
    """The names in `allowed-tools`: `Read Bash(git add:*)`, with or without commas, or a list."""
    said = " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return tuple(dict.fromkeys(_TOOL_NAME.findall(said)))


def _read_yaml(text: str, path: Path) -> Document:
    if not text.strip():
        raise LoadError("the front matter is empty", path=path, line=2, hint="write name: … and description: …")
    # The line of the opening fence is put back, so that lines are those of the file.
    try:
        return read_documents(f"\n{text}".encode(), path)[0]
    except LoadError as error:
        quoted = _PLAIN_LINE.sub(lambda match: f"{match[1]}: {json.dumps(match[2].rstrip(), ensure_ascii=False)}", text)
        try:
            return read_documents(f"\n{quoted}".encode(), path)[0]
        except LoadError:
            raise error from None
