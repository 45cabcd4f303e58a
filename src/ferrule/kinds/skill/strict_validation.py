"""Strict validation of a skill against the Agent Skills specification.

Loading accepts more than this: other programs that read the same folder may not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from unicodedata import normalize

from ferrule.errors import LoadError
from ferrule.kinds.skill.directory import find_skill_file, read_skill_content

if TYPE_CHECKING:
    from ferrule.kinds.skill.front_matter import SkillFrontMatter
    from ferrule.kinds.yaml.reader import Document

MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_COMPATIBILITY: Final = 500


def validate_skill(folder: str | Path) -> list[LoadError]:
    """List everything that is wrong with a skill's folder, ordered by line."""
    from ferrule.kinds.skill.front_matter import read_front_matter  # needs pydantic

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
    _check_keys(document)
    _check_name(front_matter, document)
    _check_texts(front_matter, document)
    return sorted(document.errors, key=lambda error: error.line or 1)


def _check_keys(document: Document) -> None:
    from ferrule.kinds.skill.front_matter import KEYS  # needs pydantic

    unknown = [key for key in document.value if key not in KEYS]
    if unknown:
        message = f"the front matter has unknown keys: {', '.join(unknown)}"
        document.problem(message, (unknown[0],), f"use {', '.join(KEYS)}; put other values under metadata")
    if not isinstance(document.value.get("metadata", {}), dict):
        document.problem("metadata is not a mapping", ("metadata",), "write pairs such as author: me under it")


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


def _check_texts(front_matter: SkillFrontMatter, document: Document) -> None:
    if not front_matter.description:
        hint = "describe what the skill does and when to use it"
        document.problem("description is missing", ("description",), hint)
    for key, limit in (("description", MAX_DESCRIPTION), ("compatibility", MAX_COMPATIBILITY)):
        length = len(getattr(front_matter, key))
        if length > limit:
            document.problem(f"{key} is longer than {limit} characters: {length}", (key,), "shorten it")
