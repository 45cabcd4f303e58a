"""The front matter of a `SKILL.md`: the six keys of the Agent Skills specification, of which two are required.

Files are read leniently: a value of the wrong type counts as missing, and the most common mistake, an unquoted `: `
inside a description, is understood. A separate module because importing pydantic takes 80 ms: it is loaded when the
first skill is read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Final
from unicodedata import normalize

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import LoadError
from ferrule.kinds.skill.directory import find_skill_file, read_skill_content
from ferrule.kinds.skill.folder import split_front_matter
from ferrule.kinds.yaml.reader import Document, read_documents

_PLAIN_LINE: Final = lazy_pattern(r"^(name|description|license|compatibility):[ \t]+([^\s'\"|>&*\[{#!%@`].*)$", re.M)
_TOOL_NAME: Final = lazy_pattern(r"(?:[^\s,(]|\([^()]*\))+")


def parse_tool_names(value: Any) -> tuple[str, ...]:
    """Return the names in `allowed-tools`: `Read Bash(git add:*)`, with or without commas, or a list."""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return tuple(dict.fromkeys(_TOOL_NAME.findall(text)))


_Text = Annotated[str, BeforeValidator(lambda value: value.strip() if isinstance(value, str) else "")]
_Mapping = Annotated[dict[str, Any], BeforeValidator(lambda value: value if isinstance(value, dict) else {})]


class SkillFrontMatter(BaseModel):
    """What a skill says about itself."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: _Text = ""
    description: _Text = ""
    license: _Text = ""
    compatibility: _Text = ""
    metadata: _Mapping = Field(default_factory=dict)
    allowed_tools: Annotated[tuple[str, ...], BeforeValidator(parse_tool_names)] = Field((), alias="allowed-tools")


KEYS: Final = tuple(field.alias or name for name, field in SkillFrontMatter.model_fields.items())


def read_front_matter(content: bytes, path: Path) -> tuple[SkillFrontMatter, Document]:
    """Read the front matter, and the YAML document with the line of each key. Raises LoadError."""
    try:
        text = split_front_matter(content.decode("utf-8-sig")).front_matter
    except UnicodeDecodeError:
        raise LoadError("the file is not UTF-8", path=path, hint="save it as UTF-8") from None
    except ValueError as error:
        raise LoadError(str(error), path=path, line=1, hint="begin with ---, name: …, description: …, ---") from None
    hint = "write name: … and description: …"
    if not text.strip():
        raise LoadError("the front matter is empty", path=path, line=2, hint=hint)
    document = _read_yaml(text, path)
    if not isinstance(document.value, dict):
        raise LoadError("the front matter is not a mapping", path=path, line=2, hint=hint)
    # Numbers are taken as they are written: a name 1.10 is not 1.1.
    numbers = {key: document.texts[(key,)] for key, value in document.value.items() if isinstance(value, (int, float))}
    return SkillFrontMatter.model_validate({**document.value, **numbers}), document


def _read_yaml(text: str, path: Path) -> Document:
    # The line of the opening fence is put back, so that line numbers match the file.
    try:
        return read_documents(f"\n{text}".encode(), path)[0]
    except LoadError as error:
        quoted = _PLAIN_LINE.sub(lambda match: f"{match[1]}: {json.dumps(match[2].rstrip(), ensure_ascii=False)}", text)
        try:
            return read_documents(f"\n{quoted}".encode(), path)[0]
        except LoadError:
            raise error from None


# Strict validation against the Agent Skills specification. Loading accepts more than this: other programs that read the
# same folder may not.

MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_COMPATIBILITY: Final = 500


def validate_skill(folder: str | Path) -> list[LoadError]:
    """List everything that is wrong with a skill's folder, ordered by line."""
    folder = Path(folder)
    if not folder.is_dir():
        problem = "this is not a folder" if folder.exists() else "there is no such folder"
        return [LoadError(problem, path=folder)]
    path = find_skill_file(folder)
    if path is None:
        return [LoadError("SKILL.md is missing", path=folder, hint="a skill is a folder with a SKILL.md in it")]
    try:
        front_matter, document = read_front_matter(read_skill_content(path), path)
    except LoadError as error:
        return [error]
    unknown = [key for key in document.value if key not in KEYS]
    if unknown:
        message = f"the front matter has unknown keys: {', '.join(unknown)}"
        document.problem(message, (unknown[0],), f"use {', '.join(KEYS)}; put other values under metadata")
    if not isinstance(document.value.get("metadata", {}), dict):
        document.problem("metadata is not a mapping", ("metadata",), "write pairs such as author: me under it")
    _check_name(front_matter, document)
    if not front_matter.description:
        hint = "describe what the skill does and when to use it"
        document.problem("description is missing", ("description",), hint)
    for key, limit in (("description", MAX_DESCRIPTION), ("compatibility", MAX_COMPATIBILITY)):
        length = len(getattr(front_matter, key))
        if length > limit:
            document.problem(f"{key} is longer than {limit} characters: {length}", (key,), "shorten it")
    return sorted(document.errors, key=lambda error: error.line or 1)


def _check_name(front_matter: SkillFrontMatter, document: Document) -> None:
    name = normalize("NFKC", front_matter.name)
    if not name:
        document.problem("name is missing", ("name",), f"write name: {document.path.parent.name}")
        return
    if len(name) > MAX_NAME:
        document.problem(f"name is longer than {MAX_NAME} characters: {len(name)}", ("name",), "shorten it")
    if name != name.lower():
        document.problem(f"name {name!r} is not in lower case", ("name",), f"write name: {name.lower()}")
    if name.startswith("-") or name.endswith("-"):
        document.problem(f"name {name!r} begins or ends with a hyphen", ("name",), f"write name: {name.strip('-')}")
    if "--" in name:
        document.problem(f"name {name!r} has two hyphens in a row", ("name",), "remove one of them")
    if not all(letter.isalnum() or letter == "-" for letter in name):
        document.problem(f"name {name!r} has characters that are not allowed", ("name",), "use letters, digits and -")
    folder = normalize("NFKC", document.path.absolute().parent.name)
    if folder != name:
        hint = "give both the same name"
        document.problem(f"the folder {folder!r} does not have the name of its skill {name!r}", ("name",), hint)
