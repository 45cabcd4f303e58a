"""Whether a skill keeps to the Agent Skills specification, to the letter.

Loading forgives what this does not: others may read the same folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from unicodedata import normalize

from ferrule.errors import LoadError
from ferrule.sources.skill_front_matter import KEYS, read_front_matter, read_skill_document, text_at
from ferrule.sources.skill_paths import document_in
from ferrule.sources.yaml_text import Document

MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_COMPATIBILITY: Final = 500


def validate_skill(folder: str | Path) -> list[LoadError]:
    """Everything that is wrong with a skill's folder, in order of lines."""
    folder = Path(folder)
    if not folder.is_dir():
        what = "this is not a folder" if folder.exists() else "there is no such folder"
        return [LoadError(what, path=folder)]
    path = document_in(folder)
    if path is None:
        return [LoadError("SKILL.md is missing", path=folder, hint="a skill is a folder with a SKILL.md in it")]
    try:
        document = read_front_matter(read_skill_document(path), path)
    except LoadError as error:
        return [error]
    _check_keys(document)
    _check_name(document)
    _check_texts(document)
    return sorted(document.errors, key=lambda error: error.line or 1)


def _check_keys(document: Document) -> None:
    unknown = [key for key in document.value if key not in KEYS]
    if unknown:
        message = f"the front matter has keys that are not known: {', '.join(unknown)}"
        document.problem(message, (unknown[0],), f"there are {', '.join(KEYS)}; put notes of your own under metadata")
    if not isinstance(document.value.get("metadata", {}), dict):
        document.problem("metadata is not a mapping", ("metadata",), "write pairs such as author: me under it")


def _check_name(document: Document) -> None:
    name = normalize("NFKC", text_at(document, "name"))
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
        document.problem(f"name {name!r} has two hyphens in a row", ("name",), "keep one of them")
    if not all(letter.isalnum() or letter == "-" for letter in name):
        document.problem(f"name {name!r} has characters that are not allowed", ("name",), "use letters, digits and -")
    folder = normalize("NFKC", document.path.absolute().parent.name)
    if folder != name:
        hint = "give both the same name"
        document.problem(f"the folder {folder!r} is not called like its skill {name!r}", ("name",), hint)


def _check_texts(document: Document) -> None:
    description, compatibility = text_at(document, "description"), text_at(document, "compatibility")
    if not description:
        document.problem("description is missing", ("description",), "say what the skill does and when to use it")
    for key, text, most in (
        ("description", description, MAX_DESCRIPTION),
        ("compatibility", compatibility, MAX_COMPATIBILITY),
    ):
        if len(text) > most:
            document.problem(f"{key} is longer than {most} characters: {len(text)}", (key,), "shorten it")
